package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/survey"
)

// An explainReport is the output of run --explain --json.
type explainReport struct {
	Schema  int         `json:"schema"`
	Time    time.Time   `json:"time"`
	Address string      `json:"address"` // as it was given
	Program string      `json:"program"` // that would connect; empty: any
	UID     int         `json:"uid"`     // of the user that would run it
	Servers []explained `json:"servers"` // one for each address that the name has
}

// An explained server says how a connection to it would end up.
type explained struct {
	Server  string        `json:"server"`
	Mode    string        `json:"mode"`   // of a connection from a program of 'gosmc run': "Unix", "TCP"
	Reason  string        `json:"reason"` // of TCP; empty otherwise
	Steps   []explainStep `json:"steps"`  // in order, up to the first that decides for TCP
	Listen  string        `json:"listen"` // why a program here that listened at the address would not be announced; empty: it would
	Library struct {      // the same for a program that uses package smc
		Mode   string `json:"mode"` // "SMC-D", "TCP"
		Reason string `json:"reason"`
	} `json:"library"`
}

type explainStep struct {
	OK   bool   `json:"ok"`
	What string `json:"what"`
}

// explain reports which mode connections of a user to an address would get. program is a path, or
// empty; args are its arguments, with its name as the first. obstacle says why 'gosmc run' leaves
// every program to TCP here, "" if it does not.
func explain(ctx context.Context, address, program string, args []string, uid int, s *config.Settings, obstacle string) (*explainReport, error) {
	r := &explainReport{Schema: jsonSchema, Time: time.Now(), Address: address, Program: program, UID: uid, Servers: []explained{}}
	servers, err := resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	name, programs := config.ProgramName(program), s.Programs
	if program == "" {
		programs = nil // no name to ask about
	}
	policy, err := config.NewPolicy(s.Listen, s.Connect, programs, name)
	if err != nil {
		return nil, err
	}
	hosts := survey.Ask(ctx, "")
	for _, server := range servers {
		e := explained{Server: server.String(), Listen: policy.Listen.RefusesListener(server)}
		e.follow(server, program, args, uid, s, policy, obstacle)
		e.library(server, uid, s, policy, &hosts)
		e.libraryShort(server, program, args, uid, s)
		r.Servers = append(r.Servers, e)
	}
	return r, nil
}

