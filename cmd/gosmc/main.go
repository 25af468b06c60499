// Command gosmc shows, tries and measures Shared Memory Communications: TCP connections that carry
// their bytes through shared memory. Its verbs read flags and print tables or JSON. They leave the
// protocol to package smc.
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
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/terminal"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/internal/usage"
)

// Short names of package exit.
const (
	exitOK       = exit.OK
	exitFailure  = exit.Failure
	exitUsage    = exit.Usage
	exitFellBack = exit.FellBack
	exitProblems = exit.Problems
)

// jsonSchema is the version of everything that --json prints.
const jsonSchema = text.Schema

func main() {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if signal.Ignored(syscall.SIGINT) { // in the background: the program of run has to inherit that
		signals = signals[1:]
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run carries out one command line and returns the exit code. When ctx ends the verb does.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(usage.TwoDashes(root, usage.VerbFirst(root, usage.Netcat(args))))
	root.SetIn(stdin)
	out := terminal.NewOutput(stdout)
	root.SetOut(out)
	root.SetErr(stderr)
	usage.AddCompletion(root)
	askUnknown := false
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if askUnknown = cmd == root && root.Flags().NArg() > 0; !askUnknown {
			help(cmd, args)
		}
	})
	cmd, err := root.ExecuteContextC(ctx)
	if askUnknown { // no help exists, which a script has to notice
		err = usage.UnknownVerb(root, root.Flags().Arg(0))
	} else if err != nil && cmd == root {
		err = usage.VerbError(root, args, err)
	}
	if err == nil {
		err = out.Failure() // of help, which does not look
	}
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	code := exitFailure
	if e, ok := errors.AsType[*exit.Error](err); ok {
		code = e.Code
	}
	fmt.Fprintln(stderr, "gosmc:", errorText(err))
	if code == exitUsage {
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
	} else if step := usage.NextStep(err); step != "" { // rule: TestNextSteps
		fmt.Fprintf(stderr, "Next: %s.\n", step)
	}
	return code
}

// verbGroups are the groups of verbs in the help, in order.
var verbGroups = []struct {
	title string
	verbs []string
}{
	{"Use:", []string{"run", "service", "go", "connect", "listen", "demo"}},
	{"Look:", []string{"doctor", "applicable", "ss", "top", "stats", "info", "reason", "dump", "linkgroup", "link", "device",
		"bench"}},
	{"Set:", []string{"off", "on", "config", "policy", "ueid", "seid", "pnet"}},
	{"Serve:", []string{"agent", "metrics"}},
}

// groupVerbs puts the verbs into groups.
func groupVerbs(root *cobra.Command) {
	const other = "Other:"
	for _, g := range verbGroups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
	}
	root.AddGroup(&cobra.Group{ID: other, Title: other})
	for _, cmd := range root.Commands() {
		cmd.GroupID = other
		for _, g := range verbGroups {
			if slices.Contains(g.verbs, cmd.Name()) {
				cmd.GroupID = g.title
			}
		}
	}
	root.SetHelpCommandGroupID(other)
	root.SetCompletionCommandGroupID(other)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "gosmc",
		Short: "Shared Memory Communications in user space",
		Long: `gosmc shows, tries and measures Shared Memory Communications (SMC): TCP connections
whose bytes travel through shared memory (SMC-D) or by RDMA (SMC-R).

Start with 'gosmc demo'. Then 'gosmc run PROGRAM' starts a program whose connections leave TCP, 'gosmc ss'
shows them, and 'gosmc doctor' says what keeps others on TCP.

Exit status: 0 for success, 2 for a command line that is not understood, 3 when --require is not met, 4 when
dump --problems has found some, 1 for every other failure. Errors go to standard error. All that is printed can be
had as JSON, with --json.`,
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
			return usage.UnknownVerb(cmd, args[0])
		},
	}
	capital := root.Flags().BoolP("print-version", "V", false, "print the version")
	root.Flags().Lookup("print-version").Hidden = true
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *capital {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		}
		sayReady(cmd) // rule: TestReady
		return cmd.Help()
	}
	root.SetFlagErrorFunc(usage.FlagError)
	root.Version = versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().BoolP("version", "v", false, "print the version") // verbs have -v for --verbose
	root.SetHelpCommand(usage.NewHelpCommand())
	root.AddCommand(
		newDemoCommand(), newConnectCommand(), newListenCommand(),
		newSSCommand(), newInfoCommand(), newStatsCommand(), newReasonCommand(), newDoctorCommand(), newTopCommand(), newMetricsCommand(),
		newApplicableCommand(), newDumpCommand(),
		newLinkGroupCommand(), newLinkCommand(), newDeviceCommand(),
		newConfigCommand(), newPolicyCommand(), newUEIDCommand(), newSEIDCommand(), newPNETCommand(),
		newRunCommand(), newGoCommand(), newServiceCommand(), newOffCommand(), newOnCommand(),
		newAgentCommand(), newBenchCommand(), newVersionCommand(),
	)
	root.AddCommand(newHiddenCommands()...)
	root.AddCommand(newManCommand())
	root.AddCommand(newSupervisorCommands()...)
	groupVerbs(root)
	usage.SuggestHabits(root) // rule: TestExitCodes
	usage.AddExits(root)
	usage.CompleteRest(root)
	return root
}
