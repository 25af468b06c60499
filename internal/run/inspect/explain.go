package inspect

import (
	"fmt"
	"net/netip"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/sockdiag"
)

// A Server has the facts about the listener at an address that can be known before connecting.
type Server struct {
	Local   bool // the address is one of this machine
	Listens bool // somebody listens there, in this network namespace
	PID     int  // a process that does; 0: not known, or another user's
	Command string
	// Library says that the process uses package smc, and has announced the listener itself.
	Library bool
	// Obstacle says why a program of 'gosmc run' stays with TCP there, "" if it does not. It is a
	// clause about the server: "its policy ...".
	Obstacle string
	// Apart is a clause about what separates the two programs, where the agent introduces programs in
	// spite of it: the Obstacle holds where no agent does. UID is then the server's user.
	Apart string
	UID   int
	// Hidden says that the server's process may not be looked at: it may not be a program of 'gosmc run'.
	Hidden bool
}

// CheckDir returns an error if the environment of this process names a run directory that programs
// of a user cannot have.
func CheckDir(uid int) error {
	dir := rundir.DefaultOf(uid)
	const socket = "/.new-0123456789abcdef" // of a supervisor
	n := len(rundir.SupervisorsOf(dir, uid)) + len(socket)
	if n >= len(unix.RawSockaddrUnix{}.Path) { // rule: cmd/gosmc TestDoctorFaults: n >= -> n < 0 && n >=
		return fmt.Errorf("the name of the run directory is too long for the sockets of 'gosmc run': %s", dir)
	}
	return rundir.CheckPath(dir)
}

// Look looks at a server, from the network namespace of the calling thread and for programs of a
// user with the environment of this process. The error says why not all could be found out.
func Look(server netip.AddrPort, uid int) (s Server, err error) {
	server = netip.AddrPortFrom(server.Addr().Unmap(), server.Port())
	s.Local = proto.IsLocal(server)
	if !s.Local {
		return s, nil
	}
	found, err := sockdiag.Listeners(server.Port())
	if err != nil {
		return s, err
	}
	var socketOf uint32
	for _, l := range found {
		if l.Gets(server) {
			owner := []Connection{{Inode: uint64(l.Inode)}}
			owners(owner)
			s.Listens, s.PID, s.Command, socketOf = true, owner[0].PID, owner[0].Command, l.UID
			s.UID = int(l.UID)
		}
	}
	if !s.Listens {
		return s, nil
	}
	if run := rundir.DefaultOf(uid); rundir.IsOff(run) { // rule: cmd/gosmc TestOff
		s.Obstacle = "its run directory " + run + " is out of use: " + rundir.ErrOff.Error()
		return s, nil
	}
	netns, err := proto.OwnNetNS()
	if err != nil {
		return s, err
	}
	dir := rundir.SupervisorsOf(rundir.DefaultOf(uid), uid)
	target, err := os.Readlink(proto.LinkPath(dir, netns, server.Port()))
	target = proto.LinkedSocket(target)
	// A server that was started again, and left to TCP, may find the link of a supervisor that was
	// killed with it before.
	if err == nil && filepath.Base(target) == target && left(dir, s.PID) == "" { // rule: TestExplainLeft: left(dir, s.PID) == "" -> true
		s.Obstacle, s.Apart = unusable(filepath.Join(dir, target), socketOf, uid)
		owner, err := procs.OwnerOf(filepath.Join(dir, target))
		s.Library = err == nil && owner == s.PID // rule: cmd/gosmc TestExplainLibrary: owner == s.PID -> owner < 0
		return s, nil
	}
	s.Obstacle, s.Apart = unannounced(s.PID, socketOf, uid, server, dir)
	s.Hidden = !visible(s.PID)
	return s, nil
}

// ShortBefore returns the memory that clients of a user have of the connections of a program to a
// server of this network namespace. The program is known by the path of its file and its first
// argument.
func ShortBefore(server netip.AddrPort, program, script string, uid int) admission.Memory {
	hash, err := admission.ProgramHash(program, script)
	if err != nil {
		return admission.Memory{}
	}
	netns, err := proto.OwnNetNS()
	if err != nil {
		return admission.Memory{}
	}
	return admission.Lookup(rundir.SupervisorsOf(rundir.DefaultOf(uid), uid),
		admission.Key(netip.AddrPortFrom(server.Addr().Unmap(), server.Port()), netns, hash))
}

// unusable says why a program of a user cannot use the supervisor that has announced a port, "" if
// it can. The listener belongs to socketOf. apart is as in [Server].
func unusable(socket string, socketOf uint32, uid int) (why, apart string) {
	var st unix.Stat_t
	if err := unix.Stat(socket, &st); err == nil && int(st.Uid) != uid { // rule: cmd/gosmc TestRunExplain
		return startedByOther(st.Uid, socketOf, uid)
	}
	if !proto.Answers(socket) {
		return "its supervisor has ended, as if it was killed: connections are TCP until the server is started again", ""
	}
	pid, err := procs.OwnerOf(socket)
	if err == nil && procs.Stopped(pid) { // rule: cmd/gosmc TestDoctorSupervisor: procs.Stopped(pid) -> false
		return fmt.Sprintf("its supervisor, process %d, is stopped: connections wait for it, and may be TCP",
			pid), ""
	}
	return "", ""
}

