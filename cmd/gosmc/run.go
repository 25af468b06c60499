package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/doctor"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/launch"
	"github.com/gosmc/smc/internal/run/library"
	"github.com/gosmc/smc/internal/run/supervisor"
	"github.com/gosmc/smc/preload"
)

func newRunCommand() *cobra.Command {
	var require, asJSON, all bool
	var address, asUser, argv0 string
	var policy policyFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] PROGRAM [ARGUMENT...] | run --explain HOST:PORT [PROGRAM]",
		Short: "Run a program whose TCP connections within this machine take a shorter way",
		Long: `Run PROGRAM, unchanged, with its arguments. Where it connects to another program of the same user on this machine that
was started by gosmc run, too, the two get a pair of Unix sockets in place of TCP, which carries the same bytes with less work. They go
on seeing TCP sockets. Every other connection is the TCP connection that it always was. What PROGRAM starts is run in the same way.

PROGRAM takes the place of gosmc: it has its process ID, terminal, descriptors, signals and exit status. A supervisor runs beside it until
PROGRAM, and everything that it has started, has ended. Where PATH has no gosmc, this one's directory is put at its end.

A program into which the library cannot be loaded (statically linked, setuid, musl, another architecture) runs all the same, with TCP, and
a line on standard error says why; with --require it does not run, and the exit status is 3. It is 127 if PROGRAM is not found,
and 126 if it cannot be executed.

The policy, see 'gosmc policy --help', says which connections may leave TCP. Flags take the place of what the configuration file and the environment
say of their word, for PROGRAM and what it starts.

--explain runs nothing: it says what would become of a connection to HOST:PORT, from PROGRAM if it is given, and why. A service often runs as a user of its own:
name that by --user. The exit status is 0 if the connection would leave TCP, and 3 if not.`,
		Example: `  gosmc run redis-server --port 7001
  gosmc run -- nginx -g 'daemon off;'
  gosmc run psql -h localhost
  gosmc run --listen-port 8000-8999 --connect-port '!5432' ./service
  gosmc run --explain localhost:7001 redis-cli
  sudo gosmc run --explain localhost:6379 --user www-data`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if address == "" {
				for _, name := range []string{"json", "user", "all"} {
					if cmd.Flags().Changed(name) {
						return usagef("--%s is for --explain", name)
					}
				}
			} else if argv0 != "" {
				return usagef("--explain and --argv0 exclude each other")
			}
			var program string
			if address == "" && len(args) > 0 {
				program = args[0]
				if argv0 != "" {
					args[0] = argv0
				}
				if why := ownObstacle(); why != "" {
					return runPlain(cmd, program, args, require, why)
				}
			}
			s, err := policy.settings(cmd)
			if err != nil {
				return err
			}
			switch {
			case address != "":
				return explainRun(cmd, address, asUser, args, s, asJSON, all)
			case len(args) == 0:
				return usagef("which program?")
			}
			return runProgram(cmd, program, args, require, s, policy.changed)
		},
	}
	cmd.Flags().SetInterspersed(false) // flags after PROGRAM are its own
	cmd.Flags().BoolVar(&require, "require", false, "do not run a program that could only use TCP; exit with status 3")
	cmd.Flags().StringVar(&argv0, "argv0", "", "start PROGRAM by the `NAME` as its argument 0, as units of systemd do with @")
	cmd.Flags().StringVar(&address, "explain", "", "say what would become of a connection to `HOST:PORT`, and why, and run nothing")
	cmd.Flags().StringVar(&asUser, "user", "", "with --explain: of a connection that a program of the user `NAME` makes; else yours")
	cmd.Flags().BoolVar(&all, "all", false, "with --explain: say also what becomes of programs with package smc, and of servers here")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object, with --explain")
	policy.register(cmd)
	return cmd
}

// ownObstacle is [launch.Obstacle], which verbs that explain ask, too.
func ownObstacle() string { return launch.Obstacle() }

