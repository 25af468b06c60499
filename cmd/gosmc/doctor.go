package main

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/doctor"
	"github.com/gosmc/smc/internal/measure"
	"github.com/gosmc/smc/internal/usage"
)

// A doctorReport is the output of doctor --json.
type doctorReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	*doctor.Report
}

func newDoctorCommand() *cobra.Command {
	var asJSON, fixes, serve, echo bool
	var dir string
	cmd := &cobra.Command{
		Use:   "doctor [flags] [HOST:PORT | PID | SERVICE]",
		Short: "Check what keeps connections on TCP, and name the remedies",
		Long: `Check this machine, one server or one program: each finding that keeps connections on TCP has
its remedy below it. Conditions are checked in order: the first that fails decides.

Without an argument these are checked: shared memory, the configuration, run directories that are switched
off, limits, the programs of 'gosmc run' with their supervisors and libraries, programs that 'gosmc run' has
left to TCP, hosts that do not answer, and all connections that are TCP, by server and reason. With
HOST:PORT, a connection of a program of 'gosmc run' to that server. With PID, that program, its connections
and those of its children; with SERVICE, the main process of that service of systemd.

If HOST is another machine, and a UEID is configured, the command connects to the server as a program with package smc
does: it checks TCP, TCP option 254, the CLC handshake and the first link of SMC-R, and sends nothing to the program there.
If 'gosmc doctor --serve' runs there, on a port of its own, the command also learns which way packets get lost, and has
bytes sent back, to see whether packets of full size pass. --echo does so with an echo server, such as one on AF_SMC.

The exit status is 1 if a finding is a warning or a failure. Root looks at the programs of all users;
another user at its own.`,
		Example: `  sudo gosmc doctor
  gosmc doctor 127.0.0.1:6379
  gosmc doctor 4711
  sudo gosmc doctor nginx               # a service
  gosmc doctor --serve :7000            # on one machine
  gosmc doctor 192.0.2.7:7000           # on the other one
  gosmc doctor --json | jq -r '.findings[] | select(.level != "ok") | .text'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if serve && len(args) == 0 {
				return usagef("doctor --serve needs an address to listen on, HOST:PORT or :PORT")
			}
			if echo && (len(args) == 0 || !strings.Contains(args[0], ":")) {
				return usagef("doctor --echo needs the HOST:PORT of an echo server")
			}
			if len(args) > 1 {
				return usagef("doctor takes one HOST:PORT, PID or SERVICE, but got %q, too", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if serve {
				if err := usage.CheckListen(cmd.Context(), args[0]); err != nil {
					return err
				}
				return serveDoctor(cmd, args[0], asJSON || fixes || echo || dir != "")
			}
			o := doctor.Options{Dir: dir, Obstacle: ownObstacle(), Echo: echo, Version: measure.ModuleVersion()}
			if len(args) > 0 {
				o.Subject = args[0]
			}
			if err := checkAddr(o.Subject); err != nil && strings.Contains(o.Subject, ":") {
				return err
			}
			report, err := doctor.Examine(cmd.Context(), o)
			if err != nil {
				return asUsage(err)
			}
			r := doctorReport{jsonSchema, time.Now(), report}
			out := cmd.OutOrStdout()
			switch {
			case asJSON:
				err = writeJSON(out, r)
			case fixes:
				err = r.WriteFixes(out)
			default:
				err = r.Write(out)
			}
			return errors.Join(err, r.Verdict())
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	addSchema(cmd, reflect.TypeFor[doctorReport]())
	cmd.Flags().StringVar(&dir, "dir", "", "look at the programs of the run directory `DIR` only")
	completeDirs(cmd, "dir")
	cmd.Flags().BoolVar(&serve, "serve", false, "answer the checks of other machines on HOST:PORT, until interrupted")
	cmd.Flags().BoolVar(&echo, "echo", false, "the server on another machine sends back all that it gets: have it do so")
	cmd.Flags().BoolVar(&fixes, "fix", false, "print the remedies only, a line for each")
	return cmd
}

// serveDoctor answers the checks of other machines.
func serveDoctor(cmd *cobra.Command, address string, others bool) error {
	if others {
		return usagef("--serve excludes the other flags of doctor")
	}
	if err := checkAddr(address); err != nil {
		return err
	}
	return doctor.Serve(cmd.Context(), address, func(addr string) {
		fmt.Fprintf(cmd.OutOrStdout(), "listening on %s\n", addr)
	})
}
