package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// profile takes processor profiles of gateway, settler and NATS under the heaviest load of each mode, in points of their own: the
// measured ones run without. The metrics that the first two then show are put beside them.
func (s *system) profile(ctx context.Context, o Options, out io.Writer) error {
	if err := os.MkdirAll(o.Profile, 0o755); err != nil {
		return err
	}
	if err := s.setSim(ctx, 0); err != nil {
		return err
	}
	for _, streamed := range o.Modes {
		l := Load{Streamed: streamed, Connections: max(64, o.Connections[len(o.Connections)-1])}
		mode := "plain"
		if streamed {
			mode = "streamed"
		}
		fmt.Fprintf(out, "taking profiles: %s\n", l)
		var group errgroup.Group
		for part, address := range s.debug {
			file := filepath.Join(o.Profile, part+"-"+mode+".pprof")
			group.Go(func() error { return download(ctx, profileURL(address, o.Duration), file) })
		}
		_, failure := run(ctx, s.gateway, s.callers, l, o.Duration+time.Second)
		if failure != nil {
			fmt.Fprintf(out, "while profiles were taken, requests failed: %v\n", failure)
		}
		if err := errors.Join(group.Wait(), s.quiet(ctx)); err != nil {
			return err
		}
		for part, address := range s.admin {
			if err := download(ctx, "http://"+address+"/metrics", filepath.Join(o.Profile, part+"-"+mode+".metrics")); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(out, "profiles are in "+o.Profile)
	return nil
}

func profileURL(address string, d time.Duration) string {
	return fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", address, max(1, int(d.Seconds())))
}

func download(ctx context.Context, url, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, response.Body)
	return errors.Join(err, file.Close())
}
