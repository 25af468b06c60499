package main

import (
	"errors"
	"fmt"
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
	o.Show = p.Show
	r, err := demo.Run(cmd.Context(), o)
	p.Done()
	if err != nil {
		return err
	}
	r.Schema = jsonSchema
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), r)
	} else {
		err = r.WriteWithNext(cmd.OutOrStdout(), o.Setting)
	}
	if err == nil && !r.OK {
		err = errors.New(strings.Join(r.Problems, "; "))
	}
	return err
}
