package main

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	for i, e := range a.Errors {
		if i == 0 && a.Missing {
			continue // incomplete says it
		}
		cmd.PrintErrf("gosmc: %s: %s\n", printable(e.Path), printable(e.Text))
	}
	if a.Denied > 0 {
		cmd.PrintErrf("gosmc: not shown: what belongs to other users (%d found); run as root to see it\n", a.Denied)
	}
}

// incomplete is the error of a verb that has looked in a place that does not exist. The output of
// the verb is printed already.
func incomplete(a *survey.Answers) error {
	if !a.Missing {
		return nil
	}
	return &missingError{a.Errors[0].Path, a.Errors[0].Text}
}

// A missingError is what incomplete returns. A verb that repeats its output goes on after it, as
// the directory may come.
type missingError struct{ path, text string }

func (e *missingError) Error() string { return e.path + ": " + e.text }

// longestWatch is the longest time between two outputs, in seconds.
const longestWatch = 24 * 60 * 60

// repeat calls show once, or again after each number of seconds until the context ends. In text the
// time stands above each output, and a blank line below it.
func repeat(cmd *cobra.Command, seconds int, json bool, show func(watched bool) error) error {
	if seconds < 0 || seconds > longestWatch {
		return usagef("--watch %d: want a number of seconds, up to a day", seconds)
	}
	if seconds == 0 {
		return show(false)
	}
	for {
		if !json {
			fmt.Fprintln(cmd.OutOrStdout(), time.Now().Format(time.DateTime))
		}
		err := show(true)
		if missing, ok := errors.AsType[*missingError](err); ok {
			cmd.PrintErrln("gosmc:", printable(missing.Error()))
			err = nil
		}
		if err != nil {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil // the way in which watching ends
		case <-time.After(time.Duration(seconds) * time.Second):
		}
		if !json {
			fmt.Fprintln(cmd.OutOrStdout())
		}
	}
}
