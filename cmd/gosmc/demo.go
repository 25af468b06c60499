package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/demo"
	"github.com/gosmc/smc/internal/measure"
)

func newDemoCommand() *cobra.Command {
	size := byteSize(demo.Size)
	var asJSON, hosts, containers bool
	cmd := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Move a file and HTTP requests over SMC and over TCP, and compare",
		Long: `Start two processes on this machine, move a file of pseudo-random bytes from one to the
other, and ask for many small pages with net/http; first over SMC-D, then over plain TCP.

The time of the file is that of the transfer alone, from memory to memory: the file is made
before, and its SHA-256 is computed afterwards from what the receiver has. The demo succeeds only if the
connections used SMC-D and every byte was right.

With --hosts, for root, the two processes are in network namespaces of their own, which a pair of virtual Ethernet
interfaces joins, as two hosts on a cable: then it is SMC-R in place of SMC-D.

With --containers, for root, they are in such namespaces, too, each as a user of its own, without capabilities,
in a root directory with nothing in it, as two containers. An agent introduces them to each other: that of this
machine, or one for the demo. Nothing is left of all this afterwards.`,
		Example: `  gosmc demo
  gosmc demo --size 4GiB
  sudo gosmc demo --containers
  sudo gosmc demo --hosts
  gosmc demo --json | jq .file_ratio`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if size < 1 || size > 1<<40 {
				return usagef("--size %v: want at least 1 byte and at most 1TiB", &size)
			}
			o := demo.Options{Size: int64(size), HTTPTime: demo.HTTPTime}
			switch {
			case hosts && containers:
				return usagef("--hosts and --containers exclude each other")
			case hosts:
				o.Setting = demo.Hosts
			case containers:
				o.Setting = demo.Containers
			}
			return runDemo(cmd, o, asJSON)
		},
	}
	cmd.Flags().Var(&size, "size", "of the file, such as 512MiB or 2GiB")
	cmd.Flags().BoolVar(&containers, "containers", false, "two containers, and SMC-D through an agent (root)")
	cmd.Flags().BoolVar(&hosts, "hosts", false, "two hosts in network namespaces, and SMC-R (root)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func runDemo(cmd *cobra.Command, o demo.Options, asJSON bool) error {
	if need, free := demo.Memory(o.Size), measure.AvailableMemory(); free > 0 && free < need {
		return fmt.Errorf("the demo keeps the file in memory twice and needs %s, but %s are free: use a smaller --size",
			formatBytes(need), formatBytes(free))
	}
	p := newProgress(cmd.ErrOrStderr(), asJSON)
	o.Show = p.show
	r, err := demo.Run(cmd.Context(), o)
	p.done()
	if err != nil {
		return err
	}
	r.Schema = jsonSchema
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), r)
	} else {
		err = writeDemo(cmd.OutOrStdout(), r)
	}
	if err == nil && !r.OK {
		err = errors.New(strings.Join(r.Problems, "; "))
	}
	return err
}

// writeDemo prints a report for people.
func writeDemo(w io.Writer, r *demo.Report) error {
	s, t := r.Runs[0], r.Runs[1]
	about := table{Columns: []column{{}, {}}}
	about.Add("Mode", strings.TrimSpace(s.Mode+" "+s.Version))
	about.Add("EID", orNA(s.EID))
	peer := fmt.Sprintf("%s, process %d", orNA(s.Peer), s.PeerPID)
	if s.PeerHost != "" {
		peer += ", host " + printable(s.PeerHost)
	}
	if s.PeerOS != "" {
		peer += " (" + printable(s.PeerOS) + ")"
	}
	about.Add("Peer", peer)
	if s.Reason != "" {
		about.Add("Reason", printable(s.Reason)+codeInBrackets(s.ReasonCode))
	}
	if r.Network != "" {
		about.Add("Network", printable(r.Network))
	}
	about.Add("Machine", fmt.Sprintf("%s, %d CPUs, %s", orNA(r.Machine.CPU), r.Machine.CPUs, orNA(r.Machine.Kernel)))
	if err := about.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)

	right := func(ok bool) string {
		if ok {
			return "right"
		}
		return "WRONG"
	}
	times := func(a, b float64) string {
		if b == 0 {
			return "n/a"
		}
		return formatNumber(a/b) + " x"
	}
	gbps := func(f demo.File) string { return formatNumber(f.Rate/1e9) + " GB/s" }
	results := table{Columns: []column{{}, {Title: s.Mode, Right: true}, {Title: "plain TCP", Right: true}, {Title: "ratio", Right: true}}}
	results.Add("File of "+formatBytes(r.Size), gbps(s.File), gbps(t.File), times(s.File.Rate, t.File.Rate))
	results.Add("  time", formatNumber(s.File.Seconds)+" s", formatNumber(t.File.Seconds)+" s", times(s.File.Seconds, t.File.Seconds))
	results.Add("  CPU time, both sides", formatNumber(s.File.CPUSeconds)+" s", formatNumber(t.File.CPUSeconds)+" s", times(s.File.CPUSeconds, t.File.CPUSeconds))
	results.Add("  SHA-256", right(s.File.Right), right(t.File.Right))
	results.Add(fmt.Sprintf("HTTP, %d connections", demo.Conns), formatNumber(s.HTTP.Rate)+" requests/s", formatNumber(t.HTTP.Rate)+" requests/s", times(s.HTTP.Rate, t.HTTP.Rate))
	results.Add("  half answered within", formatNumber(s.HTTP.P50)+" µs", formatNumber(t.HTTP.P50)+" µs", times(s.HTTP.P50, t.HTTP.P50))
	results.Add("  99 % answered within", formatNumber(s.HTTP.P99)+" µs", formatNumber(t.HTTP.P99)+" µs", times(s.HTTP.P99, t.HTTP.P99))
	results.Add("  answers", demoAnswers(s.HTTP), demoAnswers(t.HTTP))
	if err := results.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nThe time is that of the transfer; SHA-256 %s was computed afterwards.\n", r.SHA256)
	if s.Mode == "SMC-R" { // rule: TestWriteDemo
		_, err2 := fmt.Fprintln(w, "SMC-R here is RDMA in software, which is slower than TCP on one machine. It is for peers with Linux AF_SMC, and for failover: docs/smcr.md.")
		err = errors.Join(err, err2)
	}
	return err
}

func demoAnswers(h demo.HTTP) string {
	if h.Wrong > 0 {
		return fmt.Sprintf("%d WRONG", h.Wrong)
	}
	return groupDigits(strconv.FormatInt(h.Requests, 10)) + " right"
}