// explainRun is run --explain.
func explainRun(cmd *cobra.Command, address, asUser string, args []string, s *config.Settings, asJSON, all bool) error {
	if err := checkAddr(address); err != nil {
		return err
	}
	obstacle, uid := ownObstacle(), os.Geteuid()
	if asUser != "" {
		var err error
		if uid, err = userNamed(asUser); err != nil {
			return err
		}
	}
	program := ""
	if len(args) > 0 {
		var err error
		if program, err = programPath(args[0]); err != nil {
			return err
		}
	}
	if err := inspect.CheckDir(uid); err != nil && obstacle == "" {
		obstacle = err.Error()
	}
	e, err := doctor.Explain(cmd.Context(), address, program, args, uid, s, obstacle)
	if err != nil {
		return asUsage(err)
	}
	r := explainReport{jsonSchema, time.Now(), e}
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), r)
	} else {
		err = r.Write(cmd.OutOrStdout(), all)
	}
	return errors.Join(err, r.Verdict())
}

// notRunnable is the error of a program that cannot be run, with the exit code that says so.
func notRunnable(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return exit.With(exit.NotExecutable, err)
	}
	return exit.With(exit.NotFound, err)
}

// runProgram returns only if the program could not be started. args are the arguments of the
// program, beginning with its name, which need not lead to its file. own says that its policy
// differs from the policy of our parent: these words are from flags.
func runProgram(
	cmd *cobra.Command, program string, args []string, require bool, s *config.Settings, flagged []string,
) error {
	path, err := programPath(program)
	if err != nil {
		return err
	}
	environ := withPolicy(os.Environ(), s, flagged)
	why := inspect.Obstacle(path)
	switch {
	case s.Off: // as the user wants, so it needs no word
		why = "SMC is switched off" + doctor.From(config.SMC)
	case why == "":
		with, err := launch.Prepare(path, environ, len(flagged) > 0, preload.Library())
		if err == nil {
			self, _ := os.Executable()
			environ = launch.WithTools(launch.WithMemory(with), self)
		} else {
			why = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	default:
		launch.Refuse(path, why) // rule: TestDoctorFaults
	}
	if why != "" {
		if require {
			return exit.With(exit.FellBack, fmt.Errorf("%s cannot be moved from TCP: %s", program, why))
		}
		if !s.Off {
			cmd.PrintErrf("gosmc: %s stays with TCP: %s\n", printable(program), printable(why))
		}
	}
	return exit.With(exit.NotExecutable, &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, args, environ)})
}

// runPlain is runProgram where this process can do nothing for the program, and says why. It makes
// no system call that the program's start without gosmc would not make.
func runPlain(cmd *cobra.Command, program string, args []string, require bool, why string) error {
	if require {
		return exit.With(exit.FellBack, fmt.Errorf("%s cannot be moved from TCP: %s", program, why))
	}
	path, err := launch.FindPlain(program)
	if err != nil {
		return notRunnable(err)
	}
	cmd.PrintErrf("gosmc: %s stays with TCP: %s\n", printable(program), why)
	err = syscall.Exec(path, args, os.Environ())
	return exit.With(exit.NotExecutable, &os.PathError{Op: "exec", Path: path, Err: err})
}

// withPolicy is an environment in which programs have the policy of s, of which some words are from
// flags. It says which values are copies of the file's.
func withPolicy(environ []string, s *config.Settings, flagged []string) []string {
	var copied []string
	for _, word := range policyOrder {
		if !config.Set(word) && !slices.Contains(flagged, word) { // rule: TestRunCopied
			copied = append(copied, word)
		}
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.ContainsFunc(policyOrder, func(word string) bool { return config.Variables[word] == name }) ||
			name == config.EnvDisabled || name == config.EnvCopied
	})
	policy := s.Environ()
	environ = append(append(environ, policy...), config.CopiedVariable(policy, copied))
	if !s.Off && !slices.Contains(copied, config.SMC) { // the file may say otherwise, now or later
		environ = append(environ, config.EnvDisabled+"=0")
	}
	return environ
}

// policyFlags are the words of the policy as flags.
type policyFlags struct {
	lists   [len(policyLists)][]string
	smc     string
	memory  byteSize
	ring    byteSize
	short   string
	changed []string // words of flags that were given
}

// policyLists are the words that are lists, with their flags' help.
var policyLists = [...]struct{ word, usage string }{
	{config.Program, "`NAMES` of programs that may leave TCP; !NAME for one that may not"},
	{config.ListenPort, "`PORTS` and ranges of servers here that may; !PORT for one that may not; any, none"},
	{config.ListenAddress, "`ADDRESSES` and prefixes of servers here that may"},
	{config.ConnectPort, "`PORTS` and ranges of servers that may be connected to otherwise than by TCP"},
	{config.ConnectAddress, "`ADDRESSES` and prefixes of servers that may"},
}

