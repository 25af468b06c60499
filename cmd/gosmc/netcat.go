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

// reporter prints the reports of a verb on standard error, in the form that the flags ask for.
func (f *netcatFlags) reporter(cmd *cobra.Command) *netcat.Reporter {
	return &netcat.Reporter{W: cmd.ErrOrStderr(), Verb: cmd.Name(), JSON: f.json, Verbose: f.verbose}
}
