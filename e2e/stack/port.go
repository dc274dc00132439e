package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// ports are those that were handed out.
var ports struct {
	mu   sync.Mutex
	used map[int]bool
}

// FreeAddr returns a host:port on loopback that nobody listens on, outside the range from which outgoing connections take
// theirs, and each time another: what is killed and started again must find its port free.
func FreeAddr(t testing.TB) string {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func freePort() (int, error) {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.used == nil {
		ports.used = map[int]bool{}
	}
	for range 1000 {
		port := 12000 + rand.IntN(20000)
		if ports.used[port] {
			continue
		}
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		ports.used[port] = true
		return port, nil
	}
	return 0, errors.New("no free port")
}
