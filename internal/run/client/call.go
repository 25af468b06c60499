package client

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/attempts"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire/clc"
)

// A Call is the client's side in a program of package smc: it offers pairs for the sockets of one
// dial, as preload/src/connect.c does for other programs. Package net may connect several sockets
// at once, and use one.
//
// Its Offer may be called from several goroutines; then either Connected or HangUp is called, once.
// Offers that come later are none.
type Call struct {
	dir string // run directory
	set attempts.Set[*attempt]
}

// NewCall returns a call that has offered nothing, for programs with a run directory.
func NewCall(dir string) *Call { return &Call{dir: dir} }

// An attempt is an offer that was taken.
type attempt struct {
	talk  *net.UnixConn // to the server's supervisor
	end   *net.UnixConn // ours, of the pair
	offer proto.Message
}

// Offer offers a pair for a socket that is about to connect to dest, if a program of 'gosmc run'
// listens there, and binds the socket. local is the address that the socket will be bound to
// otherwise; the zero value is no address.
func (c *Call) Offer(ctx context.Context, raw syscall.RawConn, dest, local netip.AddrPort) {
	if c.set.Over() {
		return
	}
	a, reason := c.attempt(ctx, raw, dest, local)
	switch {
	case a == nil:
		c.set.AddReason(dest, reason)
	case !c.set.Add(a):
		a.hangUp()
	}
}

// HangUp takes all offers back.
func (c *Call) HangUp() {
	for _, a := range c.set.End() {
		a.hangUp()
	}
}

// Connected takes back the offers for other sockets than tcp, which is connected, and returns the
// end that takes its place. It returns nil if the connection is to be TCP, and the reason; DiagNone
// if there was nobody to offer anything to. If there is an end the caller closes tcp.
func (c *Call) Connected(tcp *net.TCPConn) (*net.UnixConn, clc.Diagnosis) {
	var mine *attempt
	remote := proto.AddrPortOf(tcp.RemoteAddr())
	for _, a := range c.set.End() {
		if mine == nil && a.offer.Peer == remote && a.offer.Local == proto.AddrPortOf(tcp.LocalAddr()) {
			mine = a
		} else {
			a.hangUp()
		}
	}
	if mine == nil {
		reason, _ := c.set.Reason(remote)
		return nil, reason
	}
	defer mine.talk.Close()
	if mine.connected(tcp) {
		return mine.end, clc.DiagNone
	}
	// The supervisor has died; or the socket cannot be sent, as the user has as many descriptors on their
	// way as it may. The offer would end with the conversation, so it is cancelled.
	reason := clc.DiagBusy
	claimed, told := mine.cancel()
	if !told {
		claimed, reason = !mine.givenUp(), clc.DiagStale
	}
	if claimed { // rule: internal/run/supervisor TestCallNotSent: claimed { -> claimed || !claimed {
		return mine.end, clc.DiagNone
	}
	mine.end.Close()
	return nil, reason
}

// cancel takes an offer back that may have been claimed. The supervisor tells, unless it has died.
func (a *attempt) cancel() (claimed, told bool) {
	m := a.offer
	m.Kind = proto.KindCancel
	if _, err := a.talk.Write(m.Append(nil)); err != nil {
		return false, false
	}
	var b [proto.ReplyLen + 1]byte
	n, err := a.talk.Read(b[:])
	if err != nil {
		return false, false
	}
	r, err := proto.ParseReply(b[:n], proto.KindCancel)
	return r.Status == proto.StatusClaimed, err == nil
}

// connected hands the client's TCP socket to the supervisor.
func (a *attempt) connected(tcp *net.TCPConn) (sent bool) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	m := a.offer
	m.Kind = proto.KindConnected
	a.talk.SetDeadline(time.Now().Add(proto.TalkTimeout))
	raw.Control(func(fd uintptr) {
		_, _, err = a.talk.WriteMsgUnix(m.Append(nil), unix.UnixRights(int(fd)), nil)
		sent = err == nil
	})
	return sent
}

// givenUp reports whether nobody has the other end of the pair.
func (a *attempt) givenUp() (yes bool) {
	raw, err := a.end.SyscallConn()
	if err != nil {
		return true
	}
	raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, _ := unix.Poll(fds, 0)
		yes = n == 1 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return yes
}

// hangUp takes an offer back, unless it was claimed. A server that has claimed it finds its end
// closed, as it would a TCP connection.
func (a *attempt) hangUp() {
	a.talk.Close()
	a.end.Close()
}

