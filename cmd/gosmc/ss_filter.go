package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/inventory"
)

// ssModes are the values of --require: modes, and smc for each that is not TCP.
var ssModes = []cobra.Completion{"smc", "unix", "smc-d", "smc-r"}

// check reads the arguments, and checks the flags.
func (f *ssFlags) check(args []string) error {
	switch {
	case f.all && f.listening:
		return usagef("--all and --listening exclude each other")
	case f.summary && (f.all || f.listening || f.why):
		return usagef("--summary counts connections: it excludes --all, --listening and --why")
	}
	if f.require != "" {
		f.require = strings.ToLower(f.require)
		known := false
		for _, m := range ssModes {
			known = known || m == f.require
		}
		if !known {
			return usagef("--require %q: want smc, unix, smc-d or smc-r", f.require)
		}
	}
	wanted := slices.Clone(f.columns)
	if f.sort != "" {
		wanted = append(wanted, f.sort)
	}
	for _, name := range wanted {
		if !slices.Contains(ssColumns, name) {
			return usagef("column %q: want %s", name, strings.Join(ssColumns, ", "))
		}
	}
	if (len(f.columns) > 0 || f.sort != "") && (f.summary || f.gather.json) {
		return usagef("--columns and --sort are of the table of connections: they exclude --summary and --json")
	}
	var err error
	if f.filter, err = inventory.ParseFilter(args); err != nil {
		return usagef("%w", err)
	}
	f.filter.Port, f.filter.Only4, f.filter.Only6 = f.port, f.only4, f.only6
	switch f.filter.State {
	case "listening":
		f.listening = !f.all
	case "all":
		f.all, f.filter.State = true, ""
	}
	return nil
}

// unmet is the error if a connection does not use the mode of --require.
func (f *ssFlags) unmet(r *ssReport) error {
	if f.require == "" {
		return nil
	}
	n, first := 0, ""
	for _, c := range r.Connections {
		met := strings.EqualFold(c.Mode, f.require)
		if f.require == "smc" {
			met = c.Mode != "TCP"
		}
		if !met {
			if n++; n == 1 {
				first = fmt.Sprintf("%s to %s uses %s%s", c.Local, c.Peer, orNA(c.Mode), c.ReasonCode.Suffix())
			}
		}
	}
	if n == 0 {
		return nil
	}
	return exit.With(exit.FellBack, fmt.Errorf("%d of %d ends of connections do not meet --require %s: %s", n, len(r.Connections), f.require, first))
}