func (f *policyFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.smc, config.SMC, "", "whether anything may leave TCP: `on|off`")
	for i, l := range policyLists {
		flags.StringSliceVar(&f.lists[i], l.word, nil, l.usage)
	}
	flags.Var(&f.memory, config.Memory, "`SIZE` of the rings of a process, or of its receive buffers if it uses package smc, at most")
	flags.Var(&f.ring, config.RingAfter, "`SIZE` of what goes in a direction before a ring joins a connection")
	flags.StringVar(&f.short, config.ShortAfter, "", "`NUMBER` of short connections to a server after which others stay TCP; off: none does")
	completeFlag(cmd, config.SMC, "on", "off")
	completeFlag(cmd, config.ShortAfter, "off")
	for _, l := range policyLists[1:] {
		completeFlag(cmd, l.word, "any", "none")
	}
}

// settings are the settings of the configuration, with those from flags in their place. An entry
// that is not understood is reported, and refuses.
func (f *policyFlags) settings(cmd *cobra.Command) (*config.Settings, error) {
	s, err := config.Load()
	if err != nil {
		cmd.PrintErrf("gosmc: parts of the configuration are left out: %s\n", errorText(err))
	}
	for i, list := range [...]*[]string{&s.Programs, &s.Listen.Ports, &s.Listen.Addresses, &s.Connect.Ports, &s.Connect.Addresses} {
		word := policyLists[i].word
		if !cmd.Flags().Changed(word) {
			continue
		}
		for _, v := range f.lists[i] {
			if err := config.Check(word, v); err != nil {
				return nil, usagef("--%w", err)
			}
		}
		*list, f.changed = f.lists[i], append(f.changed, word)
	}
	if cmd.Flags().Changed(config.SMC) {
		if err := config.Check(config.SMC, f.smc); err != nil {
			return nil, usagef("--%w", err)
		}
		on, _ := config.ParseSwitch(f.smc) // checked
		s.Off, f.changed = !on, append(f.changed, config.SMC)
	}
	if cmd.Flags().Changed(config.Memory) {
		s.Memory, f.changed = int64(f.memory), append(f.changed, config.Memory)
	}
	if cmd.Flags().Changed(config.RingAfter) {
		s.RingAfter, f.changed = int64(f.ring), append(f.changed, config.RingAfter)
	}
	if cmd.Flags().Changed(config.ShortAfter) {
		if err := config.Check(config.ShortAfter, f.short); err != nil {
			return nil, usagef("--%w", err)
		}
		s.ShortAfter, _ = config.ParseShortAfter(f.short) // checked
		f.changed = append(f.changed, config.ShortAfter)
	}
	return &s, nil
}

// newSupervisorCommands are the verbs with which run starts this program again.
func newSupervisorCommands() []*cobra.Command {
	var list []*cobra.Command
	for verb, work := range map[string]func([]string) error{supervisor.LaunchVerb: supervisor.Launch, supervisor.SuperviseVerb: supervisor.Supervise} {
		list = append(list, &cobra.Command{
			Use:    verb,
			Hidden: true,
			Args:   cobra.RangeArgs(2, 3), // the callee checks the third one
			RunE:   func(_ *cobra.Command, args []string) error { return work(args) },
		})
	}
	list = append(list, &cobra.Command{
		Use: launch.ProbeVerb, Hidden: true, Args: noArguments, RunE: func(*cobra.Command, []string) error { return launch.Probe() },
	})
	var arch string
	var command bool
	library := &cobra.Command{
		Use:    "run-library DIR",
		Short:  "Write the library of gosmc run below DIR, for 'make install'; with --arch as a package for that architecture has it; with --command this command too, as bin/gosmc and lib/gosmc below DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case command && arch != "":
				return usagef("--command and --arch exclude each other")
			case command:
				return library.WritePrefix(args[0], preload.Library())
			case arch != "":
				return library.WritePackaged(args[0], arch, preload.LibraryFor(arch))
			}
			return library.Write(args[0], preload.Library())
		},
	}
	library.Flags().StringVar(&arch, "arch", "", "the architecture, by its name in Go, for programs of other machines")
	library.Flags().BoolVar(&command, "command", false, "copy this command, too: for a volume of containers whose images do not have it")
	return append(list, library)
}
