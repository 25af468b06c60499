package main

import (
	"errors"

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

	only4, only6 bool
	nothing      bool // of flags without an effect
}

// network is the network of the addresses that are meant.
func (f *netcatFlags) network() string {
	switch {
	case f.only4 && !f.only6:
		return "tcp4"
	case f.only6 && !f.only4: // rule: TestNetcatHabits
		return "tcp6"
	}
	return "tcp"
}

func (f *netcatFlags) register(cmd *cobra.Command) {
	f.smcr.register(cmd)
	cmd.Flags().Var(&f.require, "require", "fail with exit status 3 unless the connection uses `mode`: smc, smc-d, smc-r")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object for each connection on standard error, on a line")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error what happens to each connection")
	cmd.Flags().BoolVarP(&f.only4, "ipv4", "4", false, "use IPv4 addresses only")
	cmd.Flags().BoolVarP(&f.only6, "ipv6", "6", false, "use IPv6 addresses only")
	cmd.Flags().BoolVarP(&f.nothing, "numeric", "n", false, "no effect: addresses are shown as numbers")
	cmd.RegisterFlagCompletionFunc("require", cobra.FixedCompletions(netcat.RequirementNames(), cobra.ShellCompDirectiveNoFileComp))
}

// exitOf gives the error of a connection its exit code.
func exitOf(err error) error {
	if _, ok := errors.AsType[*netcat.UnmetError](err); ok {
		return exit.With(exit.FellBack, err)
	}
	return err
}

// reporter prints the reports of a verb on standard error, in the form that the flags ask for.
func (f *netcatFlags) reporter(cmd *cobra.Command) *netcat.Reporter {
	return &netcat.Reporter{W: cmd.ErrOrStderr(), Verb: cmd.Name(), JSON: f.json, Verbose: f.verbose}
}
