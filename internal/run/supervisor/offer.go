package supervisor

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sockdiag"
	"github.com/gosmc/smc/wire/clc"
)

// An offer is a connection with a server end that nobody has claimed.
//
//	state      event              next       action
//	(none)     Offer              offered    the end is kept
//	offered    Connected          connected  the TCP socket is kept
//	offered    Cancel, hang-up    dropped
//	both       Claim              claimed    the end is named and handed to the server, the TCP sockets closed: see release
//	connected  TCP is readable    relayed    see relay.go
//	connected  accepted, twice    relayed
//	connected  TCP is not there   relayed
//	both       supervisor ends    dropped
//	both       Share              the same   nobody claims it any more
type offer struct {
	key     pairKey
	server  netip.AddrPort
	client  netip.AddrPort
	unique  uint64
	end     int           // of the server
	tcp     int           // of the client, once it is connected; -1 before
	letter  bool          // it came by letter, with the TCP socket that was not connected yet
	watched bool          // the TCP socket is watched
	pid     int           // of the client; 0 if it is not known
	back    chan struct{} // closed when the client has come back from connect; nil if it came by letter: its client minds no reset
	claimed bool
	shared  bool      // nobody claims it: see [Desk.Share]
	due     time.Time // of the next look whether somebody else has accepted; zero before it is connected
	wait    time.Duration
	seen    bool // accepted at the last look
}

func keyOf(client, server netip.AddrPort) pairKey {
	return pairKey{client, server}
}

// take keeps the end that a client offers, which is process pid. It returns nil and the reason, and
// has closed the end, if the connection has to be TCP.
func (s *supervisor) take(m proto.Message, end, pid int) (*offer, clc.Diagnosis) {
	o := &offer{key: keyOf(m.Local, m.Peer), client: m.Local, server: m.Peer, unique: m.Unique, pid: pid, end: end, tcp: -1, back: make(chan struct{})}
	theirs := proto.Name{Role: proto.RoleClient, IPv6: m.IPv6, Local: m.Local, Peer: m.Peer, Unique: m.Unique}
	reason := clc.DiagNone
	switch {
	case s.policy.Listen.Refuses(m.Peer) != "": // rule: TestSupervisorPolicy
		reason = clc.DiagNotAllowed
	case !s.listeners.has(m.Peer) || m.NetNS != s.listeners.netns:
		reason = clc.DiagNoListener
	case len(s.offers) >= s.letters.room || s.offers[o.key] != nil:
		reason = clc.DiagBusy
	case !proto.IsStream(end, unix.AF_UNIX) || peerName(end) != theirs.String():
		reason = clc.DiagRefused
	}
	s.record.offered(m, pid, reason)
	if reason != clc.DiagNone {
		dispose.Close(end)
		return nil, reason
	}
	s.offers[o.key] = o
	s.asked++
	s.board.setWaiting(s.asked)
	return o, clc.DiagNone
}

func peerName(fd int) string {
	sa, err := unix.Getpeername(fd)
	if err != nil {
		return ""
	}
	if u, ok := sa.(*unix.SockaddrUnix); ok {
		return u.Name
	}
	return ""
}

// connected keeps the client's TCP socket until somebody claims the connection.
func (s *supervisor) connected(o *offer, tcp int) {
	close(o.back)
	if o.claimed {
		leave(tcp)
		return
	}
	if !proto.IsTCP(tcp) {
		dispose.Close(tcp)
		s.drop(o)
		return
	}
	o.tcp = tcp
	s.hold(o)
	s.watch(o) // if it cannot be, it is looked at
}

// hold takes an offer that has a TCP socket to those that are looked at now and then.
func (s *supervisor) hold(o *offer) {
	o.wait = s.patience
	o.due = time.Now().Add(o.wait)
	s.held[o.tcp] = o
}

// watch has the loop told of the server's actions on the TCP connection. The kernel may lack memory
// for that, or the user may be at a limit; then looks find them.
func (s *supervisor) watch(o *offer) {
	o.watched = s.poll.add(o.tcp, unix.EPOLLIN|unix.EPOLLRDHUP) == nil
}

