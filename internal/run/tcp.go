package run

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/wire/clc"
)

// A TCPConnection is one end of a connection that stayed TCP, of a program that was started by 'gosmc run'.
type TCPConnection struct {
	Connection
	Reason clc.Reason // as far as it can be told from outside; Code is [clc.DiagNone] if nothing is known against it
}

// States of linux/tcp_states.h.
const (
	tcpEstablished = 1
	tcpSynSent     = 2
	tcpClose       = 7
)

// A Listening socket is one of a program that was started by 'gosmc run'.
type Listening struct {
	Connection      // its Peer is invalid
	Announced  bool // clients of 'gosmc run' can find it
}

// Listeners returns the TCP sockets that programs of 'gosmc run' listen with, in the network
// namespace of the calling thread. It looks at all processes that it may look at.
func Listeners() ([]Listening, error) {
	programs := programsOfRun()
	if len(programs) == 0 {
		return nil, nil
	}
	netns, err := ownNetns()
	if err != nil {
		return nil, err
	}
	found, err := diagListeners(0)
	if err != nil {
		return nil, err
	}
	all := make([]Connection, 0, len(found))
	for _, s := range found {
		all = append(all, Connection{Local: s.local, Server: true, Inode: uint64(s.inode), UID: s.uid})
	}
	owners(all)
	var list []Listening
	for _, c := range all {
		socket := programs[c.PID]
		if socket == "" {
			continue
		}
		target, _ := os.Readlink(linkOf(filepath.Dir(socket), netns, c.Local.Port()))
		list = append(list, Listening{c, linkedSocket(target) == filepath.Base(socket)})
	}
	return list, nil
}

// programsOfRun returns the processes that were started by 'gosmc run' and have the library, with
// the sockets of their supervisors.
func programsOfRun() map[int]string {
	programs := make(map[int]string)
	for _, pid := range processes(procDir) {
		if socket := Supervisor(pid); socket != "" {
			programs[pid] = socket
		}
	}
	return programs
}

// RunDir returns the run directory of a process that was started by 'gosmc run', "" of any other one.
func RunDir(pid int) string {
	socket := Supervisor(pid)
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
	netns, err := ownNetns()
	if err != nil {
		return nil, err
	}
	var all []Connection
	for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err := dumpTCP(family, &all); err != nil {
			return nil, err
		}
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
		listening, err := diagListeners(c.Local.Port())
		if err != nil {
			return nil, err
		}
		c.Server = len(listening) > 0
		peer := byEnds[ends{c.Peer, c.Local}]
		list = append(list, TCPConnection{c, clc.Lookup(whyTCP(&c, peer, programs, netns), clc.OSUnspecified)})
	}
	return list, nil
}

// whyTCP returns the obstacle for a connection in a network namespace. peer is its other end, nil
// if that is not here.
func whyTCP(c, peer *Connection, programs map[int]string, netns uint64) clc.Diagnosis {
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
	if program, err := programHashOf(client.PID); err == nil && admission.Lookup(filepath.Dir(programs[client.PID]), admission.Key(server.Local, netns, program)).Kept > 0 { // rule: TestAdmissionSeen
		return clc.DiagShort
	}
	return clc.DiagNone
}

func disabled(pid int) bool {
	yes, _ := config.ParseDisabled(Variable(pid, config.EnvDisabled))
	return yes
}

// refused reports whether the policy of a program leaves a server out: the lists that its library has read.
func refused(c *Connection, server netip.AddrPort, connects bool) bool {
	return refusal(c.PID, server, connects) != ""
}

// refusal says why the policy of a program leaves a server out, "" if it does not.
func refusal(pid int, server netip.AddrPort, connects bool) string {
	list := func(word string) []string {
		return strings.FieldsFunc(Variable(pid, config.Variables[word]), func(r rune) bool { return r == ',' || r == ' ' })
	}
	p, err := config.NewPolicy(config.Filter{Ports: list(config.ListenPort), Addresses: list(config.ListenAddress)},
		config.Filter{Ports: list(config.ConnectPort), Addresses: list(config.ConnectAddress)}, list(config.Program), config.ProgramName(programName(pid)))
	switch {
	case err != nil:
		return err.Error()
	case connects:
		return p.Connect.Refuses(server)
	}
	return p.Listen.Refuses(server)
}

// programName is the name by which a process was started. Of one that has written over it, it is
// the name of its file.
func programName(pid int) string {
	dir := filepath.Join(procDir, strconv.Itoa(pid))
	environ, _ := readProc(dir, "environ")
	if lookup(strings.Split(string(environ), "\x00"), EnvSocket) == "" && Supervisor(pid) != "" {
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		return strings.TrimSuffix(exe, " (deleted)")
	}
	argv, _ := readProc(dir, "cmdline")
	name, _, _ := strings.Cut(string(argv), "\x00")
	return name
}

// dumpTCP adds the established TCP sockets of a family, which any is the unspecified address of, to list.
func dumpTCP(any netip.Addr, list *[]Connection) error {
	all := netip.AddrPortFrom(any, 0)
	return diagEach(unix.NLM_F_REQUEST|unix.NLM_F_DUMP, family(any), 1<<tcpEstablished, all, all, func(msg []byte) {
		*list = append(*list, Connection{
			Local: diagAddress(msg, 8, 4), Peer: diagAddress(msg, 24, 6),
			RecvQ: uint64(binary.NativeEndian.Uint32(msg[56:])), SendQ: uint64(binary.NativeEndian.Uint32(msg[60:])),
			UID: binary.NativeEndian.Uint32(msg[64:]), Inode: uint64(binary.NativeEndian.Uint32(msg[68:])),
		})
	})
}
