package main

import (
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
	period := time.Minute
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
			return report.Write(cmd.OutOrStdout(), all)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().Var((*delay)(&period), "for",
		"sample for this `TIME`, such as 90s or 5m; a number has seconds")
	cmd.Flags().StringVar(&file, "table", "", "take gains from `FILE`, the output of gosmc bench --json")
	cmd.Flags().BoolVar(&all, "all", false, "show pairs with little traffic, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