// cancel ends an offer, unless it was claimed.
func (s *supervisor) cancel(o *offer) bool {
	close(o.back)
	if o.claimed {
		return false
	}
	s.drop(o)
	return true
}

// claim hands an end to the program that has accepted its connection. The connection's TCP socket
// proves that: a program that has the socket could read and write in it. claim returns the offer,
// or nil; the caller calls release of the offer. The program is told once more when we have the end
// no more: until then the client would not see that it is closed.
func (s *supervisor) claim(t *talk, m proto.Message, tcp int) *offer {
	o := s.offers[keyOf(m.Peer, m.Local)]
	if o == nil || !s.hasEnds(tcp, m.Local, m.Peer) || !o.right() || !o.bind(m.IPv6) || !t.reply(proto.KindClaim, proto.StatusOK, o.end) {
		t.reply(proto.KindClaim, proto.StatusNo, -1)
		return nil
	}
	o.claimed = true
	s.letters.claims = true
	s.listeners.claimed(o.server.Port(), 1)
	s.record.claimed(o, t.pid)
	s.drop(o)
	t.reply(proto.KindClaim, proto.StatusOK, -1) // our copy is closed now
	return o
}

// isBack reports whether a reset of the TCP connection would fail no connect of the client's.
func (o *offer) isBack() bool {
	if o.back == nil {
		return true
	}
	select {
	case <-o.back:
		return true
	default:
		return false
	}
}

// release ends the TCP connection of a claimed offer, by a reset of the accepted socket, which is
// ours to close, as soon as the client is back from connect. That frees the client's port, which
// nothing else must. If another socket gets the port while the accepted socket is there, a
// connection from it is lost for a second: the kernel takes its SYN for one of the connection
// before.
func (o *offer) release(accepted int) {
	if o.isBack() {
		abandon(accepted)
		return
	}
	go func() {
		<-o.back
		abandon(accepted)
	}()
}

// hasEnds reports whether a TCP socket is the socket of a connection. A user that has a network
// namespace can have one with any addresses there.
func (s *supervisor) hasEnds(fd int, local, peer netip.AddrPort) bool {
	if !proto.IsTCP(fd) {
		return false
	}
	netns, err := proto.NetNSOf(fd)
	if err != nil || netns != s.listeners.netns { // rule: TestClaimFromElsewhere
		return false
	}
	ours, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	theirs, err := unix.Getpeername(fd)
	if err != nil || proto.AddrPort(ours) != local || proto.AddrPort(theirs) != peer { // rule: TestClaimOutside
		return false
	}
	return true
}

// bind has the server's end know the family of the listener, by its name. It may have been given
// before, if the answer could not be sent. Any user can have taken a name that could be foreseen;
// then there is another number in it. An end that came by letter has a name, and knows the family
// by an option: preload/identity.c.
func (o *offer) bind(ipv6 bool) bool {
	if o.letter {
		return !ipv6 || unix.SetsockoptInt(o.end, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) == nil
	}
	ours := proto.Name{Role: proto.RoleServer, IPv6: ipv6, Local: o.server, Peer: o.client, Unique: o.unique}
	for range maxNames {
		switch err := unix.Bind(o.end, &unix.SockaddrUnix{Name: ours.String()}); err {
		case nil:
			return true
		case unix.EADDRINUSE:
			var random [8]byte
			rand.Read(random[:])
			ours.Unique = binary.NativeEndian.Uint64(random[:])
		default:
			sa, err := unix.Getsockname(o.end)
			u, ok := sa.(*unix.SockaddrUnix)
			if err != nil || !ok {
				return false
			}
			has, ok := proto.ParseName(u.Name)
			has.Unique = ours.Unique
			return ok && has == ours
		}
	}
	return false
}

