package lua

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"tollgate/ledger"
)

// LeaseTTL is how long a request counts as in flight after its reserve or its last renewal. Who has requests in flight renews
// their leases several times in that span; those of a gateway that died come free by themselves.
const LeaseTTL = 10 * time.Second

// leaseChunk bounds the leases of one call.
const leaseChunk = 256

// Lease is the place of one request in the set of those in flight under one concurrency limit.
type Lease struct {
	App           string
	Rate          ledger.Rate // AlgorithmConcurrency
	ReservationID string
}

// RenewLeases gives each lease its whole life again, by Redis's clock, and adds those that Redis has lost; where a reservation
// was ended by a settlement, nothing. One round trip for up to 256 leases. Idempotent. A lease must not be renewed any more
// once it is released: it would take up room until it lapses. A key of a wrong type is an error after all others are renewed.
func (s *Scripts) RenewLeases(ctx context.Context, leases []Lease) error {
	return inChunks(leases, "renew", func(chunk []Lease) error { return s.renewLeases(ctx, chunk) })
}

// ReleaseLeases ends the leases, so that their room can be given to others at once. One round trip for up to 256. Idempotent.
// A key of a wrong type is an error after all others are released.
func (s *Scripts) ReleaseLeases(ctx context.Context, leases []Lease) error {
	return inChunks(leases, "release", func(chunk []Lease) error {
		_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, set := range leaseSets(chunk) {
				ids := make([]any, len(set.leases))
				for i, lease := range set.leases {
					ids[i] = lease.ReservationID
				}
				pipe.ZRem(ctx, set.key, ids...)
			}
			return nil
		})
		return err
	})
}

// inChunks goes on after an answer that is an error: it is about one key. Without an answer the rest would only wait, too.
func inChunks(leases []Lease, what string, call func(chunk []Lease) error) error {
	var answers []error
	for len(leases) > 0 {
		chunk := leases[:min(leaseChunk, len(leases))]
		leases = leases[len(chunk):]
		err := call(chunk)
		if err == nil {
			continue
		}
		err = fmt.Errorf("%s %d leases: %w", what, len(chunk), err)
		var answer redis.Error
		if !errors.As(err, &answer) {
			return errors.Join(append(answers, err)...)
		}
		answers = append(answers, err)
	}
	return errors.Join(answers...)
}

func (s *Scripts) renewLeases(ctx context.Context, leases []Lease) error {
	sets := leaseSets(leases)
	args := make([]any, 3, 5+len(sets)+3*len(leases))
	for _, set := range sets {
		args = append(args, set.key)
	}
	for _, set := range sets {
		for _, lease := range set.leases {
			args = append(args, reservationKey(lease.App, lease.ReservationID))
		}
	}
	keys := len(args) - 3
	args = append(args, len(sets), s.leaseTTL.Milliseconds())
	for i, set := range sets {
		for _, lease := range set.leases {
			args = append(args, i+1, lease.ReservationID)
		}
	}
	reply, err := s.run(ctx, s.renew, keys, args)
	if err != nil {
		return err
	}
	r := replyReader{reply: reply}
	if status, live := r.integer(), r.integer(); r.err != nil || status != 1 || live > int64(len(leases)) || len(r.reply) > 0 {
		return fmt.Errorf("%w: %v", ErrReply, reply)
	}
	return nil
}

type leaseSet struct {
	key    string
	leases []Lease
}

// leaseSets groups leases by their key, in the order they first appear.
func leaseSets(leases []Lease) []leaseSet {
	index := make(map[string]int)
	var sets []leaseSet
	for _, lease := range leases {
		_, key := rateKeys(lease.App, &lease.Rate)
		i, ok := index[key]
		if !ok {
			i = len(sets)
			index[key] = i
			sets = append(sets, leaseSet{key: key})
		}
		sets[i].leases = append(sets[i].leases, lease)
	}
	return sets
}
