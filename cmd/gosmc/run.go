package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/doctor"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/policy"
	"github.com/gosmc/smc/internal/run/engine"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/launch"
	"github.com/gosmc/smc/internal/run/library"
	"github.com/gosmc/smc/internal/run/supervisor"
	"github.com/gosmc/smc/preload"
)

func newRunCommand() *cobra.Command {
	var require, asJSON, all bool
	var address, asUser, argv0 string
	var words policyFlags
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
			s, err := words.settings(cmd)
			if err != nil {
				return err
			}
			switch {
			case address != "":
				return explainRun(cmd, address, asUser, args, s, asJSON, all)
			case len(args) == 0:
				return usagef("run needs a PROGRAM, as in 'gosmc run redis-server'")
			}
			return runProgram(cmd, program, args, require, s, words.Changed)
		},
	}
	cmd.Flags().SetInterspersed(false) // flags after PROGRAM are its own
	cmd.Flags().BoolVar(&require, "require", false, "do not run a program that could only use TCP; exit with status 3")
	cmd.Flags().StringVar(&argv0, "argv0", "", "start PROGRAM by the `NAME` as its argument 0, as units of systemd do with @")
	cmd.Flags().StringVar(&address, "explain", "", "say what would become of a connection to `HOST:PORT`, and why, and run nothing")
	cmd.Flags().StringVar(&asUser, "user", "", "with --explain: of a connection that a program of the user `NAME` makes; else yours")
	cmd.Flags().BoolVar(&all, "all", false, "with --explain: say also what becomes of programs with package smc, and of servers here")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object, with --explain")
	words.register(cmd)
	return cmd
}

// ownObstacle is [launch.Obstacle], which verbs that explain ask, too.
func ownObstacle() string { return launch.Obstacle() }

// explainRun is run --explain.
func explainRun(cmd *cobra.Command, address, asUser string, args []string, s *config.Settings, asJSON, all bool) error {
	if _, err := strconv.ParseUint(address, 10, 16); err == nil { // rule: TestRunPort
		address = "localhost:" + address
	}
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
	environ := policy.Environ(os.Environ(), s, flagged)
	why := inspect.Obstacle(path)
	switch {
	case s.Off: // as the user wants, so it needs no word
		why = "SMC is switched off" + doctor.From(config.SMC)
	case why == "":
		with, err := launch.Prepare(path, environ, len(flagged) > 0, preload.Library())
		if err == nil {
			self, _ := os.Executable()
			environ = launch.WithPeers(launch.WithTools(launch.WithMemory(with), self), s)
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

// policyFlags are the words of the policy as flags.
type policyFlags struct{ policy.Flags }

func (f *policyFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.SMC, config.SMC, "", "whether anything may leave TCP: `on|off`")
	for i, l := range policy.Lists {
		flags.StringSliceVar(&f.Lists[i], l.Word, nil, l.Usage)
	}
	flags.Var(&f.Memory, config.Memory, "`SIZE` of the rings of a process, or of its receive buffers if it uses package smc, at most")
	flags.Var(&f.Ring, config.RingAfter, "`SIZE` of what goes in a direction before a ring joins a connection")
	flags.StringVar(&f.Short, config.ShortAfter, "", "`NUMBER` of short connections to a server after which others stay TCP; off: none does")
	completeFlag(cmd, config.SMC, "on", "off")
	completeFlag(cmd, config.ShortAfter, "off")
	for _, l := range policy.Lists[1:] {
		completeFlag(cmd, l.Word, "any", map[bool]string{true: "same", false: "none"}[l.Word == config.UsersWord])
	}
}

// settings are the settings of the configuration, with those from flags in their place. An entry
// that is not understood is reported, and refuses.
func (f *policyFlags) settings(cmd *cobra.Command) (*config.Settings, error) {
	s, err := config.Load()
	if err != nil {
		cmd.PrintErrf("gosmc: parts of the configuration are left out: %s\n", errorText(err))
	}
	if err := f.Apply(&s, cmd.Flags().Changed); err != nil {
		return nil, err
	}
	warnUnknown(cmd, s.Users)
	return &s, nil
}

// warnUnknown tells of users and groups in a list that are not there.
func warnUnknown(cmd *cobra.Command, users []string) {
	for _, p := range config.UnknownUsers(users) { // rule: TestPolicyUnknownUser: UnknownUsers(users) -> UnknownUsers(nil)
		cmd.PrintErrf("gosmc: %s\n", printable(p.Message))
	}
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
		Use: supervisor.EngineVerb + " DIR", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(*cobra.Command, []string) error { return engine.Serve() },
	}, &cobra.Command{
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
