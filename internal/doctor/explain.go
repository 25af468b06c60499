package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/netns"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/survey"
)

// An Explanation says which mode connections to an address would get.
type Explanation struct {
	Address string   `json:"address"` // as it was given
	Program string   `json:"program"` // that would connect; empty: any
	UID     int      `json:"uid"`     // of the user that would run it
	Servers []Server `json:"servers"` // one for each address that the name has
}

// An Server server says how a connection to it would end up.
type Server struct {
	Server string `json:"server"`
	Mode   string `json:"mode"`   // of a program of 'gosmc run': "Unix", "SMC-R", "TCP"
	Reason string `json:"reason"` // of TCP; empty otherwise
	Steps  []Step `json:"steps"`  // in order, up to the first that decides for TCP
	// why a program here that listened at the address would not be announced; empty: it would
	Listen  string   `json:"listen"`
	Library struct { // the same for a program that uses package smc
		Mode   string `json:"mode"` // "SMC-D", "TCP"
		Reason string `json:"reason"`
	} `json:"library"`

	uid       int  // of the client
	elsewhere bool // the address is none of this machine, and nothing before that decides
}

type Step struct {
	OK   bool   `json:"ok"`
	What string `json:"what"`
}

// Explain reports which mode connections of a user to an address would get. program is a path, or
// empty; args are its arguments, with its name as the first. obstacle says why 'gosmc run' leaves
// every program to TCP here, "" if it does not.
func Explain(ctx context.Context, address, program string, args []string, uid int, s *config.Settings,
	obstacle string) (*Explanation, error) {
	r := &Explanation{Address: address, Program: program, UID: uid, Servers: []Server{}}
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
	if policy.Users, err = config.NewUsers(s.Users); err != nil {
		return nil, err
	}
	hosts := survey.Ask(ctx, "")
	for _, server := range servers {
		e := Server{Server: server.String(), uid: uid, Listen: policy.Listen.RefusesListener(server)}
		e.follow(ctx, server, program, args, uid, s, policy, obstacle)
		e.library(server, uid, s, policy, &hosts)
		e.libraryShort(server, program, args, uid, s)
		r.Servers = append(r.Servers, e)
	}
	return r, nil
}

// ErrNoPort is the cause of an error for an address with the port 0.
var ErrNoPort = errors.New("want the port of a server")

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
		return nil, fmt.Errorf("address %q: %w", address, ErrNoPort)
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
func (e *Server) follow(
	ctx context.Context, server netip.AddrPort, program string, args []string, uid int,
	s *config.Settings, policy *config.Policy, obstacle string,
) {
	e.Mode = inventory.ModeUnix
	step := func(ok bool, what string, args ...any) bool {
		what = fmt.Sprintf(what, args...)
		e.Steps = append(e.Steps, Step{ok, what})
		if !ok {
			e.Mode, e.Reason = "TCP", what
		}
		return ok
	}
	if !step(!s.Off, "SMC is switched %s%s", map[bool]string{true: "off", false: "on"}[s.Off],
		From(config.SMC)) {
		return
	}
	if obstacle != "" { // rule: cmd/gosmc TestRunExplainObstacle
		step(false, "'gosmc run' can do nothing here: %s", obstacle)
		return
	}
	if program != "" {
		why := inspect.Obstacle(program)
		if !step(why == "", "%s", cmp.Or(why, "the library can be loaded into "+program)) {
			return
		}
	}
	if why := policy.Connect.Refuses(server); !step(why == "", "%s", cmp.Or(why, "the policy lets programs here connect"+From(config.ConnectPort, config.ConnectAddress, config.Program))) {
		return
	}
	seen, err := inspect.Look(server, uid)
	if err != nil {
		step(false, "cannot find out who listens: %v", err)
		return
	}
	who := "somebody"
	inside := false // of another network namespace
	// With an ID for SMC-R a program of another network namespace is reached as on another host,
	// without an agent.
	if !seen.Local && (len(s.UEIDs) == 0 && !s.SMCRv1 || survey.Introduces(ctx).Available) {
		if other, found := lookInside(server, uid); found { // rule: cmd/gosmc TestExplainNamespace: ; found -> ; found && false
			seen, inside = other, true
		}
	}
	if seen.PID != 0 {
		who = fmt.Sprintf("%d/%s", seen.PID, cmp.Or(seen.Command, "n/a"))
	}
	where := fmt.Sprintf("%s is %san address of this machine", server.Addr(), not(seen.Local))
	switch e.elsewhere = !seen.Local; {
	case inside:
		where += ", in another network namespace"
		if seen.Obstacle == "" || seen.Apart != "" {
			seen.Apart = "the programs are in different network namespaces"
			seen.Obstacle = seen.Apart + ", and no agent introduces them"
		}
	case e.elsewhere && os.Geteuid() != 0:
		where += "'s network namespace; others can be seen by root"
	}
	if !seen.Local {
		e.between(server, where, s, step)
		return
	}
	switch {
	case !step(true, "%s", where):
	case !step(seen.Listens, "%s listens on it", cmp.Or(map[bool]string{true: who, false: "nobody"}[seen.Listens], who)):
	case policy.Listen.Refuses(server) != "":
		step(false, "%s", policy.Listen.Refuses(server))
	default:
		e.introduce(ctx, &seen, policy)
		if seen.Apart != "" && seen.Obstacle == "" {
			step(true, "%s: the agent introduces them", seen.Apart)
		}
		how := "it was started by 'gosmc run', and its supervisor answers"
		if seen.Library {
			how = "it uses package smc, and takes connections of 'gosmc run'"
		}
		if step(seen.Obstacle == "", "%s", cmp.Or(seen.Obstacle, how)) && program != "" {
			e.admission(server, program, args, uid, s, step)
		}
	}
}

