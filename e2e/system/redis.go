package system

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// CounterKey names a counter as Postgres and Redis both know it. App is "" for a counter that all apps share.
type CounterKey struct {
	App, Period, Subject string
	Start                int64 // of its window in Unix seconds; 0 for a window without start
}

// Counter is what Redis has of one counter.
type Counter struct {
	Used, Held [3]int64 // requests, tokens, nano-dollars
	Version    int64
}

// Counters reads every counter of Redis. It is safe for concurrent use.
func (s *System) Counters(ctx context.Context) (map[CounterKey]Counter, error) {
	keys, err := s.keys(ctx, "*:budget:*")
	if err != nil {
		return nil, err
	}
	commands := make([]*redis.MapStringStringCmd, len(keys))
	if _, err := s.RedisClient.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range keys {
			commands[i] = pipe.HGetAll(ctx, key)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	counters := map[CounterKey]Counter{}
	for i, key := range keys {
		fields := commands[i].Val()
		if len(fields) == 0 {
			continue // gone since it was listed
		}
		name, err := parseCounter(key)
		if err != nil {
			return nil, err
		}
		var c Counter
		for i, unit := range []string{"requests", "tokens", "nanousd"} {
			c.Used[i], err = number(fields["used_"+unit], err)
			c.Held[i], err = number(fields["held_"+unit], err)
		}
		if c.Version, err = number(fields["version"], err); err != nil {
			return nil, fmt.Errorf("counter %s: %w", key, err)
		}
		counters[name] = c
	}
	return counters, nil
}

func number(text string, before error) (int64, error) {
	if text == "" {
		return 0, before
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, errors.Join(before, err)
}

// parseCounter reads "{app:shop}:tg1:budget:day:1700000000:subject".
func parseCounter(key string) (CounterKey, error) {
	slot, rest, ok := strings.Cut(key, "}:tg1:budget:")
	parts := strings.SplitN(rest, ":", 3)
	if !ok || len(parts) != 3 {
		return CounterKey{}, fmt.Errorf("%s is no counter's key", key)
	}
	name := CounterKey{Period: parts[0], Subject: parts[2]}
	if app, ok := strings.CutPrefix(slot, "{app:"); ok {
		name.App = app
	}
	start, err := number(parts[1], nil)
	name.Start = start
	return name, err
}

// keys lists keys by pattern, sorted.
func (s *System) keys(ctx context.Context, pattern string) ([]string, error) {
	var keys []string
	scan := s.RedisClient.Scan(ctx, 0, pattern, 1000).Iterator()
	for scan.Next(ctx) {
		keys = append(keys, scan.Val())
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Dump is everything in Redis: every key with its type and value, not its time to live. One that lapses while it is read is left out.
func (s *System) Dump(ctx context.Context) (map[string]string, error) {
	keys, err := s.keys(ctx, "*")
	if err != nil {
		return nil, err
	}
	dump := map[string]string{}
	for _, key := range keys {
		kind, err := s.RedisClient.Type(ctx, key).Result()
		if err != nil {
			return nil, err
		}
		var value any
		switch kind {
		case "none":
			continue
		case "string":
			value, err = s.RedisClient.Get(ctx, key).Result()
		case "hash":
			value, err = s.RedisClient.HGetAll(ctx, key).Result()
		case "set":
			value, err = s.RedisClient.SMembersMap(ctx, key).Result()
		case "zset":
			value, err = s.RedisClient.ZRangeWithScores(ctx, key, 0, -1).Result()
		default:
			err = fmt.Errorf("unexpected type %s", kind)
		}
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
		if kind != "string" && reflect.ValueOf(value).Len() == 0 {
			continue // Redis keeps no empty hash or set: it has lapsed
		}
		dump[key] = fmt.Sprint(kind, " ", value)
	}
	return dump, nil
}

// heldReservations counts the reservations that Redis holds for the app.
func (s *System) heldReservations(ctx context.Context) (int64, error) {
	keys, err := s.keys(ctx, "*:deadlines")
	if err != nil {
		return 0, err
	}
	var n int64
	for _, key := range keys {
		count, err := s.RedisClient.ZCard(ctx, key).Result()
		if err != nil {
			return 0, err
		}
		n += count
	}
	return n, nil
}

// Released returns an error while Redis holds an amount or a slot for the reservation.
func (s *System) Released(ctx context.Context, id string) error {
	for _, pattern := range []string{"*:deadlines", "*:inflight:*"} {
		keys, err := s.keys(ctx, pattern)
		if err != nil {
			return err
		}
		for _, key := range keys {
			switch err := s.RedisClient.ZScore(ctx, key, id).Err(); {
			case err == nil:
				return fmt.Errorf("%s is in %s", id, key)
			case !errors.Is(err, redis.Nil):
				return fmt.Errorf("look for %s in %s: %w", id, key, err)
			}
		}
	}
	return nil
}

// Flush empties Redis.
func (s *System) Flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return s.RedisClient.FlushAll(ctx).Err()
}
