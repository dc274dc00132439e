package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"tollgate/internal/bench"
	"tollgate/internal/dev/services"
)

func newBench() *cobra.Command {
	return group("bench", "Measure what the README says about speed",
		newBenchGateway(), newBenchAdmission(), newBenchLimits(), newBenchIsolation(), newBenchUsers(), newBenchSettle(), newBenchMemory(), newBenchNATS(), newBenchProxy())
}

func newBenchGateway() *cobra.Command {
	options := bench.Options{Warmup: time.Second}
	var quick bool
	var modes []string
	var jsonFile string
	c := &cobra.Command{
		Use:   "gateway",
		Short: "Compare provider, bare proxy and Tollgate in one run: speed, processor time of every process, memory",
		Long: "Starts Postgres, Redis, NATS, a provider simulator, a bare proxy, settler and gateway on loopback, each as a process of\n" +
			"its own, measures every point and stops everything. The whole takes about (duration + 2 s) × 36; --quick one minute.\n" +
			"The exit code is 1 when an answer was not whole or the ledger is broken afterwards; goals that are not met are told only.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if quick {
				takeQuick(c, &options)
			}
			for _, mode := range modes {
				switch mode {
				case "plain", "streamed":
					options.Modes = append(options.Modes, mode == "streamed")
				default:
					return fmt.Errorf("--mode: %q is neither plain nor streamed", mode)
				}
			}
			if err := options.Validate(); err != nil {
				return err
			}
			return runBenchGateway(c, options, jsonFile)
		},
	}
	f := c.Flags()
	f.DurationVar(&options.Duration, "duration", 5*time.Second, "of each point, after a second of warm-up")
	f.BoolVar(&quick, "quick", false, "a look in about a minute: 1s a point, 1 and 64 connections")
	f.IntSliceVar(&options.Connections, "concurrency", []int{1, 16, 64}, "connections side by side")
	f.DurationSliceVar(&options.Upstream, "upstream", []time.Duration{0, 50 * time.Millisecond}, "how long the provider waits")
	f.StringSliceVar(&modes, "mode", []string{"plain", "streamed"}, "kinds of requests")
	f.IntVar(&options.Apps, "apps", 4, "apps that the keys belong to")
	f.IntVar(&options.Keys, "keys", 16, "keys, each with an end user, that the connections use in turn")
	f.StringArrayVar(&options.Env, "env", nil, "NAME=VALUE for the environment of gateway and settler, to compare settings")
	f.StringVar(&jsonFile, "json", "", "file for the figures")
	f.StringVar(&options.Raw, "raw", "", "file for every single request (gzipped CSV)")
	f.StringVar(&options.Profile, "profile", "", "folder for processor profiles of gateway, settler and NATS under load, and their metrics")
	return c
}

// takeQuick sets what --quick stands for where no flag says otherwise.
func takeQuick(c *cobra.Command, o *bench.Options) {
	if !c.Flags().Changed("duration") {
		o.Duration = time.Second
	}
	if !c.Flags().Changed("concurrency") {
		o.Connections = []int{1, 64}
	}
	o.Warmup = 300 * time.Millisecond
}

func runBenchGateway(c *cobra.Command, options bench.Options, jsonFile string) error {
	result, err := bench.Gateway(c.Context(), options, c.ErrOrStderr())
	if result == nil {
		return err
	}
	err = errors.Join(err, result.Print(c.OutOrStdout()))
	if jsonFile != "" {
		text, encodeErr := json.MarshalIndent(struct {
			*bench.Result
			Goals []bench.Goal `json:"goals"`
		}{result, result.Goals()}, "", "  ")
		if encodeErr == nil {
			encodeErr = os.WriteFile(jsonFile, append(text, '\n'), 0o644)
		}
		err = errors.Join(err, encodeErr)
	}
	if n, first := result.Failed(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d requests failed, the first: %s", n, first))
	}
	return err
}

// newBenchNATS runs NATS as a process of its own, so that its processor time is told apart.
func newBenchNATS() *cobra.Command {
	var store, address string
	c := &cobra.Command{
		Use: "nats", Short: "Serve NATS with JetStream (a part of bench gateway)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, text, err := net.SplitHostPort(address)
			if err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			port, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			stopPprof, err := servePprof(slog.Default())
			if err != nil {
				return err
			}
			defer stopPprof()
			server, err := services.StartNATS(c.Context(), services.NATSConfig{StoreDir: store, Port: port, PortFlag: "--listen"})
			if err != nil {
				return err
			}
			<-c.Context().Done()
			return server.Stop(context.WithoutCancel(c.Context()))
		},
	}
	c.Flags().StringVar(&store, "store", "", "folder of the streams")
	c.Flags().StringVar(&address, "listen", "127.0.0.1:4222", "address")
	return c
}

// newBenchProxy runs the bare proxy.
func newBenchProxy() *cobra.Command {
	var address, upstream string
	c := &cobra.Command{
		Use: "proxy", Short: "Serve a bare reverse proxy (a part of bench gateway)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			listener, err := listen(address, "--listen")
			if err != nil {
				return err
			}
			return bench.ServeProxy(c.Context(), listener, upstream)
		},
	}
	c.Flags().StringVar(&address, "listen", "127.0.0.1:8091", "address")
	c.Flags().StringVar(&upstream, "upstream", "http://127.0.0.1:8090", "where requests go")
	return c
}
