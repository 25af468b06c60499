package broker

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sockdiag"
	"github.com/gosmc/smc/wire/clc"
)

// An Offer is a connection with a server end that nobody has claimed.
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
type Offer struct {
	Key     Key
	Server  netip.AddrPort
	Client  netip.AddrPort
	Unique  uint64
	End     int  // of the server
	TCP     int  // of the client, once it is connected; -1 before
	Letter  bool // it came by letter, with the TCP socket that was not connected yet
	Watched bool // the TCP socket is watched
	PID     int  // of the client; 0 if it is not known
	// closed when the client has come back from connect; nil if it came by letter: its client minds
	// no reset
	Back    chan struct{}
	Claimed bool
	shared  bool      // nobody claims it: see [Broker.Share]
	Due     time.Time // of the next look whether somebody else has accepted; zero before it is connected
	Wait    time.Duration
	seen    bool // accepted at the last look
}

// Offers are the offers that nobody has claimed.
type Offers struct {
	ByKey     map[Key]*Offer
	Held      map[int]*Offer        // by the descriptor of their TCP socket
	Room      int                   // how many there may be, by descriptors
	asked     int                   // how many did not come by letter
	Policy    func() *config.Policy // only its part about servers counts here: clients know theirs
	Patience  time.Duration         // until the first look whether somebody else has accepted
	Relays    chan struct{}         // has an entry for each relay
	Poll      *Poller
	Listeners *Listeners
	owner     Owner // nil: a program of package smc, which accepts and claims by itself
}

// KeyOf is the key of a connection.
func KeyOf(client, server netip.AddrPort) Key {
	return Key{client, server}
}

// take keeps the end that a client offers, which is process pid. It returns nil and the reason, and
// has closed the end, if the connection has to be TCP.
func (t *Offers) take(m proto.Message, end, pid int) (*Offer, clc.Diagnosis) {
	o := &Offer{Key: KeyOf(m.Local, m.Peer), Client: m.Local, Server: m.Peer, Unique: m.Unique, PID: pid,
		End: end, TCP: -1, Back: make(chan struct{})}
	theirs := proto.Name{Role: proto.RoleClient, IPv6: m.IPv6, Local: m.Local, Peer: m.Peer, Unique: m.Unique}
	reason := clc.DiagNone
	switch {
	case t.Policy().Listen.Refuses(m.Peer) != "": // rule: internal/run/supervisor TestSupervisorPolicy
		reason = clc.DiagNotAllowed
	case !t.Listeners.Has(m.Peer) || m.NetNS != t.Listeners.NetNS:
		reason = clc.DiagNoListener
	case len(t.ByKey) >= t.Room || t.ByKey[o.Key] != nil:
		reason = clc.DiagBusy
	case !proto.IsStream(end, unix.AF_UNIX) || PeerName(end) != theirs.String():
		reason = clc.DiagRefused
	}
	if t.owner != nil {
		t.owner.Offered(m, pid, reason)
	}
	if reason != clc.DiagNone {
		dispose.Close(end)
		return nil, reason
	}
	t.ByKey[o.Key] = o
	t.asked++
	t.tellWaiting()
	return o, clc.DiagNone
}

// tellWaiting tells the owner how many offers wait that did not come by letter.
func (t *Offers) tellWaiting() {
	if t.owner != nil {
		t.owner.Waiting(t.asked)
	}
}

