package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/bench"
	"github.com/gosmc/smc/internal/bench/render"
	"github.com/gosmc/smc/internal/exit"
)

func newBenchCommand() *cobra.Command {
	var only []string
	var quick, asJSON, check, list bool
	cmd := &cobra.Command{
		Use:   "bench [flags]",
		Short: "Measure SMC and RDMA beside TCP, UDP, Unix sockets and bare shared memory",
		Long: `Measure the same work over several transports, between two processes of this machine. The
transports take turns; every value is the median of the rounds. Beside each ratio stand the value that
it must reach (MUST) and the one that it should (AIM).

  tcp     Go's net package over 127.0.0.1, no delay
  unix    Go's net package over a Unix stream socket
  smc-d   this library, default settings, shared memory
  smc     the same where it may also be TCP, as short connections are
  smc-r   the same between two network namespaces, in the smcr benchmarks: RDMA over UDP
  limit   two copies through bare shared memory, both sides spinning: what the machine can do

The rdma benchmarks measure RDMA in this library's software, RoCEv2 over UDP, between two network
namespaces that a veth pair joins. Where such cannot be made, not even in a user namespace, they use two
addresses of the loopback interface, and a NOTE says so.

  rdma      reliable connections, as SMC-R uses them: a WRITE and a SEND behind it
  lossless  the same, in the benchmark in which rdma loses packets
  N qps     rdma-many: so many of them at a time
  udp       rdma-write: packets of the same size, made, checked and put in place in the same way, with no
            protocol; rdma-pingpong: package net
  tcp       package net

The smcr benchmarks do the same for connections of this library over SMC-R, smc-r, beside tcp; those of several links, beside another number of them.

  N link    SMC-R over so many links
  N links   SMC-R over so many links

The run benchmarks have programs that know nothing of this library, redis-benchmark and the like, which have to be installed, and a small
one of our own: bare, tcp, and beside it under 'gosmc run'. "run get" is what the row measures, GET, by way of run. CPU each is the processor time of
all processes for one operation, that of the supervisors included.

  run     programs as they are, both ends started by 'gosmc run'

The pod benchmarks are for root: two containers on a bridge, where the client connects to a service address, which the
kernel translates (DNAT and masquerading).

The go benchmarks have released servers in Go. They run only if --only names them: they fetch the programs from the
module proxy and compile them, which takes some minutes at first, into the user's cache directory.

  go      the programs compiled by 'gosmc go build', beside tcp, compiled by 'go build'

The full run takes some ten minutes, --quick some four. Results of a busy machine are worth little:
look at the load average in the heading.`,
		Example: `  gosmc bench
  gosmc bench --quick --only bulk-64k,cpu
  gosmc bench --only rdma-write-1500,rdma-pingpong-64
  sudo gosmc bench --only pod
  gosmc bench --only go
  gosmc bench --check --json > result.json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("only") && len(only) == 0 { // an empty variable does not mean all of them
				return usagef("--only: want the names of benchmarks")
			}
			chosen, err := bench.Choose(only)
			if err != nil {
				return exit.With(exit.Usage, err)
			}
			if list {
				if len(only) == 0 {
					chosen = bench.Rows()
				}
				return listBenchmarks(cmd.OutOrStdout(), chosen, asJSON)
			}
			plan := bench.Full
			if quick {
				plan = bench.Quick
			}
			p := newProgress(cmd.ErrOrStderr(), asJSON)
			r, err := bench.Run(cmd.Context(), chosen, plan, p.Show)
			p.Done()
			if err != nil {
				return err
			}
			return reportBench(cmd.OutOrStdout(), r, asJSON, check)
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "measure, or list, only the benchmarks with these `NAMES`, or first words of names, separated by commas")
	cmd.Flags().BoolVar(&quick, "quick", false, "fewer and shorter rounds")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&check, "check", false, "fail if a must is missed, and say which")
	cmd.Flags().BoolVar(&list, "list", false, "list the benchmarks and measure nothing; with --json also what they must reach")
	cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(bench.Names(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// A benchList is the output of bench --list --json.
type benchList struct {
	Schema     int            `json:"schema"`
	Benchmarks []render.Entry `json:"benchmarks"`
}

func listBenchmarks(w io.Writer, chosen []*bench.Row, asJSON bool) error {
	if asJSON {
		return writeJSON(w, benchList{jsonSchema, render.Entries(chosen)})
	}
	return render.WriteRows(w, chosen)
}

// reportBench prints a report. With check a missed must is an error.
func reportBench(w io.Writer, r *bench.Report, asJSON, check bool) error {
	r.Schema = jsonSchema
	var err error
	if asJSON {
		err = writeJSON(w, r)
	} else {
		err = render.Write(w, r)
	}
	if nothing := r.Nothing(); err == nil && nothing != "" {
		return fmt.Errorf("nothing was measured: %s", nothing)
	}
	if err == nil && check && len(r.MustMissed) > 0 {
		err = fmt.Errorf("must missed: %s", strings.Join(r.MustMissed, "; "))
	}
	return err
}
