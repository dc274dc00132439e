package lua

import (
	"context"
	"errors"
	"fmt"
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
	generation, _, _ = strings.Cut(text, " ")
	return generation, true, nil
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
