package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// A benchmark is one line of measurements: the same work over several transports.
// Each file bench_*.go that defines one says what the work is.
type benchmark struct {
	name     string
	title    string // what is measured, in a few words
	unit     string
	lower    bool     // the lower value is the better one
	subjects []string // transports, in the order in which they are measured and shown
	settings workSettings
	bounds   []bound

	// veth is the MTU of a veth pair between two network namespaces in which the workers
	// run; 0: they run side by side.
	veth int

	// work runs in the two worker processes; workOver has what they do instead over some
	// transports. There is neither in a benchmark that looks at the rounds of another one, called from.
	work     *workload
	workOver map[string]*workload
	from     string

	// value makes the number of one round.
	value func(roundResult) float64
}

// workload is what the workers do over a transport; nil if there is nothing to do.
func (b *benchmark) workload(transport string) *workload {
	if w := b.workOver[transport]; w != nil {
		return w
	}
	return b.work
}

// workSettings go to the workers.
type workSettings struct {
	NoSpin bool `json:"no_spin"` // Config.Spin is negative on both sides
	Size   int  `json:"size"`    // bytes of one message, write or body
	Conns  int  `json:"conns"`   // connections at a time
	MaxOps int  `json:"max_ops"` // a round ends when so many are done; 0: never
	Reads  int  `json:"reads"`   // bytes that the reader asks for at a time
	Packet int  `json:"packet"`  // bytes of payload in a packet, where that is ours to say
}

// A bound compares two transports of a benchmark: the ratio of their medians, subject to against.
type bound struct {
	subject string
	against string
	must    float64 // 0: none
	aim     float64 // 0: none
}

// benchmarks is the registry, in the order in which they run.
var benchmarks = []*benchmark{
	benchPingPong, benchPingPongNoSpin,
	benchBulk64K, benchBulk1M, benchStream100,
	benchConnect, benchHTTP,
	benchCPU,
	benchRDMAWrite1500, benchRDMAWrite9000, benchRDMAPingPong, benchRDMALoss,
}

func findBenchmark(name string) *benchmark {
	i := slices.IndexFunc(benchmarks, func(b *benchmark) bool { return b.name == name })
	if i < 0 {
		return nil
	}
	return benchmarks[i]
}

func benchmarkNames() []string {
	var names []string
	for _, b := range benchmarks {
		names = append(names, b.name)
	}
	return names
}

// A benchPlan says how long to measure.
type benchPlan struct {
	rounds  int
	warmUp  time.Duration
	measure time.Duration
}

var (
	fullPlan  = benchPlan{rounds: 5, warmUp: 200 * time.Millisecond, measure: time.Second}
	quickPlan = benchPlan{rounds: 3, warmUp: 100 * time.Millisecond, measure: 300 * time.Millisecond}
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
  limit   two copies through bare shared memory, both sides spinning: what the machine can do

The rdma benchmarks measure RDMA in this library's software, RoCEv2 over UDP, between two network
namespaces that a veth pair joins. Where such cannot be made, not even in a user namespace, they use two
addresses of the loopback interface, and a NOTE says so.

  rdma      reliable connections, as SMC-R uses them: a WRITE and a SEND behind it
  lossless  the same, in the benchmark in which rdma loses packets
  udp       rdma-write: packets of the same size, made, checked and put in place in the same way, with no
            protocol; rdma-pingpong: package net
  tcp       package net

The full run takes some five minutes, --quick some one and a half. Results of a busy machine are worth little:
look at the load average in the heading.`,
		Example: `  gosmc bench
  gosmc bench --quick --only bulk-64k,cpu
  gosmc bench --only rdma-write-1500,rdma-pingpong-64
  gosmc bench --check --json > result.json`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				return listBenchmarks(cmd)
			}
			chosen, err := chooseBenchmarks(only)
			if err != nil {
				return err
			}
			plan := fullPlan
			if quick {
				plan = quickPlan
			}
			return runBench(cmd, chosen, plan, quick, asJSON, check)
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "measure only these benchmarks, separated by commas")
	cmd.Flags().BoolVar(&quick, "quick", false, "fewer and shorter rounds")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&check, "check", false, "fail if a must is missed, and say which")
	cmd.Flags().BoolVar(&list, "list", false, "list the benchmarks and measure nothing")
	cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(benchmarkNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// chooseBenchmarks finds the named benchmarks, in the order of the registry; all, if none is named.
func chooseBenchmarks(names []string) ([]*benchmark, error) {
	for _, name := range names {
		if findBenchmark(name) == nil {
			return nil, usagef("no benchmark %q; there are: %s", name, strings.Join(benchmarkNames(), ", "))
		}
	}
	var chosen []*benchmark
	for _, b := range benchmarks {
		if len(names) == 0 || slices.Contains(names, b.name) {
			chosen = append(chosen, b)
		}
	}
	return chosen, nil
}

func listBenchmarks(cmd *cobra.Command) error {
	t := table{columns: []column{{title: "BENCHMARK"}, {title: "UNIT"}, {title: "TRANSPORTS"}, {title: "MEASURES"}}}
	for _, b := range benchmarks {
		t.add(b.name, b.unit, strings.Join(b.subjects, " "), b.title)
	}
	return t.write(cmd.OutOrStdout())
}

func runBench(cmd *cobra.Command, chosen []*benchmark, plan benchPlan, quick, asJSON, check bool) error {
	p := newProgress(cmd.ErrOrStderr(), asJSON)
	r := benchReport{Schema: jsonSchema, Time: time.Now(), Machine: readMachine(), Settings: newBenchSettings(plan, quick)}
	rounds, err := measureAll(cmd.Context(), chosen, plan, p)
	p.done()
	if err != nil {
		return err
	}
	r.evaluate(chosen, rounds)
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), r)
	} else {
		err = r.write(cmd.OutOrStdout())
	}
	if err == nil && check && len(r.MustMissed) > 0 {
		err = fmt.Errorf("must missed: %s", strings.Join(r.MustMissed, "; "))
	}
	return err
}
