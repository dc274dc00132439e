package lua

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Mark reads the generation that a slot (an app, or SharedSlot) was last rebuilt for; ok is false when there is no mark.
func (s *Scripts) Mark(ctx context.Context, slot string) (generation string, ok bool, err error) {
	text, err := s.client.Get(ctx, markKey(slot)).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read mark of %s: %w", slot, err)
	}
	return generationOf(text), true, nil
}

func generationOf(mark string) string {
	generation, _, _ := strings.Cut(mark, " ")
	return generation
}

// appsAtOnce is how many apps are asked about in one round trip: Redis answers so many small questions within milliseconds.
const appsAtOnce = 1000

// Lost lists those of the apps that have lost their mark: it does not name the generation, although the shared counters may hold
// something of the app as Joined says. One that had no mark since these were rebuilt has lost nothing.
func (s *Scripts) Lost(ctx context.Context, apps []string, generation string) (lost []string, err error) {
	for some := range slices.Chunk(apps, appsAtOnce) {
		members, marks := make([]any, len(some)), make([]*redis.StringCmd, len(some))
		var listed *redis.BoolCmd
		var joined *redis.BoolSliceCmd
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			listed = p.SIsMember(ctx, joinedKey(), SharedSlot)
			for i, app := range some {
				members[i], marks[i] = app, p.Get(ctx, markKey(app))
			}
			joined = p.SMIsMember(ctx, joinedKey(), members...)
			return nil
		})
		if err = cmp.Or(listed.Err(), joined.Err(), otherThanMissing(err)); err != nil {
			return nil, fmt.Errorf("look for lost marks: %w", err)
		}
		for i, app := range some {
			if mark, err := marks[i].Result(); otherThanMissing(err) != nil {
				return nil, fmt.Errorf("read mark of %s: %w", app, err)
			} else if generationOf(mark) != generation && (!listed.Val() || joined.Val()[i]) {
				lost = append(lost, app)
			}
		}
	}
	return lost, nil
}

// otherThanMissing is the error of an answer, unless there was no such key.
func otherThanMissing(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// Unmark takes a slot's mark away: until it is rebuilt, nothing is judged or settled that needs it. Idempotent.
func (s *Scripts) Unmark(ctx context.Context, slot string) error {
	if err := s.client.Del(ctx, markKey(slot)).Err(); err != nil {
		return fmt.Errorf("take mark of %s away: %w", slot, err)
	}
	return nil
}

// Renew lengthens the life of a slot's mark. Every counter of the slot that Postgres has must have been given to Settle just
// before, which lengthens theirs: no counter without a window end may be gone before the mark.
func (s *Scripts) Renew(ctx context.Context, slot string) error {
	keys := []string{markKey(slot)}
	if slot == SharedSlot {
		keys = append(keys, joinedKey())
	}
	for _, key := range keys {
		if err := s.client.PExpire(ctx, key, markTTL).Err(); err != nil {
			return fmt.Errorf("renew mark of %s: %w", slot, err)
		}
	}
	return nil
}

// JoinAll begins the list of apps that have marks beside the shared one; it must be called before the shared slot is rebuilt.
func (s *Scripts) JoinAll(ctx context.Context, apps []string) error {
	if err := s.client.Del(ctx, joinedKey()).Err(); err != nil {
		return fmt.Errorf("begin list of apps: %w", err)
	}
	return s.Join(ctx, append([]string{SharedSlot}, apps...)...) // so that the list is there also without apps
}

// Join adds apps to the list, before they get their marks. Idempotent.
func (s *Scripts) Join(ctx context.Context, apps ...string) error {
	members := make([]any, len(apps))
	for i, app := range apps {
		members[i] = app
	}
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.SAdd(ctx, joinedKey(), members...)
		p.PExpire(ctx, joinedKey(), markTTL)
		return nil
	})
	if err != nil {
		return fmt.Errorf("add to list of apps: %w", err)
	}
	return nil
}

// Joined reports whether the shared counters may hold something of the app: it had a mark since they were rebuilt, or the list
// that would tell is lost.
func (s *Scripts) Joined(ctx context.Context, app string) (bool, error) {
	var listed, member *redis.BoolCmd
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		listed, member = p.SIsMember(ctx, joinedKey(), SharedSlot), p.SIsMember(ctx, joinedKey(), app)
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("look for %s in list of apps: %w", app, err)
	}
	return !listed.Val() || member.Val(), nil
}

// Identity names the server that answers and the history that its data belongs to: after a restart or a failover it is another.
// "" when the server does not say.
func (s *Scripts) Identity(ctx context.Context) (string, error) {
	text, err := s.client.Info(ctx).Result()
	if err != nil {
		return "", fmt.Errorf("ask Redis who it is: %w", err)
	}
	var run, history string
	for line := range strings.Lines(text) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "run_id":
			run = value
		case "master_replid":
			history = value
		}
	}
	if run == "" && history == "" {
		return "", nil
	}
	return run + "/" + history, nil
}
