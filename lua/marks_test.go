package lua

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Among thousands of apps those are found that have lost their mark: not one that never had any.
func TestLostMarks(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	apps := make([]string, 2*appsAtOnce+500)
	for i := range apps {
		apps[i] = fmt.Sprintf("app-%04d", i)
	}
	joined := append([]string{"never listed"}, apps[:2*appsAtOnce]...)
	require.NoError(t, s.JoinAll(ctx, joined))
	require.NoError(t, s.Join(ctx, apps[len(apps)-1])) // with its first request
	s.open()
	for _, app := range joined[1:] {
		require.NoError(t, s.redis.Set(ctx, markKey(app), generation+" writer", 0).Err())
	}
	lost, err := s.Lost(ctx, apps, generation)
	require.NoError(t, err)
	require.Equal(t, []string{apps[len(apps)-1]}, lost, "its mark is not there yet")

	require.NoError(t, s.redis.Del(ctx, markKey(apps[0]), markKey(apps[appsAtOnce])).Err())
	require.NoError(t, s.redis.Set(ctx, markKey(apps[1]), "g0 writer", 0).Err())
	lost, err = s.Lost(ctx, apps, generation)
	require.NoError(t, err)
	require.Equal(t, []string{apps[0], apps[1], apps[appsAtOnce], apps[len(apps)-1]}, lost)

	require.NoError(t, s.redis.Del(ctx, joinedKey()).Err())
	lost, err = s.Lost(ctx, apps, generation)
	require.NoError(t, err)
	require.Len(t, lost, 3+500, "without the list nobody knows who had one")

	none, err := s.Lost(ctx, nil, generation)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, s.redis.Set(ctx, joinedKey(), "not a list", 0).Err())
	_, err = s.Lost(ctx, apps, generation)
	require.ErrorContains(t, err, "WRONGTYPE")
	require.NoError(t, s.redis.Del(ctx, joinedKey(), markKey(apps[7])).Err())
	require.NoError(t, s.redis.SAdd(ctx, markKey(apps[7]), "not a mark").Err())
	_, err = s.Lost(ctx, apps, generation)
	require.ErrorContains(t, err, "read mark of "+apps[7])
}