// forget takes an offer out; its descriptors are the caller's.
func (s *supervisor) forget(o *offer) {
	if s.offers[o.key] != o {
		return
	}
	delete(s.offers, o.key)
	if !o.letter {
		s.asked--
		s.board.setWaiting(s.asked)
	}
	if o.tcp >= 0 {
		delete(s.held, o.tcp)
		s.poll.remove(o.tcp)
	}
}

func (s *supervisor) drop(o *offer) {
	if s.offers[o.key] != o {
		return
	}
	s.forget(o)
	if o.claimed { // rule: TestClaimParts: o.claimed -> false
		dispose.Now(o.end)
	} else {
		dispose.Close(o.end)
	}
	if o.tcp >= 0 {
		switch {
		case o.claimed:
			leave(o.tcp)
		case o.letter: // its program may keep it
			dispose.Close(o.tcp)
		default:
			abandon(o.tcp)
		}
	}
}

// leave closes a client's TCP socket of a connection that was claimed, in good order whatever its
// program wants: see [offer.release].
func leave(tcp int) {
	unix.SetsockoptLinger(tcp, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // not if it is no socket
	dispose.Close(tcp)
}

// abandon closes a TCP socket of a connection when both programs know its outcome: the port need
// not wait for late packets.
func abandon(tcp int) {
	lingerNot(tcp)
	dispose.Close(tcp)
}

// lingerNot has a TCP socket be reset by its last close.
func lingerNot(tcp int) {
	unix.SetsockoptLinger(tcp, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // not if it is no socket
}

// timeout is how long the loop may sleep; for ever if it is negative.
func (s *supervisor) timeout() time.Duration {
	next := s.letters.next
	if due := s.programs.due(); next.IsZero() || !due.IsZero() && due.Before(next) {
		next = due
	}
	for _, o := range s.held {
		if next.IsZero() || o.due.Before(next) {
			next = o.due
		}
	}
	if next.IsZero() {
		return -1
	}
	return max(0, time.Until(next))
}

// look sees to offers that are due: has a program accepted the connection without a claim?
func (s *supervisor) look(now time.Time) {
	for _, o := range s.held {
		if now.Before(o.due) {
			continue
		}
		if o.withdrawn() { // rule: TestLetterWithdrawn
			s.drop(o)
			continue
		}
		if !o.watched && !s.begun(o) {
			continue
		}
		state, err := sockdiag.Connection(o.server, o.client)
		accepted := err != nil || state.Inode != 0 // not there, or not to be asked about: then TCP will show
		if accepted && o.seen {
			s.relay(o)
			continue
		}
		o.seen = accepted
		o.wait = min(2*o.wait, lastLook)
		o.due = now.Add(o.wait)
	}
}

// hurry has the offers for a port looked at soon. A program that does not claim has accepted one
// connection, so it may have accepted others by now, which were looked at ever less often.
func (s *supervisor) hurry(port uint16) {
	due := time.Now().Add(s.patience)
	for _, o := range s.held {
		if o.server.Port() == port && due.Before(o.due) { // rule: TestRelayHurries
			o.due, o.wait = due, s.patience
		}
	}
}

// begun looks whether an offer that came by letter is connected by now, and watches it then. It
// reports false if it is not, or is no more. A server may have accepted a connection that cannot be
// watched, so that is no reason to drop the offer.
func (s *supervisor) begun(o *offer) bool {
	info, err := unix.GetsockoptTCPInfo(o.tcp, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch {
	case err == nil && info.State != sockdiag.TCPClose && info.State != sockdiag.TCPSynSent:
		s.watch(o) // rule: TestOfferUnwatched: s.watch(o) -> s.drop(o)
		return true
	case err != nil || hungUp(o.end) || info.State == sockdiag.TCPClose && (info.Segs_out > 0 || o.wait >= lastLook):
		s.drop(o) // its program has ended, or its connection; one that has sent nothing may be about to
	default:
		o.wait = min(2*o.wait, lastLook)
		o.due = time.Now().Add(o.wait)
	}
	return false
}

// hungUp reports whether nobody has the other end of a pair any more.
func hungUp(end int) bool {
	fds := []unix.PollFd{{Fd: int32(end)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLHUP != 0
}
