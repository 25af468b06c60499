package usage

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/text"
)

// longestWatch is the longest time between two outputs, in seconds.
const longestWatch = 24 * 60 * 60

// transient is an error after which a verb that repeats its output goes on.
type transient interface {
	error
	Transient()
}

// Repeat calls show once, or again after each number of seconds until the context ends. In text the
// time stands above each output, and a blank line below it. An error that says by a method Transient
// that its cause may pass is shown, and ends nothing.
func Repeat(cmd *cobra.Command, seconds int, json bool, show func(watched bool) error) error {
	if seconds < 0 || seconds > longestWatch {
		return exit.Usagef("--watch %d: want a number of seconds, up to a day", seconds)
	}
	if seconds == 0 {
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
		case <-time.After(time.Duration(seconds) * time.Second):
		}
		if !json {
			fmt.Fprintln(cmd.OutOrStdout())
		}
	}
}
