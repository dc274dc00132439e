package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

func newHealth() *cobra.Command {
	return &cobra.Command{
		Use:   "health",
		Short: "Ask the service on TOLLGATE_ADMIN whether it is ready: exit code 0 or 1, for container health checks",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var config Listeners
			if err := readEnv(&config); err != nil {
				return err
			}
			_, port, err := net.SplitHostPort(config.Admin)
			if err != nil {
				return fmt.Errorf("TOLLGATE_ADMIN: %w", err)
			}
			return askReady(c.Context(), "http://"+net.JoinHostPort("127.0.0.1", port)+"/readyz")
		},
	}
}

func askReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("health: no answer in time"))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", text)
	}
	return err
}
