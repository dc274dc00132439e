package lua

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// outages begin the answers of a server that serves nobody for now, whatever keys are asked for.
var outages = []string{
	"OOM", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "BUSY ", "NOAUTH", "WRONGPASS", "NOPERM",
	"max number of clients",
}

// Outage reports whether err says that Redis as a whole cannot be asked: no connection, no answer, or an answer that any call
// would get, such as OOM. It is false for errors about the keys of one call (WRONGTYPE, ErrReply), which say nothing about
// other calls, and for ErrCall.
func Outage(err error) bool {
	var answered redis.Error
	switch {
	case err == nil, errors.Is(err, ErrCall), errors.Is(err, ErrReply):
		return false
	case !errors.As(err, &answered):
		return true
	}
	for _, outage := range outages {
		if redis.HasErrorPrefix(err, outage) {
			return true
		}
	}
	return false
}
