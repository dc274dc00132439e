package system

import (
	"context"
	"fmt"
	"regexp"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
	"tollgate/lua"
)

// AwaitCounters returns once Redis has the counters of the apps, and every gateway that runs judges by them. Without it the first
// request of an app waits for them, and is refused where a settler takes longer than a few seconds.
func (s *System) AwaitCounters(apps ...string) {
	s.t.Helper()
	for _, slot := range append([]string{lua.SharedSlot}, apps...) {
		s.ask(event.RebuildSubject, slot, "ok")
	}
	control, err := s.JetStream.KeyValue(s.t.Context(), event.ControlBucket)
	require.NoError(s.t, err)
	generation, err := control.Get(s.t.Context(), event.GenerationKey)
	require.NoError(s.t, err)
	for _, g := range s.Gateways {
		select {
		case <-g.Done():
		default:
			s.ask(event.BarrierSubject(s.Producer(g)), string(generation.Value()), event.BarrierDone)
		}
	}
}

// ask repeats a question until it has the answer.
func (s *System) ask(subject, question, want string) {
	s.t.Helper()
	s.Eventually(Patience, subject, func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), Patience)
		defer cancel()
		reply, err := s.JetStream.Conn().RequestWithContext(ctx, subject, []byte(question))
		if err == nil && string(reply.Data) != want {
			err = fmt.Errorf("%q", reply.Data)
		}
		return err
	})
}

var servingAs = regexp.MustCompile(`"gateway is serving".*"producer":"([^"]+)"`)

// Producer is the name of a gateway's events, as it says when it begins to serve.
func (s *System) Producer(g *Part) string {
	s.t.Helper()
	g.WaitLog("gateway is serving")
	said := servingAs.FindStringSubmatch(g.Log())
	require.NotNil(s.t, said, "%s does not say who it is", g.Name)
	return said[1]
}