// resolve returns the addresses behind HOST:PORT.
func resolve(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if port == 0 {
		return nil, usagef("address %q: want the port of a server", address)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, a := range addrs {
		switch a = a.Unmap(); a { // to which the kernel connects
		case netip.IPv4Unspecified():
			a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		case netip.IPv6Unspecified():
			a = netip.IPv6Loopback()
		}
		list = append(list, netip.AddrPortFrom(a, uint16(port)))
	}
	return list, nil
}

// follow takes the steps that a program of 'gosmc run' would.
func (e *explained) follow(server netip.AddrPort, program string, args []string, uid int, s *config.Settings, policy *config.Policy, obstacle string) {
	e.Mode = modeUnix
	step := func(ok bool, what string, args ...any) bool {
		what = fmt.Sprintf(what, args...)
		e.Steps = append(e.Steps, explainStep{ok, what})
		if !ok {
			e.Mode, e.Reason = "TCP", what
		}
		return ok
	}
	if !step(!s.Off, "SMC is switched %s%s", map[bool]string{true: "off", false: "on"}[s.Off], from(config.SMC)) {
		return
	}
	if obstacle != "" { // rule: TestRunExplainObstacle
		step(false, "'gosmc run' can do nothing here: %s", obstacle)
		return
	}
	if program != "" {
		why := inspect.Obstacle(program)
		if !step(why == "", "%s", or(why, "the library can be loaded into "+program)) {
			return
		}
	}
	if why := policy.Connect.Refuses(server); !step(why == "", "%s", or(why, "the policy lets programs here connect"+from(config.ConnectPort, config.ConnectAddress, config.Program))) {
		return
	}
	seen, err := inspect.Look(server, uid)
	if err != nil {
		step(false, "cannot find out who listens: %v", err)
		return
	}
	who := "somebody"
	if seen.PID != 0 {
		who = process(seen.PID, seen.Command)
	}
	switch {
	case !step(seen.Local, "%s is %san address of this machine", server.Addr(), not(seen.Local)):
	case !step(seen.Listens, "%s listens on it", or(map[bool]string{true: who, false: "nobody"}[seen.Listens], who)):
	case policy.Listen.Refuses(server) != "":
		step(false, "%s", policy.Listen.Refuses(server))
	default:
		if step(seen.Obstacle == "", "%s", or(seen.Obstacle, "it was started by 'gosmc run', and its supervisor answers")) && program != "" {
			e.admission(server, program, args, uid, s, step)
		}
	}
}

// admission takes the step that tells whether connections of a program are left to TCP because
// those before were short.
func (e *explained) admission(server netip.AddrPort, program string, args []string, uid int, s *config.Settings, step func(ok bool, what string, args ...any) bool) {
	after := s.ShortAfter
	if after == 0 {
		after = admission.DefaultAfter
	}
	switch a := shortBefore(server, program, args, uid); {
	case after < 0: // all are moved
	case int64(a.Short) >= int64(after):
		step(false, "the last %d connections of %s to it that were moved were too short to gain, so others stay TCP (SHORT, %d so far), but for one in %d: --short-after off moves all", a.Short, program, a.Kept, a.Probe)
	case a.Short > 0:
		step(true, "%d connections of %s to it were short, one after another, and %d would leave others to TCP%s", a.Short, program, after, from(config.ShortAfter))
	}
}

// shortBefore returns the memory of earlier connections of a program with arguments.
func shortBefore(server netip.AddrPort, program string, args []string, uid int) admission.Memory {
	script := ""
	if len(args) > 1 {
		script = args[1]
	}
	return inspect.ShortBefore(server, program, script, uid)
}

// libraryShort says of a program with package smc whether its connections are left to TCP because
// those before were short.
func (e *explained) libraryShort(server netip.AddrPort, program string, args []string, uid int, s *config.Settings) {
	after := s.ShortAfter
	if after == 0 {
		after = admission.DefaultAfter
	}
	if e.Library.Mode == "TCP" || program == "" || after < 0 {
		return
	}
	if a := shortBefore(server, program, args, uid); int64(a.Short) >= int64(after) {
		e.Library.Mode = "TCP"
		e.Library.Reason = fmt.Sprintf("its last %d connections to it were too short to gain (SHORT), but for one in %d: GOSMC_SHORT_AFTER=off moves all", a.Short, a.Probe)
	}
}

// library fills in the mode that a program that uses package smc would get.
func (e *explained) library(server netip.AddrPort, uid int, s *config.Settings, policy *config.Policy, hosts *survey.Answers) {
	e.Library.Mode = "TCP"
	if s.Off {
		e.Library.Reason = "SMC is switched off" + from(config.SMC)
		return
	}
	if why := policy.Connect.Refuses(server); why != "" {
		e.Library.Reason = why
		return
	}
	for _, h := range hosts.Hosts {
		for _, l := range h.Listeners {
			local, err := netip.ParseAddrPort(l.Local)
			if err != nil || hosts.Elsewhere(l.NetNS) || local.Port() != server.Port() {
				continue
			}
			if a := local.Addr(); a != server.Addr() && (!a.IsUnspecified() || a.Is4() && server.Addr().Is6()) {
				continue
			}
			switch e.Library.Reason = policy.Listen.Refuses(server); {
			case e.Library.Reason != "":
			case int(h.UID) != uid:
				e.Library.Reason = "the server belongs to another user: both must set Config.AnyUser"
			default:
				e.Library.Mode = "SMC-D"
			}
			return
		}
	}
	e.Library.Reason = "no program of this machine that uses package smc listens there; for SMC-R with other machines see 'gosmc info'"
}

// from says where words of the policy are from, in brackets, if anything is said.
func from(words ...string) string {
	var list []string
	for _, w := range words {
		if source := config.Source(w); source != "" {
			list = append(list, w+": "+source)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func not(yes bool) string {
	if yes {
		return ""
	}
	return "not "
}

// write prints the report; all says that programs outside 'gosmc run' are meant too.
func (r *explainReport) write(w io.Writer, all bool) error {
	var b strings.Builder
	for _, e := range r.Servers {
		fmt.Fprintf(&b, "%s: %s of 'gosmc run' connects by %s\n", printable(e.Server), printable(or(r.Program, "a program")), e.Mode)
		for _, s := range e.Steps {
			fmt.Fprintf(&b, "  %-3s  %s\n", map[bool]string{true: "yes", false: "no"}[s.OK], printable(s.What))
		}
		if !all {
			continue
		}
		fmt.Fprintf(&b, "  A program with package smc connects by %s.\n", e.Library.Mode+printable(prefixed(": ", e.Library.Reason)))
		if e.Listen == "" {
			fmt.Fprintf(&b, "  A program here that listens there is announced.\n")
		} else {
			fmt.Fprintf(&b, "  A program here that listens there is not announced: %s.\n", printable(e.Listen))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// verdict is the error of an explanation: status 3 unless some address would leave TCP.
func (r *explainReport) verdict() error {
	var last string
	for _, e := range r.Servers {
		if e.Mode != "TCP" {
			return nil
		}
		last = e.Reason
	}
	return &exitError{exitFellBack, errors.New(r.Address + " would be TCP: " + last)}
}

// userNamed returns the number of a user, given by name or number.
func userNamed(name string) (int, error) {
	if uid, err := strconv.Atoi(name); err == nil && uid >= 0 {
		return uid, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, usagef("--user %q: there is no such user", name)
	}
	return strconv.Atoi(u.Uid)
}

// programPath is where a program is that somebody has named.
func programPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", notRunnable(err)
	}
	return path, nil
}
