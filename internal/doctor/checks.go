package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire/clc"
)

func (r *Report) add(level, check, text, fix string) {
	r.Findings = append(r.Findings, Finding{level, check, text, fix})
}

// examine makes the checks for the subject.
func (r *Report) examine(ctx context.Context) error {
	pid, err := strconv.Atoi(r.Subject)
	switch {
	case r.Subject == "":
		r.machine(ctx)
	case err == nil:
		err = r.program(ctx, pid)
	case !strings.Contains(r.Subject, ":"):
		if pid, err = serviceProcess(procs.Dir, r.Subject); err == nil {
			err = r.program(ctx, pid)
		}
	default:
		err = r.server(ctx)
	}
	if r.Subject != "" && err != nil {
		return err
	}
	r.Healthy = !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level != OK })
	return nil
}

// machine makes all checks that concern no single connection.
func (r *Report) machine(ctx context.Context) {
	off := r.settings()
	probe, err := survey.NewProbe(ctx)
	switch {
	case off: // which says it all
	case err != nil:
		r.add(Fail, "shared-memory", "Programs of this user cannot share memory: "+errorText(err),
			probe.Capabilities.SMCDv2.Advice)
	default:
		r.add(OK, "shared-memory", "Programs of this user can share memory, by the run directory "+
			probe.Dir, "")
		checkSelf(ctx, r)
	}
	for _, l := range probe.Limits {
		const most = 80 // percent
		if l.Limit > 0 && l.Used >= 0 && l.Used*100 > l.Limit*most {
			r.add(Warn, "limit", fmt.Sprintf("%s: %s of %s are in use", l.Name,
				text.Unit(l.Used, l.Unit), text.Unit(l.Limit, l.Unit)),
				"docs/limits.md says how to raise it")
		}
	}
	if len(probe.UEIDs) > 0 && !probe.Capabilities.SMCRv2.Available {
		r.add(Warn, "smc-r", "A UEID is configured, but SMC-R with other machines cannot be used: "+
			probe.Capabilities.SMCRv2.Why, cmp.Or(probe.Capabilities.SMCRv2.Advice,
			"docs/smcr.md says what SMC-R needs: an interface with an address, and a peer or an agent"))
	}
	if !off {
		checkAgent(ctx, r, probe)
	}
	r.rdma() // rule: cmd/gosmc TestDoctorFaults
	g := survey.Ask(ctx, r.opts.Dir)
	for i, e := range g.Errors {
		if i == 0 && g.Missing { // rule: cmd/gosmc TestDoctorMissing
			r.add(Warn, "hosts", e.Path+": "+e.Text,
				"name the directory that programs use, or start one with it")
			continue
		}
		if e.Text == rundir.ErrOff.Error() {
			continue // which settings has told
		}
		r.add(Warn, "hosts", e.Path+": "+e.Text, "'ss -xlp src "+
			inventory.CommandWord(e.Path)+"' names the process: if it was stopped, "+
			"'kill -CONT PID'; otherwise start it again")
	}
	if os.Geteuid() != 0 {
		text := "Programs of other users were not looked at"
		r.add(OK, "users", text, "sudo gosmc doctor")
	}
	r.programs(r.ours(inspect.Processes()))
	r.left(g.Dirs)
	r.connections(&g, func(inventory.Conn) bool { return true })
}

