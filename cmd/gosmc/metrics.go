package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/agent"
	"github.com/gosmc/smc/internal/doctor"
	"github.com/gosmc/smc/internal/measure"
	"github.com/gosmc/smc/internal/metrics"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/usage"
)

// A metricsReport is the output of metrics --json.
type metricsReport struct {
	Schema  int             `json:"schema"`
	Time    time.Time       `json:"time"`
	Metrics []metricsFamily `json:"metrics"`
}

// A metricsFamily is a metric with its series.
type metricsFamily struct {
	metrics.Family
	Series []metrics.Series `json:"series"`
}

func newMetricsReport(list []metrics.Family) metricsReport {
	r := metricsReport{Schema: jsonSchema, Time: time.Now(), Metrics: []metricsFamily{}}
	for _, f := range list {
		r.Metrics = append(r.Metrics, metricsFamily{f, f.Series()})
	}
	return r
}

// metricsFlags are the flags of metrics.
type metricsFlags struct {
	listen, textfile, dir string
	every                 time.Duration
	openMetrics, json     bool
}

func newMetricsCommand() *cobra.Command {
	var f metricsFlags
	cmd := &cobra.Command{
		Use:   "metrics [flags]",
		Short: "Export metrics to Prometheus: connections, fallbacks, bytes, handshakes, links",
		Long: `Export metrics of all programs on this machine that use gosmc: serve them over HTTP at /metrics with
--listen, keep a file for node_exporter up to date with --textfile, or print them once without either. 'gosmc agent --metrics' does
the same as --listen, in the agent.

Root sees the programs of all users; another user its own. A counter of a program that has ended stays in the
sums as long as this command runs: rates are right although programs start and end. Printed once, or with --every 0, counters
are of the programs that run, and may become less. No label names a peer or a process. docs/operate.md
lists the metrics; alert rules and a dashboard of Grafana are beside it in the packages.

HTTP has neither encryption nor passwords here: listen on 127.0.0.1, or on an address that only Prometheus reaches.`,
		Example: `  gosmc metrics
  sudo gosmc metrics --listen 127.0.0.1:9254
  sudo gosmc metrics --textfile /var/lib/prometheus/node-exporter/gosmc.prom`,
		Args:              noArguments,
		RunE:              func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := cmd.Flags()
	fl.StringVar(&f.listen, "listen", "", "serve metrics at the `address` HOST:PORT or :PORT until interrupted")
	fl.StringVar(&f.textfile, "textfile", "", "write metrics to `FILE`, whose name ends in .prom, until interrupted")
	fl.DurationVar(&f.every, "every", 15*time.Second, "how often --textfile writes, a `time` such as 15s; 0: once")
	fl.BoolVar(&f.openMetrics, "openmetrics", false, "print the format of OpenMetrics, not that of Prometheus 0.0.4")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	fl.StringVar(&f.dir, "dir", "", "look in the run directory `DIR` only")
	completeDirs(cmd, "dir")
	return cmd
}

func (f *metricsFlags) run(cmd *cobra.Command) error {
	const shortest, longest = time.Second, 24 * time.Hour
	given := cmd.Flags().Changed
	switch {
	case given("listen") && f.listen == "": // an empty variable does not mean to print them
		return usagef("--listen: want HOST:PORT or :PORT")
	case given("textfile") && f.textfile == "":
		return usagef("--textfile: want the name of a file, which ends in .prom")
	case f.json && (f.listen != "" || f.textfile != "" || f.openMetrics):
		return usagef("--json is a format of its own, for a single output")
	case f.listen != "" && f.textfile != "":
		return usagef("--listen and --textfile exclude each other")
	case f.every != 0 && (f.every < shortest || f.every > longest):
		return usagef("--every %v: want 0, or a time from %v to a day", f.every, shortest)
	case given("every") && f.textfile == "":
		return usagef("--every is how often --textfile writes; Prometheus decides how often it asks --listen")
	case f.openMetrics && f.listen != "":
		return usagef("--openmetrics is for output; clients of --listen get the format that they ask for")
	case f.openMetrics && f.textfile != "":
		return usagef("--openmetrics is for output; node_exporter reads that of Prometheus")
	case f.textfile != "" && !strings.HasSuffix(f.textfile, ".prom"):
		return usagef("--textfile %q: node_exporter reads files whose names end in .prom only", f.textfile)
	}
	ctx := cmd.Context()
	c := newCollector(f.dir, defaultAgentSocket())
	switch {
	case f.listen != "":
		l, err := listenMetrics(ctx, f.listen)
		if err != nil {
			return err
		}
		cmd.PrintErrf("gosmc: metrics at http://%s%s\n", l.Addr(), metrics.Path)
		f.warn(cmd)
		return c.Serve(ctx, l)
	case f.textfile != "" && f.every == 0:
		if err := c.WriteFile(ctx, f.textfile); err != nil {
			return textfileError(err)
		}
		return f.missing()
	case f.textfile != "":
		f.warn(cmd)
		return textfileError(c.WriteFiles(ctx, f.textfile, f.every, func(err error) {
			cmd.PrintErrf("gosmc: %s; tried again every %v\n", errorText(textfileError(err)), f.every)
		}))
	}
	list, err := c.Families(ctx)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case f.json:
		err = writeJSON(out, newMetricsReport(list))
	case f.openMetrics:
		_, err = out.Write(metrics.Append(nil, list, metrics.OpenMetrics))
	default:
		_, err = out.Write(metrics.Append(nil, list, metrics.Prometheus))
	}
	return errors.Join(err, f.missing())
}

