package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/wire/clc"
)

// A doctorReport is the output of doctor --json.
type doctorReport struct {
	Schema   int       `json:"schema"`
	Time     time.Time `json:"time"`
	Subject  string    `json:"subject"` // HOST:PORT, or a process ID; empty: the machine
	Healthy  bool      `json:"healthy"` // no finding is a warning or a failure
	Findings []finding `json:"findings"`

	dir string // look at the programs of this run directory only; empty: of all
}

// A finding is the result of one check.
type finding struct {
	Level string `json:"level"` // "ok", "warn", "fail"
	Check string `json:"check"` // a word for scripts, such as "supervisor"
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"` // a command, a line of the configuration, or a sentence
}

const (
	levelOK   = "ok"
	levelWarn = "warn"
	levelFail = "fail"
)

func newDoctorCommand() *cobra.Command {
	var asJSON, fixes bool
	var dir string
	cmd := &cobra.Command{
		Use:   "doctor [flags] [HOST:PORT | PID]",
		Short: "Check what keeps connections on TCP, and name the remedies",
		Long: `Check this machine, one server or one program: each finding that keeps connections on TCP has
its remedy below it. The order is that of the conditions: what is checked first decides first.

Without an argument these are checked: shared memory, the configuration, run directories that are switched
off, limits, the programs of 'gosmc run' with their supervisors and libraries, programs that 'gosmc run' has
left to TCP, hosts that do not answer, and all connections that are TCP, by server and reason. With
HOST:PORT, a connection of a program of 'gosmc run' to that server. With PID, that program, its connections
and those of its children.

The exit status is 1 if a finding is a warning or a failure. Root looks at the programs of all users;
another user at its own.`,
		Example: `  sudo gosmc doctor
  gosmc doctor 127.0.0.1:6379
  gosmc doctor 4711
  gosmc doctor --json | jq -r '.findings[] | select(.level != "ok") | .text'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("doctor takes one HOST:PORT or PID, but got %q, too", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r := &doctorReport{Schema: jsonSchema, Time: time.Now(), Findings: []finding{}, dir: dir}
			if len(args) > 0 {
				r.Subject = args[0]
			}
			if err := r.examine(cmd.Context()); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			var err error
			switch {
			case asJSON:
				err = writeJSON(out, r)
			case fixes:
				err = r.writeFixes(out)
			default:
				err = r.write(out)
			}
			return errors.Join(err, r.verdict())
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().StringVar(&dir, "dir", "", "look at the programs of the run directory `DIR` only")
	completeDirs(cmd, "dir")
	cmd.Flags().BoolVar(&fixes, "fix", false, "print the remedies only, a line for each")
	return cmd
}

func (r *doctorReport) add(level, check, text, fix string) {
	r.Findings = append(r.Findings, finding{level, check, text, fix})
}

// examine makes the checks for the subject.
func (r *doctorReport) examine(ctx context.Context) error {
	pid, err := strconv.Atoi(r.Subject)
	switch {
	case r.Subject == "":
		r.machine(ctx)
	case err == nil:
		err = r.program(ctx, pid)
	default:
		if err = checkAddr(r.Subject); err == nil {
			err = r.server(ctx)
		}
	}
	if r.Subject != "" && err != nil {
		return err
	}
	r.Healthy = !slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Level != levelOK })
	return nil
}

// machine makes all checks that concern no single connection.
func (r *doctorReport) machine(ctx context.Context) {
	off := r.settings()
	probe, err := survey.NewProbe(ctx)
	switch {
	case off: // which says it all
	case err != nil:
		r.add(levelFail, "shared-memory", "Programs of this user cannot share memory: "+errorText(err),
			probe.Capabilities.SMCDv2.Advice)
	default:
		r.add(levelOK, "shared-memory", "Programs of this user can share memory, by the run directory "+
			probe.Dir, "")
	}
	for _, l := range probe.Limits {
		const most = 80 // percent
		if l.Limit > 0 && l.Used >= 0 && l.Used*100 > l.Limit*most {
			r.add(levelWarn, "limit", fmt.Sprintf("%s: %s of %s are in use", l.Name,
				formatUnit(l.Used, l.Unit), formatUnit(l.Limit, l.Unit)),
				"docs/limits.md says how to raise it")
		}
	}
	if len(probe.UEIDs) > 0 && !probe.Capabilities.SMCRv2.Available {
		r.add(levelWarn, "smc-r", "A UEID is configured, but SMC-R with other machines cannot be used: "+
			probe.Capabilities.SMCRv2.Why, probe.Capabilities.SMCRv2.Advice)
	}
	g := survey.Ask(ctx, r.dir)
	for _, e := range g.Errors {
		r.add(levelWarn, "hosts", e.Path+": "+e.Text, "")
	}
	if os.Geteuid() != 0 {
		text := "Programs of other users were not looked at"
		r.add(levelOK, "users", text, "sudo gosmc doctor")
	}
	r.programs(r.ours(inspect.Processes()))
	r.left(g.Dirs)
	r.connections(&g, func(inventory.Conn) bool { return true })
}

// settings checks the configuration, and returns whether all is switched off.
func (r *doctorReport) settings() (off bool) {
	s, err := config.Load()
	if err != nil {
		r.add(levelFail, "configuration", "Parts of the configuration are not understood, and left out: "+
			errorText(err), "edit "+config.Path()+", then: gosmc policy")
	}
	if s.Off {
		r.add(levelFail, "off", "SMC is switched off"+from(config.SMC), "sudo gosmc on")
	}
	for _, dir := range survey.Off(r.dir) { // rule: TestDoctorOff: survey.Off(r.dir) -> survey.Off("/nonexistent")
		r.add(levelFail, "off", "The run directory "+dir+" is switched off, as by 'gosmc off --now': new "+
			"connections stay TCP", "sudo gosmc on")
	}
	if err := inspect.CheckDir(os.Geteuid()); err != nil {
		r.add(levelFail, "run-directory", errorText(err), "set GOSMC_DIR to an absolute path")
	}
	if obstacle := ownObstacle(); obstacle != "" {
		r.add(levelFail, "process", "'gosmc run' can do nothing here: "+obstacle, "")
	}
	if !s.Off && err == nil {
		r.add(levelOK, "configuration", "SMC is on"+from(config.SMC, config.Program, config.ListenPort,
			config.ListenAddress, config.ConnectPort, config.ConnectAddress), "")
	}
	return s.Off
}

// ours leaves the programs that the report is about.
func (r *doctorReport) ours(list []inspect.Process) []inspect.Process {
	return programsIn(list, r.dir)
}

// programsIn leaves the programs with a run directory, or all if dir is empty.
func programsIn(list []inspect.Process, dir string) []inspect.Process {
	if dir == "" {
		return list
	}
	return slices.DeleteFunc(list, func(p inspect.Process) bool { return !inventory.Within(p.Dir, dir) })
}

// programs checks the supervisors and the libraries of programs of 'gosmc run'.
func (r *doctorReport) programs(list []inspect.Process) {
	old := 0
	for _, p := range list {
		name := fmt.Sprintf("%d %s", p.PID, p.Command)
		if p.Ended { // rule: TestDoctorSupervisor
			r.add(levelFail, "supervisor", name+": its supervisor has ended, as if it was killed. Its "+
				"connections go on; new ones are TCP", "start "+p.Command+" again")
		}
		if p.Old {
			old++
			r.add(levelWarn, "library", name+" has the library of another version than the one that is "+
				"installed", "start "+p.Command+" again, when you like: both versions talk to each other")
		}
	}
	if len(list) > 0 {
		r.add(levelOK, "programs", fmt.Sprintf("%s of 'gosmc run', %d with the library that is installed",
			plural(len(list), "program"), len(list)-old), "")
	}
}

// left has the programs that 'gosmc run' has left to TCP.
func (r *doctorReport) left(dirs []string) {
	for _, dir := range dirs {
		programs := inspect.Left(dir)
		for _, program := range slices.Sorted(maps.Keys(programs)) {
			r.add(levelWarn, "left", program+" was left to TCP by 'gosmc run': "+programs[program],
				"docs/run.md, Troubleshooting")
		}
	}
}

// connections has the chosen connections that are TCP, by server and reason.
func (r *doctorReport) connections(g *survey.Answers, chosen func(inventory.Conn) bool) {
	report := newSSReport(g, true, false)
	report.AddMoved(r.dir, g.NetNS)
	report.Connections = slices.DeleteFunc(report.Connections, func(c inventory.Conn) bool { return !chosen(c) })
	moved := 0
	for _, s := range inventory.Summarize(report.Connections) {
		for mode, n := range s.Modes {
			if mode != "TCP" {
				moved += n
			}
		}
		for _, reason := range s.Reasons {
			i := slices.IndexFunc(report.Connections,
				func(c inventory.Conn) bool { return servesAt(&c, s.Port) && c.Mode == "TCP" && c.Tag() == reason.Tag })
			text := fmt.Sprintf("Port %d, %s: %s stay TCP, %s", s.Port, orNA(s.Command),
				plural(reason.Count, "connection"), or(reason.Tag, "for no visible reason"))
			fix, level := "", levelWarn
			if i >= 0 {
				c := report.Connections[i]
				text += ": " + or(c.Cause, c.Reason)
				fix = c.Advice
				if clc.Diagnosis(c.ReasonCode) == clc.DiagShort ||
					clc.Diagnosis(c.ReasonCode) == clc.DiagNotAllowed ||
					clc.Diagnosis(c.ReasonCode) == clc.DiagDisabled {
					level = levelOK // as somebody wants, or as is best
				}
			}
			r.add(level, "connections", text, fix)
		}
	}
	r.add(levelOK, "connections", plural(moved, "connection")+" outside TCP", "")
}

// servesAt reports whether the server of a connection has a port.
func servesAt(c *inventory.Conn, port int) bool {
	addr, err := netip.ParseAddrPort(c.Server())
	return err == nil && int(addr.Port()) == port
}

// program checks a process.
func (r *doctorReport) program(ctx context.Context, pid int) error {
	if err := unix.Kill(pid, 0); pid <= 0 || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("there is no process %d", pid)
	}
	g := survey.Ask(ctx, r.dir)
	of := func(c inventory.Conn) bool { return inspect.IsOrIsBelow(c.PID, pid) } // rule: TestDoctorSupervisor: inspect.IsOrIsBelow(c.PID, pid) -> c.PID == pid
	for _, h := range g.Hosts {
		if h.PID == pid {
			r.add(levelOK, "program", fmt.Sprintf("%d %s uses package smc, with the run directory %s", pid,
				h.Command, h.Dir), "")
			r.connections(&g, of)
			return nil
		}
	}
	why, err := inspect.WhyNotRun(pid)
	switch {
	case err != nil:
		return fmt.Errorf("process %d cannot be looked at: %w", pid, err)
	case why != "":
		r.add(levelFail, "program", fmt.Sprintf("%d: %s", pid, why),
			"start it by 'gosmc run PROGRAM'; a service by 'gosmc service enable NAME'")
		return nil
	}
	r.settings()
	r.programs(slices.DeleteFunc(inspect.Processes(),
		func(p inspect.Process) bool { return p.PID != pid }))
	r.connections(&g, of)
	return nil
}

// server follows a connection to a server, as run --explain does.
func (r *doctorReport) server(ctx context.Context) error {
	s, err := config.Load()
	if err != nil {
		r.add(levelFail, "configuration", "Parts of the configuration are not understood, and left out: "+
			errorText(err), "edit "+config.Path())
	}
	e, err := explain(ctx, r.Subject, "", nil, os.Geteuid(), &s, ownObstacle())
	if err != nil {
		return err
	}
	for _, server := range e.Servers {
		for _, step := range server.Steps {
			level, fix := levelOK, ""
			if !step.OK {
				level, fix = levelFail, remedyOf(step.What, server.Server)
			}
			r.add(level, "server", server.Server+": "+step.What, fix)
		}
	}
	g := survey.Ask(ctx, r.dir)
	r.connections(&g, func(c inventory.Conn) bool {
		return slices.ContainsFunc(e.Servers,
			func(s explained) bool { return sameServer(c.Server(), s.Server) })
	})
	return nil
}

// sameServer reports whether two addresses have the same port, and the same host if both name one.
func sameServer(a, b string) bool {
	one, err := netip.ParseAddrPort(a)
	if err != nil {
		return false
	}
	other, err := netip.ParseAddrPort(b)
	return err == nil && one.Port() == other.Port() &&
		(one.Addr().Unmap() == other.Addr().Unmap() || one.Addr().IsUnspecified())
}

// remedyOf is the remedy for the step of an explanation that decides for TCP.
func remedyOf(what, server string) string {
	for _, r := range []struct{ in, fix string }{
		{"nobody listens", "start the server, by 'gosmc run PROGRAM'"},
		{"memory is not shared between users",
			"start both as one user; setpriv --reuid USER gosmc run PROGRAM"},
		{"it is a Go program", "a Go program: 'gosmc go build' compiles it so that it uses SMC; docs/go.md"},
		{"library cannot be loaded", "docs/run.md has the programs that can be moved"},
		{"was not started by 'gosmc run'", "start it by 'gosmc run PROGRAM'; a service by 'gosmc service " +
			"enable NAME'"},
		{"its supervisor has ended", "start the server again"},
		{"out of use", "sudo gosmc on"},
		{"switched off", "sudo gosmc on"},
		{"its run directory is", "start both with the same GOSMC_DIR"},
		{"is refused by", "gosmc policy shows the rule; 'gosmc policy del' removes it"},
		{"is not among", "gosmc policy shows the rule; 'gosmc policy add' adds the server"},
		{"an address of this machine", "SMC-R reaches other machines: docs/smcr.md"},
	} {
		if strings.Contains(what, r.in) {
			return r.fix
		}
	}
	return "docs/run.md, Troubleshooting, has the steps for " + server
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// write prints the findings, with remedies below them.
func (r *doctorReport) write(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		mark := map[string]string{levelOK: "ok  ", levelWarn: "WARN", levelFail: "FAIL"}[f.Level]
		b.WriteString(mark + "  " + printable(f.Text) + "\n")
		if f.Fix != "" {
			b.WriteString("      -> " + printable(f.Fix) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeFixes prints the remedies of warnings and failures.
func (r *doctorReport) writeFixes(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		if f.Fix != "" && f.Level != levelOK {
			b.WriteString(printable(f.Fix) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// verdict is the error for a machine with warnings or failures.
func (r *doctorReport) verdict() error {
	warnings, failures := 0, 0
	for _, f := range r.Findings {
		switch f.Level {
		case levelWarn:
			warnings++
		case levelFail:
			failures++
		}
	}
	if warnings+failures == 0 {
		return nil
	}
	return fmt.Errorf("%s, %s", plural(warnings, "warning"), plural(failures, "failure"))
}