// PeerName is the name of the other end of a pair, "" if it has none.
func PeerName(fd int) string {
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
func (t *Offers) connected(o *Offer, tcp int) {
	close(o.Back)
	if o.Claimed {
		leave(tcp)
		return
	}
	if !proto.IsTCP(tcp) {
		dispose.Close(tcp)
		t.Drop(o)
		return
	}
	o.TCP = tcp
	t.Hold(o)
	t.watch(o) // if it cannot be, it is looked at
}

// Hold takes an offer that has a TCP socket to those that are looked at now and then.
func (t *Offers) Hold(o *Offer) {
	o.Wait = t.Patience
	o.Due = time.Now().Add(o.Wait)
	t.Held[o.TCP] = o
}

// watch has the loop told of the server's actions on the TCP connection. The kernel may lack memory
// for that, or the user may be at a limit; then looks find them.
func (t *Offers) watch(o *Offer) {
	o.Watched = t.Poll.Add(o.TCP, unix.EPOLLIN|unix.EPOLLRDHUP) == nil
}

// cancel ends an offer, unless it was claimed.
func (t *Offers) cancel(o *Offer) bool {
	close(o.Back)
	if o.Claimed {
		return false
	}
	t.Drop(o)
	return true
}

// isBack reports whether a reset of the TCP connection would fail no connect of the client'b.
func (o *Offer) isBack() bool {
	if o.Back == nil {
		return true
	}
	select {
	case <-o.Back:
		return true
	default:
		return false
	}
}

// Release ends the TCP connection of a claimed offer, by a reset of the accepted socket, which is
// ours to close, as soon as the client is back from connect. That frees the client's port, which
// nothing else must. If another socket gets the port while the accepted socket is there, a
// connection from it is lost for a second: the kernel takes its SYN for one of the connection
// before.
func (o *Offer) Release(accepted int) {
	if o.isBack() {
		abandon(accepted)
		return
	}
	go func() {
		<-o.Back
		abandon(accepted)
	}()
}

// Ends are the network namespace and the addresses of a TCP socket.
type Ends struct {
	NetNS       uint64
	Local, Peer netip.AddrPort
}

// EndsOf returns those of a descriptor that a program has sent, the zero value if it is no TCP socket that
// is connected. It waits for system calls that the program has under way on the socket: these take as
// long as that likes, if its memory is a file of its own.
func EndsOf(fd int) (e Ends) {
	if !proto.IsTCP(fd) {
		return Ends{}
	}
	netns, err := proto.NetNSOf(fd)
	if err != nil {
		return Ends{}
	}
	e = Ends{netns, addressOf(fd, unix.SYS_GETSOCKNAME), addressOf(fd, unix.SYS_GETPEERNAME)}
	if !e.Local.IsValid() || !e.Peer.IsValid() {
		return Ends{}
	}
	return e
}

// addressOf asks for an address of a TCP socket. The functions of package unix keep a processor of the
// runtime while they wait: as many sockets as there are processors would stop the whole process.
func addressOf(fd int, call uintptr) netip.AddrPort {
	var raw unix.RawSockaddrInet6
	size := uint32(unsafe.Sizeof(raw))
	_, _, errno := unix.Syscall(call, uintptr(fd),
		uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&raw.Port))[:])
	switch raw.Family {
	case unix.AF_INET:
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&raw))
		return netip.AddrPortFrom(netip.AddrFrom4(four.Addr), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(raw.Addr).Unmap(), port)
	}
	return netip.AddrPort{}
}

// Between reports whether a connection has the addresses.
func (e Ends) Between(local, peer netip.AddrPort) bool {
	return e.Local == local && e.Peer == peer
}

// EndsOf returns the ends of the socket that has come with the talk's message. Those of a talk from outside
// were read before, without the lock.
func (t *Talk) EndsOf(fd int) Ends {
	if t.Outside {
		return t.Ends
	}
	return EndsOf(fd)
}

// HasEnds reports whether a TCP socket with these ends is the socket of a connection. A user that has a
// network namespace can have one with any addresses there.
func (t *Offers) HasEnds(e Ends, local, peer netip.AddrPort) bool {
	if e.NetNS != t.Listeners.NetNS { // rule: internal/run/supervisor TestClaimFromElsewhere
		return false
	}
	return e.Between(local, peer)
}