// settings checks the configuration, and returns whether all is switched off.
func (r *Report) settings() (off bool) {
	s, err := config.Load()
	closed := s.Closed()
	if err != nil {
		note := ""
		if len(closed) > 0 {
			note = ". Until then all is refused by " + strings.Join(closed, ", ")
		}
		what, fix := notUnderstood(err)
		r.add(Fail, "configuration", what+note, fix)
	} else if len(closed) > 0 {
		text := "The policy refuses all by " + strings.Join(closed, ", ")
		r.add(Warn, "policy", text+From(closed...), "gosmc policy")
	}
	if s.Off {
		what := "SMC is switched off" + From(config.SMC)
		r.add(Fail, "off", what, remedyOf(what, ""))
	}
	for _, dir := range survey.Off(r.opts.Dir) { // rule: cmd/gosmc TestDoctorOff: survey.Off(r.opts.Dir) -> survey.Off("/nonexistent")
		r.add(Fail, "off", "The run directory "+dir+" is switched off, as by 'gosmc off --now': new "+
			"connections stay TCP", "sudo gosmc on")
	}
	for _, p := range config.UnknownUsers(s.Users) { // rule: cmd/gosmc TestDoctorUnknownUser: s.Users -> nil
		r.add(Warn, "policy", text.Printable(p.Message)+From(config.UsersWord), "gosmc config check")
	}
	if path := config.Path(); path != config.DefaultPath {
		_, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) { // rule: cmd/gosmc TestDoctorFaults: fs.ErrNotExist -> fs.ErrExist
			r.add(Warn, "configuration", config.EnvFile+" names "+path+", which does not exist: "+
				"nothing is configured", "name the file, or make it by 'gosmc config set'")
		}
	}
	if err := inspect.CheckDir(os.Geteuid()); err != nil {
		r.add(Fail, "run-directory", errorText(err),
			"set GOSMC_DIR to an absolute path of up to 40 characters")
	}
	if obstacle := r.opts.Obstacle; obstacle != "" {
		r.add(Fail, "process", "'gosmc run' can do nothing here: "+obstacle,
			"start programs where this is not so; "+
				"'gosmc run' starts them with TCP here")
	}
	if !s.Off && err == nil {
		r.add(OK, "configuration", "SMC is on"+From(config.SMC, config.Program, config.ListenPort,
			config.ListenAddress, config.ConnectPort, config.ConnectAddress), "")
	}
	return s.Off
}

// notUnderstood says what is wrong with the configuration, and the remedy.
func notUnderstood(err error) (what, fix string) {
	if errors.Is(err, fs.ErrPermission) { // rule: cmd/gosmc TestDoctorFaults: fs.ErrPermission -> fs.ErrExist
		return "The configuration cannot be read by this user, and is left out: " + errorText(err),
			"sudo chmod a+r " + inventory.CommandWord(config.Path())
	}
	return "Parts of the configuration are not understood, and left out: " + errorText(err),
		"edit " + config.Path() + ", then: gosmc policy"
}

// rdma checks the RDMA devices of the kernel that the configuration names. Others are no matter.
func (r *Report) rdma() {
	s, _ := config.Load() // settings tells of the error
	list, err := inventory.KernelDevices(s.Devices)
	if err != nil && len(list) > 0 {
		r.add(Warn, "rdma", "The list of RDMA devices is not complete: "+errorText(err), "gosmc device")
	}
	for _, d := range list {
		switch {
		case !d.Named: // of no concern
		case d.Usable:
			r.add(OK, "rdma", "Programs of this user can use RDMA device "+text.Printable(d.Name), "")
		default:
			r.add(Warn, "rdma", "RDMA device "+text.Printable(d.Name)+" is configured and cannot be used: "+
				text.Printable(d.Why), cmp.Or(text.Printable(d.Remedy), "gosmc device -d"))
		}
	}
}

// ours leaves the programs that the report is about.
func (r *Report) ours(list []inspect.Process) []inspect.Process {
	return Programs(list, r.opts.Dir)
}

// Programs leaves the programs with a run directory, or all if dir is empty.
func Programs(list []inspect.Process, dir string) []inspect.Process {
	if dir == "" {
		return list
	}
	return slices.DeleteFunc(list, func(p inspect.Process) bool { return !inventory.Within(p.Dir, dir) })
}

// programs checks the supervisors and the libraries of programs of 'gosmc run'.
func (r *Report) programs(list []inspect.Process) {
	old := 0
	for _, p := range list {
		name := fmt.Sprintf("%d %s", p.PID, p.Command)
		if p.Ended { // rule: cmd/gosmc TestDoctorSupervisor
			r.add(Fail, "supervisor", name+": its supervisor has ended, as if it was killed. Its "+
				"connections go on; new ones are TCP", "start "+inventory.CommandWord(p.Command)+" again")
		}
		if p.Old {
			old++
			r.add(Warn, "library", name+" has the library of another version than the one that is "+
				"installed", "start "+inventory.CommandWord(p.Command)+
				" again, when you like: both versions talk to each other")
		}
	}
	if len(list) > 0 {
		r.add(OK, "programs", fmt.Sprintf("%s of 'gosmc run', %d with the library that is installed",
			plural(len(list), "program"), len(list)-old), "")
	}
}

