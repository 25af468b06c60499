package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/spf13/cobra"

	supervise "github.com/gosmc/smc/internal/run"
)

// Exit codes of run when there is no program to take one from: those of env(1) and nohup(1).
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

func newRunCommand() *cobra.Command {
	var require bool
	cmd := &cobra.Command{
		Use:   "run [flags] [--] PROGRAM [ARGUMENT...]",
		Short: "Run a program whose TCP connections within this machine take a shorter way",
		Long: `Run PROGRAM, unchanged, with its arguments. Where it connects to another program of the same user on this machine that
was started by gosmc run, too, the two get a pair of Unix sockets in place of TCP, which carries the same bytes with less work. They go
on seeing TCP sockets. Every other connection is the TCP connection that it always was. What PROGRAM starts is run in the same way.

PROGRAM takes the place of gosmc: it has its process ID, terminal, descriptors, signals and exit status. A supervisor runs beside it until
PROGRAM, and everything that it has started, has ended.

A program into which the library cannot be loaded (statically linked, setuid, musl, another architecture) runs all the same, with TCP, and
a line on standard error says why; with --require it does not run, and the exit status is 3. It is 127 if PROGRAM is not found,
and 126 if it cannot be executed.`,
		Example: `  gosmc run redis-server --port 7001
  gosmc run -- nginx -g 'daemon off;'
  gosmc run psql -h localhost`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("which program?")
			}
			return runProgram(cmd, args, require)
		},
	}
	cmd.Flags().SetInterspersed(false) // what comes after PROGRAM is its own
	cmd.Flags().BoolVar(&require, "require", false, "do not run a program that could only use TCP; exit with status 3")
	return cmd
}

// runProgram returns only if the program could not be started.
func runProgram(cmd *cobra.Command, args []string, require bool) error {
	path, err := exec.LookPath(args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		code := exitNotFound
		if errors.Is(err, os.ErrPermission) {
			code = exitNotExecutable
		}
		return &exitError{code, err}
	}
	environ := os.Environ()
	why := supervise.Obstacle(path)
	if why == "" {
		with, err := supervise.Prepare(environ)
		if err == nil {
			environ = with
		} else {
			why = err.Error()
		}
	}
	if why != "" {
		if require {
			return &exitError{exitFellBack, fmt.Errorf("%s cannot be moved from TCP: %s", args[0], why)}
		}
		cmd.PrintErrf("gosmc: %s stays with TCP: %s\n", printable(args[0]), printable(why))
	}
	return &exitError{exitNotExecutable, &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, args, environ)}}
}

// newSupervisorCommands are the verbs with which run starts this program again.
func newSupervisorCommands() []*cobra.Command {
	var list []*cobra.Command
	for verb, work := range map[string]func([]string) error{supervise.LaunchVerb: supervise.Launch, supervise.SuperviseVerb: supervise.Supervise} {
		list = append(list, &cobra.Command{
			Use:    verb,
			Hidden: true,
			Args:   cobra.ExactArgs(2),
			RunE:   func(_ *cobra.Command, args []string) error { return work(args) },
		})
	}
	return list
}