// Bind has the server's end know the family of the listener, by its name. It may have been given
// before, if the answer could not be sent. Any user can have taken a name that could be foreseen;
// then there is another number in it. An end that came by letter has a name, and knows the family
// by an option: preload/identity.c.
func (o *Offer) Bind(ipv6 bool) bool {
	if o.Letter {
		return !ipv6 || unix.SetsockoptInt(o.End, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) == nil
	}
	ours := proto.Name{Role: proto.RoleServer, IPv6: ipv6, Local: o.Server, Peer: o.Client, Unique: o.Unique}
	for range maxNames {
		switch err := unix.Bind(o.End, &unix.SockaddrUnix{Name: ours.String()}); err {
		case nil:
			return true
		case unix.EADDRINUSE:
			var random [8]byte
			rand.Read(random[:])
			ours.Unique = binary.NativeEndian.Uint64(random[:])
		default:
			sa, err := unix.Getsockname(o.End)
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

// Forget takes an offer out; its descriptors are the caller'b.
func (t *Offers) Forget(o *Offer) {
	if t.ByKey[o.Key] != o {
		return
	}
	delete(t.ByKey, o.Key)
	if !o.Letter {
		t.asked--
		t.tellWaiting()
	}
	if o.TCP >= 0 {
		delete(t.Held, o.TCP)
		t.Poll.Remove(o.TCP)
	}
}

// Drop takes an offer out and closes its descriptors.
func (t *Offers) Drop(o *Offer) {
	if t.ByKey[o.Key] != o {
		return
	}
	t.Forget(o)
	if o.Claimed { // rule: internal/run/supervisor TestClaimParts: o.Claimed -> false
		dispose.Now(o.End)
	} else {
		dispose.Close(o.End)
	}
	if o.TCP >= 0 {
		switch {
		case o.Claimed:
			leave(o.TCP)
		case o.Letter: // its program may keep it
			dispose.Close(o.TCP)
		default:
			abandon(o.TCP)
		}
	}
}

// leave closes a client's TCP socket of a connection that was claimed, in good order whatever its
// program wants: see [Offer.Release].
func leave(tcp int) {
	unix.SetsockoptLinger(tcp, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // not if it is no socket
	dispose.Close(tcp)
}

// abandon closes a TCP socket of a connection when both programs know its outcome: the port need
// not wait for late packets.
func abandon(tcp int) {
	LingerNot(tcp)
	dispose.Close(tcp)
}

// LingerNot has a TCP socket be reset by its last close.
func LingerNot(tcp int) {
	// not if it is no socket
	unix.SetsockoptLinger(tcp, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// Due is when [Broker.Look] is to be called; the zero time: not.
func (t *Offers) Due() (next time.Time) {
	for _, o := range t.Held {
		next = Earliest(next, o.Due)
	}
	return next
}

// Look sees to offers that are due: has a program accepted the connection without a claim?
func (t *Offers) Look(now time.Time) {
	for _, o := range t.Held {
		if now.Before(o.Due) {
			continue
		}
		if o.Withdrawn() { // rule: internal/run/supervisor TestLetterWithdrawn
			t.Drop(o)
			continue
		}
		if !o.Watched && !t.begun(o) {
			continue
		}
		state, err := sockdiag.Connection(o.Server, o.Client)
		accepted := err != nil || state.Inode != 0 // not there, or not to be asked about: then TCP will show
		if accepted && o.seen {
			t.Relay(o)
			continue
		}
		o.seen = accepted
		o.Wait = min(2*o.Wait, LastLook)
		o.Due = now.Add(o.Wait)
	}
}

// hurry has the offers for a port looked at soon. A program that does not claim has accepted one
// connection, so it may have accepted others by now, which were looked at ever less often.
func (t *Offers) hurry(port uint16) {
	due := time.Now().Add(t.Patience)
	for _, o := range t.Held {
		if o.Server.Port() == port && due.Before(o.Due) { // rule: internal/run/supervisor TestRelayHurries
			o.Due, o.Wait = due, t.Patience
		}
	}
}

// begun looks whether an offer that came by letter is connected by now, and watches it then. It
// reports false if it is not, or is no more. A server may have accepted a connection that cannot be
// watched, so that is no reason to drop the offer.
func (t *Offers) begun(o *Offer) bool {
	info, err := unix.GetsockoptTCPInfo(o.TCP, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch {
	case err == nil && info.State != sockdiag.TCPClose && info.State != sockdiag.TCPSynSent:
		t.watch(o) // rule: internal/run/supervisor TestOfferUnwatched: t.watch(o) -> t.Drop(o)
		return true
	case err != nil || HungUp(o.End) || info.State == sockdiag.TCPClose && (info.Segs_out > 0 || o.Wait >= LastLook):
		t.Drop(o) // its program has ended, or its connection; one that has sent nothing may be about to
	default:
		o.Wait = min(2*o.Wait, LastLook)
		o.Due = time.Now().Add(o.Wait)
	}
	return false
}

// HungUp reports whether nobody has the other end of a pair any more.
func HungUp(end int) bool {
	fds := []unix.PollFd{{Fd: int32(end)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLHUP != 0
}

// Withdrawn reports whether a client has given its offer up that came by letter: there is a filter
// at its TCP socket.
func (o *Offer) Withdrawn() bool {
	return o.Letter && filtered(o.TCP)
}

// Right reports whether the end of an offer is the server's from now on. If it came by letter its
// client cannot give it up any more, once it is: as it would by a filter.
func (o *Offer) Right() bool {
	return !o.Letter || !filtered(o.TCP) &&
		unix.SetsockoptInt(o.TCP, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1) == nil && !filtered(o.TCP)
}

// filtered reports whether a socket has a filter of packets, or cannot be asked.
func filtered(fd int) bool {
	length := uint32(0) // of the buffer; the kernel returns the length of the filter
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, 0,
		uintptr(unsafe.Pointer(&length)), 0)
	return errno != 0 || length != 0
}
