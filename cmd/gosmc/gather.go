package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/survey"
)

// gatherFlags are common to the verbs that ask the hosts of the machine.
type gatherFlags struct {
	dir  string
	json bool
}

func (f *gatherFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "dir", "", "look in the run directory `DIR` only")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	completeDirs(cmd, "dir")
}

// gather asks all hosts in all run directories, or in one.
func (f *gatherFlags) gather(ctx context.Context) survey.Answers { return survey.Ask(ctx, f.dir) }

// complain reports the places that could not be read.
func complain(cmd *cobra.Command, a *survey.Answers) {
	for _, line := range a.Remarks() {
		cmd.PrintErrln("gosmc:", line)
	}
}

// incomplete is the error of a verb that has looked in a place that does not exist. The output of
// the verb is printed already.
func incomplete(a *survey.Answers) error { return a.Incomplete() }
