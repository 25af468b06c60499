package main

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/netcat"
)

// netcatFlags are common to connect and listen.
type netcatFlags struct {
	smcr    smcrFlags
	require netcat.Requirement
	json    bool
	verbose bool
}

func (f *netcatFlags) register(cmd *cobra.Command) {
	f.smcr.register(cmd)
	cmd.Flags().Var(&f.require, "require", "fail with exit status 3 unless the connection uses `mode`: smc, smc-d, smc-r")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object for each connection on standard error, on a line")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error what happens to each connection")
	cmd.RegisterFlagCompletionFunc("require", cobra.FixedCompletions(netcat.RequirementNames(), cobra.ShellCompDirectiveNoFileComp))
}

// exitOf gives the error of a connection its exit code.
func exitOf(err error) error {
	if _, ok := errors.AsType[*netcat.UnmetError](err); ok {
		return exit.With(exit.FellBack, err)
	}
	return err
}

// A connReport is the report of connect and listen about a connection that has ended.
type connReport struct {
	Schema int       `json:"schema"`
	Event  string    `json:"event"` // "closed"
	Time   time.Time `json:"time"`
	Verb   string    `json:"verb"` // "connect" or "listen"
	netcat.Report
}

// A reporter prints reports and events on standard error, one at a time.
type reporter struct {
	flags *netcatFlags
	verb  string

	mu sync.Mutex
	w  io.Writer
}

// report prints a connection that has ended, in the form that the flags ask for.
func (p *reporter) report(r *netcat.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.flags.json:
		writeJSONLine(p.w, connReport{jsonSchema, "closed", r.Start, p.verb, *r})
	case p.flags.verbose:
		line := fmt.Sprintf("%s -> %s  %s", orNA(r.Local), orNA(r.Peer), r.Mode)
		if r.Version != "" {
			line += " " + r.Version
		}
		if r.EID != "" {
			line += "  EID " + printable(r.EID)
		}
		if r.Reason != "" {
			line += "  because " + printable(r.Reason) + r.ReasonCode.Suffix()
		}
		line += fmt.Sprintf("  in %s, out %s, %.3f s", formatBytes(r.BytesIn), formatBytes(r.BytesOut), r.Seconds)
		if r.Error != "" {
			line += "  " + printable(r.Error)
		}
		fmt.Fprintln(p.w, line)
	}
}
