package inspect

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sockdiag"
	"github.com/gosmc/smc/wire/clc"
)

// A TCPConnection is one end of a connection that stayed TCP, of a program that was started by 'gosmc run'.
type TCPConnection struct {
	Connection
	// as far as it can be told from outside; Code is [clc.DiagNone] if nothing is known against it
	Reason  clc.Reason
	Payload sockdiag.Info // as the kernel counts
	// Bare is an end of the connection whose program was not started by 'gosmc run'; 0: there is
	// none, or it is not known.
	Bare int
	// PeerUID is the user of the socket at the other end; nil: that is not here.
	PeerUID *uint32
	// Ended says that the supervisor of the server has ended, as if it was killed: new connections
	// are TCP until the server is started again.
	Ended bool
}

// A Listening socket is one of a program that was started by 'gosmc run'.
type Listening struct {
	Connection      // its Peer is invalid
	Announced  bool // clients of 'gosmc run' can find it
	// Bare is how many connections it has accepted from programs of this machine without the
	// library, at most; nil: they are not counted, or there was none.
	Bare *uint64
}

// Listeners returns the TCP sockets that programs of 'gosmc run' listen with, in the network
// namespace of the calling thread. It looks at all processes that it may look at.
func Listeners() ([]Listening, error) {
	programs := programsOfRun()
	if len(programs) == 0 {
		return nil, nil
	}
	netns, err := proto.OwnNetNS()
	if err != nil {
		return nil, err
	}
	found, err := sockdiag.Listeners(0)
	if err != nil {
		return nil, err
	}
	all := make([]Connection, 0, len(found))
	for _, s := range found {
		all = append(all, Connection{Local: s.Local, Server: true, Inode: uint64(s.Inode), UID: s.UID})
	}
	owners(all)
	var list []Listening
	bare := make(map[string]map[uint16]uint64) // by socket
	for _, c := range all {
		socket := programs[c.PID]
		if socket == "" {
			continue
		}
		target, _ := os.Readlink(proto.LinkPath(filepath.Dir(socket), netns, c.Local.Port()))
		l := Listening{Connection: c, Announced: proto.LinkedSocket(target) == filepath.Base(socket)}
		if _, known := bare[socket]; !known {
			bare[socket] = bareClients(socket)
		}
		if n := bare[socket][c.Local.Port()]; n > 0 {
			l.Bare = &n
		}
		list = append(list, l)
	}
	return list, nil
}

// programsOfRun returns the processes that were started by 'gosmc run' and have the library, with
// the sockets of their supervisors.
func programsOfRun() map[int]string {
	programs := make(map[int]string)
	for _, pid := range procs.List(procs.Dir) {
		if socket := procs.Supervisor(pid); socket != "" {
			programs[pid] = socket
		}
	}
	return programs
}

// RunDir returns the run directory of a process that was started by 'gosmc run', "" of any other one.
func RunDir(pid int) string {
	socket := procs.Supervisor(pid)
	if socket == "" {
		return ""
	}
	return above(filepath.Dir(socket))
}

// TCPConnections returns the established TCP connections, in the network namespace of the calling
// thread, of programs that were started by 'gosmc run' and have the library. It looks at all
// processes that it may look at.
func TCPConnections() ([]TCPConnection, error) {
	programs := programsOfRun()
	if len(programs) == 0 {
		return nil, nil
	}
	netns, err := proto.OwnNetNS()
	if err != nil {
		return nil, err
	}
	var all []Connection
	payload := make(map[uint64]sockdiag.Info) // by inode
	err = sockdiag.EachEstablished(func(s sockdiag.Socket, i sockdiag.Info) {
		all = append(all, Connection{
			Local: s.Local, Peer: s.Peer, Inode: uint64(s.Inode), UID: s.UID, RecvQ: uint64(s.RecvQ), SendQ: uint64(s.SendQ),
		})
		payload[uint64(s.Inode)] = i
	})
	if err != nil {
		return nil, err
	}
	owners(all)
	type ends struct{ local, peer netip.AddrPort }
	byEnds := make(map[ends]*Connection, len(all))
	for i := range all {
		byEnds[ends{all[i].Local, all[i].Peer}] = &all[i]
	}
	var list []TCPConnection
	for _, c := range all {
		if programs[c.PID] == "" {
			continue
		}
		listening, err := sockdiag.Listeners(c.Local.Port())
		if err != nil {
			return nil, err
		}
		c.Server = len(listening) > 0
		peer := byEnds[ends{c.Peer, c.Local}]
		if peer != nil {
			c.PeerPID, c.PeerCommand = peer.PID, peer.Command
		}
		t := TCPConnection{Connection: c, Payload: payload[c.Inode],
			Reason: clc.Lookup(WhyTCP(&c, peer, programs, netns), clc.OSUnspecified)}
		if peer != nil {
			t.PeerUID = &peer.UID
			if programs[peer.PID] == "" {
				t.Bare = peer.PID
			}
		}
		if server := serverOf(&c, peer); t.Reason.Code == clc.DiagNone && server != nil {
			socket := procs.Reach(server.PID, programs[server.PID])
			t.Ended = !proto.Answers(socket) // rule: cmd/gosmc TestRunMoves
		}
		list = append(list, t)
	}
	return list, nil
}