// attempt returns an offer that was taken, or the reason why there is none; DiagNone if nobody is
// there to take it.
func (c *Call) attempt(ctx context.Context, raw syscall.RawConn, dest,
	local netip.AddrPort) (*attempt, clc.Diagnosis) {
	var s clientSocket
	err := raw.Control(func(fd uintptr) { s = clientSocketOf(int(fd)) })
	if err != nil || s.netns == 0 || dest.Addr().Zone() != "" {
		return nil, clc.DiagNone
	}
	runDir := rundir.Supervisors(c.dir)
	target, err := os.Readlink(proto.LinkPath(runDir, s.netns, dest.Port()))
	target = proto.LinkedSocket(target)
	if err != nil || strings.Contains(target, "/") {
		return nil, clc.DiagNone
	}
	source, ok := sourceOf(dest)
	switch {
	case !ok:
		return nil, clc.DiagNone // it is not on this machine
	case s.special, s.bound, local.IsValid() && local.Port() == 0:
		return nil, clc.DiagNetwork // its address is not known yet, or it is to go its own way
	case local.IsValid() && !local.Addr().IsUnspecified():
		source = local.Addr().Unmap()
	}
	talk, reason := dialSupervisor(ctx, filepath.Join(runDir, target))
	if talk == nil {
		return nil, reason
	}
	stop := context.AfterFunc(ctx, func() { talk.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	a := &attempt{talk: talk, offer: proto.Message{Kind: proto.KindOffer, IPv6: s.ipv6, NetNS: s.netns, Local: netip.AddrPortFrom(source, local.Port()), Peer: dest}}
	if !local.IsValid() {
		if a.offer.Local, err = bindTCP(raw, source, s.ipv6); err != nil {
			talk.Close()
			return nil, clc.DiagNetwork
		}
	}
	if reason = a.make(); reason != clc.DiagNone {
		talk.Close()
		return nil, reason
	}
	return a, clc.DiagNone
}

// make makes a pair and offers one end of it.
func (a *attempt) make() clc.Diagnosis {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return clc.DiagNoFile
	}
	defer unix.Close(fds[1])
	m := &a.offer
	m.Unique, err = unix.GetsockoptUint64(fds[0], unix.SOL_SOCKET, unix.SO_COOKIE)
	ours := proto.Name{Role: proto.RoleClient, IPv6: m.IPv6, Local: m.Local, Peer: m.Peer, Unique: m.Unique}
	if err == nil {
		err = unix.Bind(fds[0], &unix.SockaddrUnix{Name: ours.String()})
	}
	if err != nil {
		unix.Close(fds[0])
		return clc.DiagNetwork
	}
	if a.end = proto.UnixConn(fds[0]); a.end == nil {
		return clc.DiagNoFile
	}
	reason := a.ask(fds[1])
	if reason != clc.DiagNone {
		a.end.Close()
	}
	return reason
}

// ask sends the offer and waits for the answer.
func (a *attempt) ask(end int) clc.Diagnosis {
	if _, _, err := a.talk.WriteMsgUnix(a.offer.Append(nil), unix.UnixRights(end), nil); err != nil {
		return clc.DiagStale
	}
	var b [proto.ReplyLen + 1]byte
	n, err := a.talk.Read(b[:])
	var r proto.Reply
	if err == nil {
		r, err = proto.ParseReply(b[:n], proto.KindOffer)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return clc.DiagRendezvousTimeout
	case err != nil:
		return clc.DiagStale
	case r.Status == proto.StatusOK:
		return clc.DiagNone
	case r.Reason.IsLocal():
		return r.Reason
	}
	return clc.DiagRefused
}

// dialSupervisor connects to a supervisor of our user.
func dialSupervisor(ctx context.Context, path string) (*net.UnixConn, clc.Diagnosis) {
	d := net.Dialer{Timeout: proto.TalkTimeout}
	conn, err := d.DialContext(ctx, "unixpacket", path)
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil, clc.DiagNone // it was killed, with its programs or without
	case err != nil:
		return nil, clc.DiagRendezvousTimeout
	}
	talk := conn.(*net.UnixConn)
	raw, err := talk.SyscallConn()
	var cred *unix.Ucred
	if err == nil {
		if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
			err = cerr
		}
	}
	if err != nil || !user.Ours(int(cred.Uid)) {
		talk.Close()
		return nil, clc.DiagOtherUser
	}
	talk.SetDeadline(time.Now().Add(proto.TalkTimeout))
	return talk, clc.DiagNone
}

// A clientSocket has the facts that have to be known of a TCP socket that is about to connect.
type clientSocket struct {
	netns   uint64 // cookie of its network namespace, 0 if that is not known
	ipv6    bool
	bound   bool
	special bool // it goes another way than others: a pair would not
}

func clientSocketOf(fd int) (s clientSocket) {
	s.netns, _ = proto.NetNSOf(fd)
	domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	s.ipv6 = domain == unix.AF_INET6
	sa, err := unix.Getsockname(fd)
	s.bound = err != nil || proto.AddrPort(sa).Port() != 0
	for _, option := range []int{unix.SO_BINDTOIFINDEX, unix.SO_MARK} {
		value, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		s.special = s.special || err != nil || value != 0
	}
	return s
}

// sourceOf returns the address that the kernel will use of its own for a destination. It reports
// false if the destination is not on this machine, where the two are the same.
func sourceOf(dest netip.AddrPort) (netip.Addr, bool) {
	switch ip := dest.Addr(); {
	case ip.IsLoopback() && ip.Is4():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true // all of 127.0.0.0/8 is reached from here
	case ip.IsLoopback():
		return ip, true
	}
	return dest.Addr(), proto.IsLocal(dest)
}

// bindTCP binds a socket to an address and any port.
func bindTCP(raw syscall.RawConn, ip netip.Addr, ipv6 bool) (local netip.AddrPort, err error) {
	var sa unix.Sockaddr
	if ipv6 {
		sa = &unix.SockaddrInet6{Addr: ip.As16()}
	} else {
		sa = &unix.SockaddrInet4{Addr: ip.As4()}
	}
	cerr := raw.Control(func(fd uintptr) {
		if err = unix.Bind(int(fd), sa); err == nil {
			if sa, err = unix.Getsockname(int(fd)); err == nil {
				local = proto.AddrPort(sa)
			}
		}
	})
	return local, errors.Join(err, cerr)
}