// unannounced says why no supervisor has announced the port of a server. pid is a process that
// listens, 0 if it is not known; its socket belongs to socketOf. dir is the directory of
// supervisors in which a program of the user uid looks. apart is as in [Server].
func unannounced(pid int, socketOf uint32, uid int, server netip.AddrPort, dir string) (why, apart string) {
	maps, err := procs.ReadFile(filepath.Join(procs.Dir, strconv.Itoa(pid)), "maps")
	switch {
	case pid == 0 || err != nil || len(maps) == 0:
		if int(socketOf) != uid {
			return otherUser(socketOf, uid)
		}
		for program, why := range leftIn(dir) {
			return "its process cannot be looked at from here, but 'gosmc run' has left " + program + " to TCP: " + why, ""
		}
		return "it was not started by 'gosmc run', or its process cannot be looked at from here: ask as root", ""
	case !procs.Loaded(maps):
		if readOnlyFor(pid, above(dir)) { // a note in there is an older one's
			return "it was not started by 'gosmc run', or that could do nothing, as " + above(dir) + " is read-only for it", ""
		}
		if why := left(dir, pid); why != "" {
			return "'gosmc run' has left it to TCP: " + why, ""
		}
		exe := filepath.Join(procs.Dir, strconv.Itoa(pid), "exe")
		if why := Obstacle(exe); why != "" {
			return "the library cannot be loaded into it: " + why, ""
		}
		return "it was not started by 'gosmc run'", ""
	case disabled(pid):
		return "SMC is switched off for it (GOSMC_DISABLED)", ""
	}
	socket := procs.Reach(pid, procs.Supervisor(pid))
	supervisor, err := procs.OwnerOf(socket)
	if err != nil {
		return "its supervisor has ended, as if it was killed: connections are TCP until the server is started again", ""
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(procs.Dir, strconv.Itoa(supervisor)), &st); err == nil &&
		int(st.Uid) != uid {
		return startedByOther(st.Uid, socketOf, uid)
	} else if err == nil && st.Uid != socketOf {
		return fmt.Sprintf("it has become %s before it listened, and is not the process that 'gosmc run' has become: let that one listen, or put 'gosmc run' where it is %s", userName(int(socketOf)), userName(int(socketOf))), ""
	}
	if theirs := filepath.Dir(socket); !sameFile(theirs, dir) {
		apart = fmt.Sprintf("its run directory is %s, and a program here would use %s",
			above(theirs), above(dir))
		return apart + ": set GOSMC_DIR to the same for both", apart
	}
	if why := refusal(pid, server, false); why != "" {
		return "its own policy leaves the address out: " + why, ""
	}
	ours, _ := os.Readlink("/proc/self/ns/net")
	if theirs, err := os.Readlink(filepath.Join(procs.Dir, strconv.Itoa(supervisor), "ns/net")); err == nil &&
		theirs != ours {
		apart = "its supervisor is in another network namespace"
		return apart + ": start the server by a 'gosmc run' in this one", apart
	}
	return "its listener is not announced: another program of 'gosmc run' had the port first, a process without the library has accepted connections there, it has an option such as SO_ZEROCOPY or SO_TIMESTAMP, or the supervisor has too many listeners", ""
}

// visible reports whether a process may be looked at.
func visible(pid int) bool {
	maps, err := procs.ReadFile(filepath.Join(procs.Dir, strconv.Itoa(pid)), "maps")
	return pid != 0 && err == nil && len(maps) > 0
}

// startedByOther says that a server was started by another user than the client's, and which user
// it has become. apart is as in [Server].
func startedByOther(started, now uint32, client int) (why, apart string) {
	if started == now { // rule: cmd/gosmc TestRunShared: started == now -> true
		return otherUser(started, client)
	}
	apart = fmt.Sprintf("it was started as %s and has become %s", userName(int(started)), userName(int(now)))
	return fmt.Sprintf("%s, and memory is not shared between users: start the client as %s, or the server by a 'gosmc run' of the client's user",
		apart, userName(int(started))), apart
}

// otherUser says that a server is another user's. apart is as in [Server].
func otherUser(theirs uint32, ours int) (why, apart string) {
	apart = fmt.Sprintf("it runs as %s and the client as %s", userName(int(theirs)), userName(ours))
	return apart + ", and memory is not shared between users: start both as one user", apart
}

// userName names a user, as redis (102).
func userName(uid int) string {
	number := strconv.Itoa(uid)
	u, err := osuser.LookupId(number)
	if err != nil {
		return "user " + number
	}
	return u.Username + " (" + number + ")"
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return a == b
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// above returns the run directory of a directory of supervisors.
func above(dir string) string { return filepath.Dir(filepath.Dir(dir)) }