// introduce takes the obstacle between two programs away if the agent introduces them.
func (e *Server) introduce(ctx context.Context, seen *inspect.Server, policy *config.Policy) {
	if seen.Apart == "" || !survey.Introduces(ctx).Available {
		return
	}
	switch {
	case seen.Hidden:
		seen.Obstacle = seen.Apart + ": the agent introduces the two if both were started by 'gosmc run'; " +
			"ask as root, as you may not look at the server"
		seen.Apart = ""
	case seen.UID != e.uid && !policy.Users.Admits(seen.UID, true): // rule: cmd/gosmc TestExplainIntroduced: !policy.Users.Admits(seen.UID, true) -> false
		seen.Obstacle = seen.Apart + ", and the policy of users here refuses the server's" +
			From(config.UsersWord)
		seen.Apart = ""
	default:
		seen.Obstacle = ""
	}
}

// lookInside looks at a server in the other network namespaces of this machine, which only root can enter. Of
// several with its address, one in which somebody listens counts.
func lookInside(server netip.AddrPort, uid int) (seen inspect.Server, found bool) {
	if os.Geteuid() != 0 {
		return seen, false
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return seen, false
	}
	known := map[string]bool{own: true}
	for _, pid := range procs.List(procs.Dir) {
		path := filepath.Join(procs.Dir, strconv.Itoa(pid), "ns/net")
		name, err := os.Readlink(path)
		if err != nil || known[name] || len(known) == maxNamespaces {
			continue
		}
		known[name] = true
		var s inspect.Server
		err = netns.InFile(path, func() (err error) {
			s, err = inspect.Look(server, uid)
			return err
		})
		switch {
		case err != nil || !s.Local: // another one may have it
		case s.Listens:
			return s, true
		case !found:
			seen, found = s, true
		}
	}
	return seen, found
}

// maxNamespaces bounds the network namespaces that are looked into.
const maxNamespaces = 1024

// admission takes the step that tells whether connections of a program are left to TCP because
// those before were short.
func (e *Server) admission(server netip.AddrPort, program string, args []string, uid int, s *config.Settings,
	step func(ok bool, what string, args ...any) bool) {
	after := s.ShortAfter
	if after == 0 {
		after = admission.DefaultAfter
	}
	switch a := shortBefore(server, program, args, uid); {
	case after < 0: // all are moved
	case int64(a.Short) >= int64(after):
		step(false, "the last %d connections of %s to it that were moved were too short to gain, so others stay TCP (SHORT, %d so far), but for one in %d: --short-after off moves all", a.Short, program, a.Kept, a.Probe)
	case a.Short > 0:
		step(true, "%d connections of %s to it were short, one after another, and %d would leave others to TCP%s", a.Short, program, after, From(config.ShortAfter))
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
func (e *Server) libraryShort(server netip.AddrPort, program string, args []string, uid int,
	s *config.Settings) {
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
func (e *Server) library(server netip.AddrPort, uid int, s *config.Settings, policy *config.Policy,
	hosts *survey.Answers) {
	e.Library.Mode = "TCP"
	if s.Off {
		e.Library.Reason = "SMC is switched off" + From(config.SMC)
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
			if a := local.Addr(); a != server.Addr() &&
				(!a.IsUnspecified() || a.Is4() && server.Addr().Is6()) {
				continue
			}
			switch e.Library.Reason = policy.Listen.Refuses(server); {
			case e.Library.Reason != "":
			case int(h.UID) != uid && !policy.Users.Admits(int(h.UID), rundir.OfMachine(h.Dir)):
				e.Library.Reason = "the server belongs to another user, which is refused by policy users, or by its default where the run directory is not the machine's: 'gosmc policy add users any'"
			default:
				e.Library.Mode = "SMC-D"
			}
			return
		}
	}
	e.Library.Reason = "no program of this machine that uses package smc listens there; for SMC-R with other machines see 'gosmc info'"
}

// From says where words of the policy are from, in brackets, if anything is said.
func From(words ...string) string {
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

func not(yes bool) string {
	if yes {
		return ""
	}
	return "not "
}
