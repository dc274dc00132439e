package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"tollgate/ledger/event"
)

// tally is how often something was refused.
type tally struct {
	refused
	n int64
}

// take hands over what has been counted, by hour and app, and begins anew.
func (r *refusals) take(now time.Time) (counts []tally, since time.Time) {
	r.mu.Lock()
	taken := r.counts
	since, r.since, r.counts = r.since, now, map[refused]*int64{}
	r.mu.Unlock()
	counts = make([]tally, 0, len(taken))
	for key, n := range taken {
		counts = append(counts, tally{key, *n})
	}
	slices.SortFunc(counts, func(a, b tally) int {
		x, y := &a.kind, &b.kind
		return cmp.Or(cmp.Compare(a.hour, b.hour), strings.Compare(x.App, y.App), cmp.Compare(x.Layer, y.Layer),
			cmp.Compare(x.Reason, y.Reason), strings.Compare(x.Limit, y.Limit), strings.Compare(x.Subject, y.Subject),
			strings.Compare(x.Endpoint, y.Endpoint))
	})
	return counts, since
}

// giveBack counts again what was taken and could not be recorded.
func (r *refusals) giveBack(counts []tally, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = since
	for _, c := range counts {
		r.addLocked(c.refused, c.n)
	}
}

// maxRefusalBytes bounds the counts in one event, well below what the stream takes.
const maxRefusalBytes = 256 << 10

// refusedEvent makes an event of the first counts: those of one hour and app, and not more than one event may hold. The rest
// is left for the next.
func refusedEvent(counts []tally, since, now time.Time) (e *event.Event, rest []tally, err error) {
	hour, app := counts[0].hour, counts[0].kind.App
	part := &event.Refusals{}
	size := 0
	for rest = counts; len(rest) > 0 && rest[0].hour == hour && rest[0].kind.App == app; rest = rest[1:] {
		line := rest[0].kind
		line.Count = rest[0].n
		text, err := json.Marshal(line)
		if err != nil {
			return nil, nil, fmt.Errorf("encode refusals of %s: %w", app, err)
		}
		if size += len(text); size > maxRefusalBytes && len(part.Counts) > 0 {
			break
		}
		part.Counts = append(part.Counts, line)
	}
	part.From, part.Until = within(hour, since, now)
	return &event.Event{
		V: event.Version, ID: event.ID(event.NewReservationID(now), event.KindRefused), Kind: event.KindRefused, App: app,
		OccurredAt: now, Refusals: part,
	}, rest, nil
}

// within is the part of the span that lies in the hour. A clock that was corrected meanwhile may leave nothing of it: the
// refusals were counted in that hour all the same.
func within(hour int64, since, now time.Time) (from, until time.Time) {
	start := time.Unix(hour*secondsPerHour, 0).UTC()
	end := start.Add(time.Hour)
	from, until = since, now
	if from.Before(start) || !from.Before(end) {
		from = start
	}
	if until.After(end) || until.Before(from) {
		until = end
	}
	return from, until
}

// recordRefusals appends what has been counted to the outbox. What cannot be kept there is counted on.
func (g *Gateway) recordRefusals() error {
	now := g.clock.Now()
	counts, since := g.refusals.take(now)
	for len(counts) > 0 {
		e, rest, err := refusedEvent(counts, since, now)
		if err == nil {
			err = g.outbox.Append(e)
		}
		if err != nil {
			g.refusals.giveBack(counts, since)
			return fmt.Errorf("record %d kinds of refusals: %w", len(counts), err)
		}
		counts = rest
	}
	return nil
}

// recordRefusalsEvery does so until ctx ends. The last record is a step of the shutdown.
func (g *Gateway) recordRefusalsEvery(ctx context.Context) error {
	ticker := time.NewTicker(g.config.RefusalsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := g.recordRefusals(); err != nil {
			g.log.Warn("refusals are not on record yet", "error", err)
		}
	}
}