// serverOf returns the end of the server, nil if that is not here.
func serverOf(c, peer *Connection) *Connection {
	if c.Server {
		return c
	}
	return peer
}

// WhyTCP returns the obstacle for a connection in a network namespace. peer is its other end, nil
// if that is not here.
func WhyTCP(c, peer *Connection, programs map[int]string, netns uint64) clc.Diagnosis {
	switch {
	case peer == nil:
		return clc.DiagNotLocal
	case disabled(c.PID) || disabled(peer.PID):
		return clc.DiagDisabled
	case peer.UID != c.UID:
		return clc.DiagOtherUser
	case programs[peer.PID] == "":
		return clc.DiagPeerNoSMC
	}
	client, server := c, peer
	if c.Server {
		client, server = peer, c
	}
	if refused(server, server.Local, false) || refused(client, server.Local, true) {
		return clc.DiagNotAllowed
	}
	if program, err := ProgramHash(client.PID); err == nil && admission.Lookup(filepath.Dir(programs[client.PID]), admission.Key(server.Local, netns, program)).Kept > 0 { // rule: internal/run/supervisor TestAdmissionSeen
		return clc.DiagShort
	}
	return clc.DiagNone
}

func disabled(pid int) bool {
	yes, _ := config.ParseDisabled(procs.Variable(pid, config.EnvDisabled))
	return yes
}

// refused reports whether the policy of a program leaves a server out: the lists that its library has
// read, or for a server those that its supervisor has of the file.
func refused(c *Connection, server netip.AddrPort, connects bool) bool {
	return refusal(c.PID, server, connects) != ""
}

// refusal says why the policy of a program leaves a server out, "" if it does not.
func refusal(pid int, server netip.AddrPort, connects bool) string {
	list := func(word string) []string {
		return strings.FieldsFunc(procs.Variable(pid, config.Variables[word]),
			func(r rune) bool { return r == ',' || r == ' ' })
	}
	p, err := config.NewPolicy(config.Filter{Ports: list(config.ListenPort), Addresses: list(config.ListenAddress)},
		config.Filter{Ports: list(config.ConnectPort), Addresses: list(config.ConnectAddress)}, list(config.Program), config.ProgramName(programName(pid)))
	switch {
	case err != nil:
		return err.Error()
	case connects:
		return p.Connect.Refuses(server)
	}
	if why := p.Listen.Refuses(server); why != "" {
		return why
	}
	if !sameFiles(pid) { // rule: TestRefusalReloaded
		return ""
	}
	now := config.ServerPolicy(func(name string) string { return procs.Variable(pid, name) })
	return now.Listen.Refuses(server) // rule: TestRefusalReloaded: now.Listen.Refuses(server) -> now.Connect.Refuses(server)
}

// sameFiles reports whether a path leads a process to the file that it leads us to.
func sameFiles(pid int) bool {
	for _, link := range []string{"ns/mnt", "root"} {
		theirs, err := os.Readlink(filepath.Join(procs.Dir, strconv.Itoa(pid), link))
		ours, err2 := os.Readlink(filepath.Join(procs.Dir, strconv.Itoa(os.Getpid()), link))
		if err != nil || err2 != nil || theirs != ours {
			return false
		}
	}
	return true
}

// programName is the name by which a process was started. Of one that has written over it, it is
// the name of its file.
func programName(pid int) string {
	dir := filepath.Join(procs.Dir, strconv.Itoa(pid))
	environ, _ := procs.ReadFile(dir, "environ")
	if procs.Lookup(strings.Split(string(environ), "\x00"), proto.EnvSocket) == "" &&
		procs.Supervisor(pid) != "" {
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		return strings.TrimSuffix(exe, " (deleted)")
	}
	argv, _ := procs.ReadFile(dir, "cmdline")
	name, _, _ := strings.Cut(string(argv), "\x00")
	return name
}