// missing is the error if the run directory that somebody has named is not there: zeros do not mean
// that nobody uses it.
func (f *metricsFlags) missing() error {
	if e := survey.Missing(f.dir); e != nil {
		return &survey.MissingError{Path: e.Path, Text: e.Text}
	}
	return nil
}

// warn tells the same to somebody who exports until interrupted: the directory may come.
func (f *metricsFlags) warn(cmd *cobra.Command) {
	if err := f.missing(); err != nil {
		cmd.PrintErrln("gosmc:", errorText(err))
	}
}

// textfileError adds the remedy to an error of --textfile.
func textfileError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--textfile: %w: make the directory first", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("--textfile: %w: gosmc cannot write in the directory", err)
	case err != nil && !errors.Is(err, context.Canceled):
		return fmt.Errorf("--textfile: %w", err)
	}
	return err
}

// listenMetrics opens the socket for metrics.
func listenMetrics(ctx context.Context, address string) (net.Listener, error) {
	if err := usage.CheckListen(ctx, address); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return l, nil
}

// newCollector collects metrics of the programs with a run directory, or of all if dir is empty, and of the
// agent with a socket.
func newCollector(dir, socket string) *metrics.Collector {
	return metrics.New(func(ctx context.Context) metrics.Snapshot { return takeSnapshot(ctx, dir, socket) })
}

// takeSnapshot asks all programs.
func takeSnapshot(ctx context.Context, dir, socket string) metrics.Snapshot {
	start := time.Now()
	s := metrics.Snapshot{Answers: survey.Ask(ctx, dir), Version: measure.ModuleVersion()}
	r := newSSReport(&s.Answers, true, false)
	r.AddMoved(dir, s.Answers.NetNS)
	s.Connections = r.Connections
	s.Programs = doctor.Programs(inspect.Processes(), dir)
	s.Agent = askAgent(ctx, socket)
	if dir == "" {
		s.AddKernel()
	}
	s.Took = time.Since(start)
	return s
}

// askAgent asks the agent with a socket for its status. It returns nil if none answers.
func askAgent(ctx context.Context, socket string) *metrics.AgentStatus {
	if _, err := os.Stat(filepath.Clean(socket)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	answer, extra, err := port.Ask(ctx, []string{socket}, port.Request{Request: "status"})
	if extra != nil {
		extra.Close()
	}
	var status agent.Status
	if err != nil || json.Unmarshal(answer.Status, &status) != nil {
		return nil
	}
	s := &metrics.AgentStatus{Ports: len(status.Ports)}
	for _, p := range status.Ports {
		s.Sockets += len(p.Sockets)
	}
	return s
}
