package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/agent"
	"github.com/gosmc/smc/internal/measure"
	"github.com/gosmc/smc/internal/metrics"
	"github.com/gosmc/smc/internal/port"
)

// agentFlags are the flags of the verb agent.
type agentFlags struct {
	socket, cgroup, pins string
	users, groups        []string
	everyone             bool
	noOption, noPort     bool
	noPairing            bool
	noIntroduce          bool
	introduce            []string
	status, detach, json bool
	metrics              string
}

// An agentReport is the output of agent --status --json.
type agentReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	agent.Status
}

func newAgentCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent [flags]",
		Short: "Put TCP option 254 on segments, and share UDP port 4791, for the programs of this machine",
		Long: `Serve, as root, what programs cannot do for themselves, until interrupted:

- TCP option 254, by which peers on other hosts learn that a program speaks SMC. Programs in the kernel (eBPF) put it
  on the SYN and SYN-ACK of sockets that ask for it, and of no others. Any program may ask.
- Pairing tokens, in a second option of the kind, by which the kernel says which two sockets of this machine are one
  connection, across users, network namespaces and translated addresses. Any program may ask.
- Introductions: two programs that hold the two ends of a connection get to know each other, and move it into memory,
  whatever their users and containers are. --introduce says which users; their own policies hold besides.
- UDP port 4791, which belongs to one socket of an address. Every program that asks gets one of its own, and its
  packets come straight to it. Root may ask, and those that --user, --group and --everyone let in.

Programs go on when the agent ends. What it has attached stays, and the next agent takes it over, without a connection
lost; that is also how to change to another version. --detach takes the programs in the kernel away: from then on
new connections to other hosts are TCP.

Exit status: 0 when interrupted, 1 if something is missing, which it names; with --status, 1 if no agent answers.`,
		Example: `  gosmc agent --group smc
  gosmc agent --status
  gosmc agent --status --json | jq .option.counters
  gosmc agent --detach`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.status && f.detach:
				return usagef("--status and --detach exclude each other")
			case f.noOption && (f.noPairing || f.noIntroduce) && f.noPort:
				return usagef("with --no-option, --no-pairing and --no-port there is nothing to do")
			case cmd.Flags().Changed("metrics") && (f.metrics == "" || f.status || f.detach):
				return usagef("--metrics: want HOST:PORT or :PORT, of an agent that serves")
			case len(f.introduce) == 0: // an empty variable
				return usagef("--introduce: want any, same, or users; --no-introduce introduces nobody")
			case f.status:
				return f.showStatus(cmd)
			case f.detach:
				return f.runDetach(cmd)
			}
			return f.serve(cmd)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := cmd.Flags()
	fl.StringVar(&f.socket, "socket", defaultAgentSocket(), "the Unix socket on which programs ask; "+port.EnvSocket+" says where they look for it")
	fl.StringVar(&f.cgroup, "cgroup", "", "the control group whose programs may ask for the option (default the root of them all)")
	fl.StringVar(&f.pins, "pins", bpf.DefaultPins, "where the programs are pinned, in a file system of the type bpf")
	fl.StringSliceVar(&f.users, "user", nil, "`users` who may share the port, by name or number")
	fl.StringSliceVar(&f.groups, "group", nil, "`groups` whose members may")
	fl.BoolVar(&f.everyone, "everyone", false, "every user may")
	fl.BoolVar(&f.noOption, "no-option", false, "do not attach programs for TCP option 254")
	fl.BoolVar(&f.noIntroduce, "no-introduce", false, "do not introduce programs to each other, and pair no sockets")
	fl.StringSliceVar(&f.introduce, "introduce", []string{"any"}, "`users` whose programs are introduced to those of others: any, same, or names and numbers, @ before a group")
	fl.BoolVar(&f.noPairing, "no-pairing", false, "do not pair sockets")
	fl.BoolVar(&f.noPort, "no-port", false, "do not share ports")
	fl.StringVar(&f.metrics, "metrics", "", "serve metrics of all programs at the `address` HOST:PORT, as 'gosmc metrics --listen'")
	fl.BoolVar(&f.status, "status", false, "show what the agent at the socket does, and end")
	fl.BoolVar(&f.detach, "detach", false, "take the programs for TCP option 254 and pairing away, and end")
	fl.BoolVar(&f.json, "json", false, "log, or show the status, as JSON")
	return cmd
}

// defaultAgentSocket is where programs look first, as far as the environment says.
func defaultAgentSocket() string {
	if path := os.Getenv(port.EnvSocket); path != "" {
		return path
	}
	return port.SystemSocket
}

func (f *agentFlags) serve(cmd *cobra.Command) error {
	policy, err := agent.ParsePolicy(f.users, f.groups, f.everyone)
	if err != nil {
		return err
	}
	users, err := agent.ParseIntroduced(f.introduce)
	if err != nil {
		return err
	}
	var handler slog.Handler = slog.NewTextHandler(cmd.ErrOrStderr(), nil)
	if f.json {
		handler = slog.NewJSONHandler(cmd.ErrOrStderr(), nil)
	}
	logger := slog.New(handler)
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	if f.metrics != "" {
		l, err := listenMetrics(ctx, f.metrics)
		if err != nil {
			return err
		}
		logger.Info("metrics are served", "address", l.Addr().String(), "path", metrics.Path)
		served := make(chan struct{})
		go func() {
			defer close(served)
			if err := newCollector("", f.socket).Serve(ctx, l); err != nil {
				logger.Error("metrics are not served any more", "err", err)
			}
		}()
		defer func() { stop(); <-served }()
	}
	return agent.Serve(ctx, agent.Config{
		Version: measure.ModuleVersion(), Socket: f.socket, Cgroup: f.cgroup, Pins: f.pins, NoOption: f.noOption, NoPairing: f.noPairing || f.noIntroduce, NoPort: f.noPort, Policy: policy, Logger: logger,
		NoIntroduce: f.noIntroduce, Introduce: users, Keeper: []string{"/proc/self/exe", agent.KeeperVerb},
	})
}

func (f *agentFlags) runDetach(cmd *cobra.Command) error {
	if _, err := os.Stat(f.pins); errors.Is(err, os.ErrNotExist) {
		return nil // nothing was ever attached
	} else if err != nil {
		return err
	}
	return bpf.DetachOption(f.pins)
}

func (f *agentFlags) showStatus(cmd *cobra.Command) error {
	r := agentReport{Schema: jsonSchema, Time: time.Now()}
	answer, extra, err := port.Ask(cmd.Context(), []string{f.socket}, port.Request{Request: "status"})
	if extra != nil {
		extra.Close()
	}
	if errors.Is(err, port.ErrNoAgent) {
		err = fmt.Errorf("%w; 'sudo systemctl start gosmc-agent' starts the one of a package", err)
	}
	if err != nil {
		return agentError(f.socket, err)
	}
	if err := json.Unmarshal(answer.Status, &r.Status); err != nil {
		return fmt.Errorf("status of the agent: %w", err)
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	return r.Write(cmd.OutOrStdout())
}

func agentError(socket string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w", socket, err)
}
