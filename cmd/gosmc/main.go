// Command gosmc shows, tries and measures Shared Memory Communications: TCP connections
// whose bytes travel through shared memory. Its verbs read flags and print tables or JSON;
// what they know about the protocol they ask of package smc.
//
// Exit status: 0 for success, 2 for a command line that is not understood, 3 when --require
// is not met, 4 when dump --problems has found some, 1 for every other failure. Errors go to
// standard error, as "gosmc: ...".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitFellBack = 3 // --require was not met
	exitProblems = 4 // dump --problems has found some
)

// jsonSchema is the version of everything that --json prints. Fields may be added within a
// version; their names and meaning do not change.
const jsonSchema = 1

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run carries out one command line and returns the exit code. When ctx ends the verb does.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	code := exitFailure
	if e, ok := errors.AsType[*exitError](err); ok {
		code = e.code
	}
	fmt.Fprintln(stderr, "gosmc:", errorText(err))
	if code == exitUsage {
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// errorText is an error in one line: errors that were joined have a line each, whose end printable would make a question mark.
func errorText(err error) string {
	return printable(strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
}

// An exitError asks for an exit code other than exitFailure.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

// usagef makes the error for a command line that is not understood.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// usageArgs makes the errors of a check of arguments usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &exitError{exitUsage, err}
		}
		return nil
	}
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "gosmc",
		Short: "Shared Memory Communications in user space",
		Long: `gosmc shows, tries and measures Shared Memory Communications (SMC): TCP connections
whose bytes travel through shared memory (SMC-D) or by RDMA (SMC-R).

Start with 'gosmc demo'. Then 'gosmc ss' shows the connections of this machine,
'gosmc info' what this host can do, 'gosmc dump' what its packets say, and
'gosmc bench' how fast it is.`,
		Example: `  gosmc demo
  gosmc listen --echo 127.0.0.1:7000 &
  echo hello | gosmc connect -v 127.0.0.1:7000
  gosmc ss`,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2, // letters that may differ
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return usagef("unknown verb %q; did you mean %q?", args[0], near[0])
			}
			return usagef("unknown verb %q", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitUsage, err} })
	root.AddCommand(
		newDemoCommand(), newConnectCommand(), newListenCommand(),
		newSSCommand(), newInfoCommand(), newStatsCommand(), newDumpCommand(),
		newBenchCommand(), newVersionCommand(),
	)
	root.AddCommand(newHiddenCommands()...)
	return root
}
