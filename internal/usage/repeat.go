package usage

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/text"
)

// The times between two outputs.
const (
	shortestWatch = 100 * time.Millisecond
	longestWatch  = 24 * time.Hour
)

// transient is an error after which a verb that repeats its output goes on.
type transient interface {
	error
	Transient()
}

// Repeat calls show once, or again each time until the context ends. In text the
// time stands above each output, and a blank line below it. An error that says by a method Transient
// that its cause may pass is shown, and ends nothing.
func Repeat(cmd *cobra.Command, every time.Duration, json bool, show func(watched bool) error) error {
	if every != 0 && (every < shortestWatch || every > longestWatch) {
		return exit.Usagef("--watch %v: want seconds, from 0.1 to a day", every)
	}
	if every == 0 {
		return show(false)
	}
	for {
		if !json {
			fmt.Fprintln(cmd.OutOrStdout(), time.Now().Format(time.DateTime))
		}
		err := show(true)
		if missing, ok := errors.AsType[transient](err); ok {
			cmd.PrintErrln("gosmc:", text.Printable(missing.Error()))
			err = nil
		}
		if err != nil {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil // the way in which watching ends
		case <-time.After(every):
		}
		if !json {
			fmt.Fprintln(cmd.OutOrStdout())
		}
	}
}