// left has the programs that 'gosmc run' has left to TCP. One that does not run any more is no fault.
func (r *Report) left(dirs []string) {
	for _, dir := range dirs {
		programs := inspect.Left(dir)
		for _, program := range slices.Sorted(maps.Keys(programs)) {
			level, ended, fix := Warn, "", "docs/run.md, Troubleshooting"
			if inspect.HasEnded(program) { // rule: cmd/gosmc TestDoctorLeft: inspect.HasEnded(program) -> false
				level, ended, fix = OK, ", and has ended", ""
			}
			r.add(level, "left", program+" was left to TCP by 'gosmc run'"+ended+": "+programs[program], fix)
		}
	}
}

// connections has the chosen connections that are TCP, by server and reason.
func (r *Report) connections(g *survey.Answers, chosen func(inventory.Conn) bool) {
	report := inventory.New(g, true, false)
	report.AddMoved(r.opts.Dir, g.NetNS)
	report.Connections = slices.DeleteFunc(report.Connections,
		func(c inventory.Conn) bool { return !chosen(c) })
	moved := 0
	for _, s := range inventory.Summarize(report.Connections) {
		for mode, n := range s.Modes {
			if mode != "TCP" {
				moved += n
			}
		}
		for _, reason := range s.Reasons {
			i := slices.IndexFunc(report.Connections,
				func(c inventory.Conn) bool {
					return servesAt(&c, s.Port) && c.Mode == "TCP" && c.Tag() == reason.Tag
				})
			stay := "stay"
			if reason.Count == 1 {
				stay = "stays"
			}
			text := fmt.Sprintf("Port %d, %s: %s %s TCP, %s", s.Port, cmp.Or(s.Command, "n/a"),
				plural(reason.Count, "connection"), stay, cmp.Or(reason.Tag, "for no visible reason"))
			fix, level := "", Warn
			if i >= 0 {
				c := report.Connections[i]
				text += ": " + cmp.Or(c.Cause, c.Reason)
				fix = c.Advice
				if clc.Diagnosis(c.ReasonCode) == clc.DiagShort ||
					clc.Diagnosis(c.ReasonCode) == clc.DiagNotAllowed ||
					clc.Diagnosis(c.ReasonCode) == clc.DiagDisabled {
					level = OK // as somebody wants, or as is best
				}
			}
			r.add(level, "connections", text, fix)
		}
	}
	r.add(OK, "connections", plural(moved, "connection")+" outside TCP", "")
}

// servesAt reports whether the server of a connection has a port.
func servesAt(c *inventory.Conn, port int) bool {
	addr, err := netip.ParseAddrPort(c.Server())
	return err == nil && int(addr.Port()) == port
}

