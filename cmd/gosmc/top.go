package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/top"
)

// topFlags are the flags of top.
type topFlags struct {
	gather gatherFlags
	once   bool
	filter inventory.Filter
	view   top.View
}

func newTopCommand() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top [flags] [FILTER...]",
		Short: "Show the busiest services: connections by mode, bytes, new connections, reasons for TCP",
		Long: `Show the services of this machine whose connections gosmc handles, the busiest first, again and again: connections by
mode, bytes and new connections for each second, writes that found a full buffer, wakeups, and the main reasons of
connections that are TCP. Numbers that nobody counts are n/a. A service lacks the last bytes of connections that have ended since the last look.
Connections that begin and end between two looks are not seen.

On a terminal, unless TERM is dumb or not set, the view stays in place. Keys choose the order: b bytes, c connections, n new connections, t TCP, f full
buffers, w wakeups. p shows programs in place of services, where each end of a connection counts; s shows services; q ends. After /
a FILTER can be typed. Ctrl-Z stops, and fg goes on.
In a pipe each interval is a table, or with --json an object on a line.

A FILTER chooses connections, in the words of 'gosmc ss'. Root sees the programs of all users.`,
		Example: `  sudo gosmc top
  gosmc top --once
  gosmc top --by program --sort tcp -d 5s
  gosmc top sport = :6379
  gosmc top program redis
  gosmc top --json -n 10 | jq -c '.activity[] | [.command, .modes]'`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			if f.filter, err = inventory.ParseFilter(args); err != nil {
				return usagef("%w", err)
			}
			f.view.Words = strings.Join(args, " ")
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"state", "src", "dst", "sport", "dport", "mode", "program"},
			cobra.ShellCompDirectiveNoFileComp),
	}
	f.gather.register(cmd)
	var by string
	fl := cmd.Flags()
	f.view.Delay = 2 * time.Second
	fl.VarP((*delay)(&f.view.Delay), "delay", "d",
		"the `time` between two looks, such as 500ms; a number has seconds")
	fl.IntVarP(&f.view.Count, "count", "n", 0, "end after this many `intervals`; 0: never")
	fl.BoolVar(&f.once, "once", false, "end after one interval, as with --count 1")
	fl.StringVar(&by, "by", "service", "`what` a line is of: service, program")
	fl.BoolVarP(&f.view.Plain, "batch", "b", false, "print a table for each interval on a terminal, too")
	fl.StringVarP(&f.view.Sort, "sort", "o", "bytes", "`order`: bytes, connections, new, tcp, full, wakeups")
	cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]cobra.Completion{"service", "program"}, cobra.ShellCompDirectiveNoFileComp))
	orders := top.Orders()
	cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case by == "pid" || by == "process":
			by = "program"
		case by == "port":
			by = "service"
		}
		switch {
		case by != "service" && by != "program":
			return usagef("--by %q: want service or program", by)
		case !slices.Contains(orders, f.view.Sort):
			return usagef("--sort %q: want bytes, connections, new, tcp, full or wakeups", f.view.Sort)
		case f.view.Delay < 100*time.Millisecond || f.view.Delay > 24*time.Hour:
			return usagef("--delay %v: want a time from 100ms to a day", f.view.Delay)
		case f.view.Count < 0:
			return usagef("--count %d: want a number from 0", f.view.Count)
		}
		f.view.ByProgram = by == "program"
		if f.once {
			f.view.Count = 1
		}
		f.view.JSON, f.view.Sample = f.gather.json, f.sample
		f.view.Filter = f.choose
		return f.view.Run(cmd.Context(), cmd.OutOrStdout(), cmd.InOrStdin())
	}
	return cmd
}

// A delay is a time between two looks. A number alone has seconds.
type delay time.Duration

func (d *delay) String() string { return time.Duration(*d).String() }

func (d *delay) Type() string { return "duration" }

func (d *delay) Set(s string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		s += "s"
	}
	v, err := time.ParseDuration(s)
	if err == nil && v < 0 {
		return errors.New("want no negative time")
	}
	*d = delay(v)
	return err
}

// choose puts another filter in force.
func (f *topFlags) choose(words string) error {
	filter, err := inventory.ParseFilter(strings.Fields(words))
	if err == nil {
		f.filter = filter
	}
	return err
}

// sample looks once.
func (f *topFlags) sample(ctx context.Context) (*inventory.Sample, survey.Answers) {
	g := f.gather.gather(ctx)
	r := newSSReport(&g, true, false)
	r.AddMoved(f.gather.dir, g.NetNS)
	return inventory.NewSample(&g, slices.DeleteFunc(r.Connections,
		func(c inventory.Conn) bool { return !f.filter.Connection(&c) })), g
}
