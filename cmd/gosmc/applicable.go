package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/applicable"
	"github.com/gosmc/smc/internal/config"
)

// An applicableReport is the output of applicable --json.
type applicableReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"` // of the end
	*applicable.Report
}

func newApplicableCommand() *cobra.Command {
	var period time.Duration
	var asJSON, all bool
	var file string
	cmd := &cobra.Command{
		Use:   "applicable",
		Short: "Sample the TCP connections of this machine, and say which would gain",
		Long: `Sample all TCP connections of this machine, of all users and network namespaces, and say for
each pair of programs whether it can leave TCP and what it would gain. Nothing is changed, and no
program is asked: the kernel lists connections and their counters.

For each pair there are its connections, those that are open at the end, the mean lifetime of those
that began and ended meanwhile, bytes to the server and from it, the mean size of requests where it can
be seen, the expected gain with its range, and the advice with the obstacle, if there is one: a
static program, Go, musl, policy, users, network namespaces, or connections that are too short. A
recommended order for switching servers on follows.

Gains come from a table. It has shipped values, unless --table names a file that
'gosmc bench --json --only run' has written on this machine. A program that is busy gains at most the
time that it spends in the kernel. The gain is of the most that the pair can do; a program with little
to do gains latency only.

Run it as root while the machine does its usual work: another user sees its own programs only, and no
connections that are shorter than a look.`,
		Example: `  sudo gosmc applicable
  sudo gosmc applicable --for 5m --json | jq '.order'
  gosmc bench --json --only run > bench.json; sudo gosmc applicable --table bench.json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if period <= 0 {
				return usagef("--for has to be above 0, but is %v", period)
			}
			o := applicable.Options{For: period, Table: applicable.Shipped()}
			var err error
			if file != "" {
				if o.Table, err = applicable.ReadTable(file); err != nil {
					return err
				}
			}
			if o.Settings, err = config.Load(); err != nil {
				cmd.PrintErrf("gosmc: parts of the configuration are left out: %s\n", errorText(err))
			}
			report, err := applicable.Sample(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), applicableReport{jsonSchema, time.Now(), report})
			}
			return writeApplicable(cmd.OutOrStdout(), report, all)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().DurationVar(&period, "for", time.Minute, "sample for this `TIME`")
	cmd.Flags().StringVar(&file, "table", "", "take gains from `FILE`, the output of gosmc bench --json")
	cmd.Flags().BoolVar(&all, "all", false, "show pairs with little traffic, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func writeApplicable(w io.Writer, r *applicable.Report, all bool) error {
	fmt.Fprintf(w, "%d TCP connections in %s, %d pairs of programs; gains: %s\n", r.Connections,
		formatNumber(r.Seconds)+" s", len(r.Pairs), printable(r.Table.Source))
	t := table{Columns: []column{{Title: "Server"}, {Title: "Client"}, {Title: "Where"},
		{Title: "Conns", Right: true}, {Title: "Open", Right: true}, {Title: "Life", Right: true},
		{Title: "In", Right: true}, {Title: "Out", Right: true}, {Title: "Request", Right: true},
		{Title: "Gain", Right: true}, {Title: "Advice"}}}
	idle := 0
	for _, p := range r.Pairs {
		if p.Class == applicable.Idle && !all {
			idle++
			continue
		}
		life, request, gain := "n/a", "n/a", "n/a"
		if p.LifetimeSeconds != nil {
			life = formatNumber(*p.LifetimeSeconds) + " s"
			if *p.LifetimeSeconds < 0.01 {
				life = "< 0.01 s"
			}
		}
		if p.RequestBytes != nil {
			request = formatBytes(int64(*p.RequestBytes))
		}
		if p.Gain != nil {
			gain = fmt.Sprintf("%.1fx (%.1f-%.1f)", p.Gain.Expected, p.Gain.Low, p.Gain.High)
		}
		t.Add(fmt.Sprintf("%d %s", p.Port, orNA(p.Server)), orNA(p.Client), p.Where,
			fmt.Sprint(p.Connections), fmt.Sprint(p.Open), life, formatBytes(int64(p.BytesIn)),
			formatBytes(int64(p.BytesOut)), request, gain, p.Advice)
		if p.Obstacle != "" {
			t.Below(printable(p.Obstacle))
		}
	}
	if err := t.Write(w); err != nil {
		return err
	}
	if idle > 0 {
		fmt.Fprintf(w, "Pairs with little traffic, which --all shows: %d\n", idle)
	}
	for i, s := range r.Order {
		fmt.Fprintf(w, "%d. %d %s, for %s: about %.1fx, %.2f processors less\n", i+1, s.Port,
			orNA(s.Server), printable(strings.Join(s.Clients, ", ")), s.Gain, s.Saved)
	}
	if len(r.Order) == 0 {
		fmt.Fprintln(w, "No pair of programs is worth a change.")
	} else {
		fmt.Fprintln(w, "In this order, start server and clients by 'gosmc run', and services by "+
			"'gosmc service enable NAME'.")
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, "Note:", n)
	}
	return nil
}