// program checks a process.
func (r *Report) program(ctx context.Context, pid int) error {
	if err := unix.Kill(pid, 0); pid <= 0 || errors.Is(err, unix.ESRCH) {
		return noProcess(pid)
	}
	g := survey.Ask(ctx, r.opts.Dir)
	of := func(c inventory.Conn) bool { return inspect.IsOrIsBelow(c.PID, pid) } // rule: cmd/gosmc TestDoctorSupervisor: inspect.IsOrIsBelow(c.PID, pid) -> c.PID == pid
	for _, h := range g.Hosts {
		if h.PID == pid {
			r.add(OK, "program", fmt.Sprintf("%d %s uses package smc, with the run directory %s", pid,
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
		r.add(Fail, "program", fmt.Sprintf("%d: %s", pid, why), remedyOf(why, ""))
		return nil
	}
	r.settings()
	r.programs(slices.DeleteFunc(inspect.Processes(),
		func(p inspect.Process) bool { return p.PID != pid }))
	r.connections(&g, of)
	return nil
}

// server follows a connection to a server, as run --explain does.
func (r *Report) server(ctx context.Context) error {
	s, err := config.Load()
	if err != nil {
		what, fix := notUnderstood(err)
		r.add(Fail, "configuration", what, fix)
	}
	e, err := Explain(ctx, r.Subject, "", nil, os.Geteuid(), &s, r.opts.Obstacle)
	if err != nil {
		return err
	}
	for _, server := range e.Servers {
		between := server.elsewhere && (len(s.UEIDs) > 0 || s.SMCRv1)
		for _, step := range server.Steps {
			level, fix := OK, ""
			if !step.OK && between {
				step.What += ": programs of 'gosmc run' stay TCP, those with package smc can use " +
					"SMC-R"
			} else if !step.OK {
				level, fix = Fail, remedyOf(step.What, server.Server)
			}
			r.add(level, "server", server.Server+": "+step.What, fix)
		}
		if address, err := netip.ParseAddrPort(server.Server); between && err == nil {
			r.between(ctx, address)
		}
	}
	g := survey.Ask(ctx, r.opts.Dir)
	r.connections(&g, func(c inventory.Conn) bool {
		return slices.ContainsFunc(e.Servers,
			func(s Server) bool { return sameServer(c.Server(), s.Server) })
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

// withoutDisabled is the remedy where the environment switches SMC off, which 'gosmc on' does not change.
const withoutDisabled = "start the program without " + config.EnvDisabled + " in its environment"

// remedyOf is the remedy for the step of an explanation that decides for TCP.
func remedyOf(what, server string) string {
	for _, r := range []struct{ in, fix string }{
		{"nobody listens", "start the server, by 'gosmc run PROGRAM'"},
		{"no agent introduces them", "sudo systemctl enable --now gosmc-agent; without systemd: sudo gosmc " +
			"agent"},
		{"memory is not shared between users", "start both as one user: setpriv --reuid USER gosmc run " +
			"PROGRAM; or an agent, which introduces users: sudo systemctl enable --now gosmc-agent"},
		{"the policy of users here", "gosmc policy add users NAME"},
		{"it is a Go program", "a Go program: 'gosmc go build' compiles it so that it uses SMC; docs/go.md"},
		{"it is statically linked", "if it is a Go program: 'gosmc go build' compiles it so that it " +
			"uses SMC; others have to be linked dynamically"},
		{"library cannot be loaded", "docs/run.md has the programs that can be moved"},
		{"was not started by 'gosmc run'", "start it by 'gosmc run PROGRAM'; a service by 'gosmc service " +
			"enable NAME'"},
		{"its supervisor has ended", "start the server again"},
		{"is stopped: connections wait", "let it go on: 'kill -CONT', with the number of the process"},
		{config.EnvDisabled, withoutDisabled},
		{"out of use", "sudo gosmc on"},
		{"switched off", "sudo gosmc on"},
		{"its run directory is", "start both with the same GOSMC_DIR"},
		{"is refused by", "gosmc policy shows the rule; 'gosmc policy del' removes it"},
		{"is not among", "gosmc policy shows the rule; 'gosmc policy add' adds the server"},
		{"between-hosts is off", "SMC-R reaches other machines: docs/smcr.md; for programs of " +
			"'gosmc run': sudo gosmc config set between-hosts on"},
		{"no UEID is set", "sudo gosmc config set ueid NAME, the same on both hosts"},
		{"it cannot be asked", "sudo systemctl enable --now gosmc-agent, on both hosts; or: sudo gosmc " +
			"config set peer ADDRESS:PORT"},
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

// Verdict is the error for a machine with warnings or failures.
func (r *Report) Verdict() error {
	warnings, failures := 0, 0
	for _, f := range r.Findings {
		switch f.Level {
		case Warn:
			warnings++
		case Fail:
			failures++
		}
	}
	if warnings+failures == 0 {
		return nil
	}
	return fmt.Errorf("%s, %s", plural(warnings, "warning"), plural(failures, "failure"))
}
