package run

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/gosmc/smc/internal/rundir"
)

// A Server is what can be said, before connecting, of whoever listens at an address.
type Server struct {
	Local     bool // the address is one of this machine
	Listens   bool // somebody listens there, in this network namespace
	PID       int  // a process that does; 0: not known, or another user's
	Command   string
	Announced string // name of the supervisor that has announced the port; "": none
	Answers   bool   // it does
}

// Look looks at a server, from the network namespace of the calling thread and for programs with the run directory of this process. The error says why not all
// could be found out.
func Look(server netip.AddrPort) (s Server, err error) {
	server = netip.AddrPortFrom(server.Addr().Unmap(), server.Port())
	s.Local = isLocal(server)
	if !s.Local {
		return s, nil
	}
	found, err := diagListeners(server.Port())
	if err != nil {
		return s, err
	}
	for _, l := range found {
		if (listener{local: l.local}).gets(server) {
			owner := []Connection{{Inode: uint64(l.inode)}}
			owners(owner)
			s.Listens, s.PID, s.Command = true, owner[0].PID, owner[0].Command
		}
	}
	netns, err := ownNetns()
	if err != nil {
		return s, err
	}
	dir := rundir.Path(rundir.Default(), rundir.Run)
	target, err := os.Readlink(newListeners(dir, "", netns).link(server.Port()))
	target = linkedSocket(target)
	if err == nil && filepath.Base(target) == target {
		s.Announced, s.Answers = target, answers(filepath.Join(dir, target))
	}
	return s, nil
}

// isLocal reports whether an address is reached from itself.
func isLocal(server netip.AddrPort) bool {
	if server.Addr().IsLoopback() || server.Addr().IsUnspecified() {
		return true
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server)) // which sends nothing
	if err != nil {
		return false
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap() == server.Addr()
}
