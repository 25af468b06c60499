package broker

import (
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/sockdiag"
)

// An Announcement is a listener that was announced by [Broker.Announce].
type Announcement struct {
	Port   uint16
	cookie uint64
}

// Open opens a broker for a program of package smc, in a run directory that is there. It takes the
// ends that programs of 'gosmc run' offer for the listeners of this program, which accepts for
// itself, so it claims without a message. The policy says which connections of servers may leave TCP.
// The methods of the broker may be called from several goroutines.
func Open(dir string, policy func() *config.Policy) (*Broker, error) {
	b := New(policy, nil)
	b.Patience, b.done = selfLook, make(chan struct{})
	opened := make(chan error, 1)
	go func() {
		defer close(b.done)
		// On this goroutine, which no caller has locked to a thread of another network namespace:
		// it asks the kernel about listeners later.
		err := b.Listen(rundir.Supervisors(dir), proto.NewSocketName(),
			func() []int { return []int{os.Getpid()} })
		opened <- err
		if err == nil {
			Tidy(rundir.Supervisors(dir), nil)
			b.serve()
		}
	}()
	if err := <-opened; err != nil {
		<-b.done
		b.End()
		return nil, err
	}
	return b, nil
}

// Close ends a broker that was opened by [Open]. Connections that were claimed go on, others do not.
func (b *Broker) Close() {
	b.Stop()
	<-b.done
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.End()
}

// Announce announces a listener. It reports false if connections to it will be TCP: somebody else
// has the port, or it is in another network namespace, or accepts only clients that have sent
// something over TCP, which clients of 'gosmc run' do not.
func (b *Broker) Announce(l *net.TCPListener) (a Announcement, ok bool) {
	raw, err := l.SyscallConn()
	if err != nil {
		return a, false
	}
	m := proto.Message{Local: proto.AddrPortOf(l.Addr())}
	deferral := 0 // seconds
	cerr := raw.Control(func(fd uintptr) {
		deferral, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT)
		if m.NetNS, err = proto.NetNSOf(int(fd)); err == nil {
			m.Unique, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
		}
	})
	if cerr != nil || err != nil || deferral > 0 { // rule: internal/run/supervisor TestDeskDeferral
		return a, false
	}
	m.Unique = listenerCookie(m.Local, m.Unique)
	b.Mu.Lock()
	defer b.Mu.Unlock()
	return Announcement{m.Local.Port(), m.Unique}, b.Listeners.Add(m)
}

// listenerCookie is the cookie by which the kernel shows a listener to others. A listener of
// package net is a socket of MPTCP. Its cookie differs from the cookie of the TCP socket inside of
// it.
func listenerCookie(local netip.AddrPort, own uint64) uint64 {
	list, _ := sockdiag.Listeners(local.Port())
	cookie := own
	for _, s := range list {
		switch {
		case s.Cookie == own:
			return own
		case s.Local == local:
			cookie = s.Cookie
		}
	}
	return cookie
}

// Withdraw announces a listener no more.
func (b *Broker) Withdraw(a Announcement) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.Listeners.remove(a.Port, a.cookie)
}

// Share withdraws a listener from which other processes may accept from now on. An offer that
// nobody has claimed is joined to TCP once any process has accepted its connection.
func (b *Broker) Share(a Announcement) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	local := b.Listeners.remove(a.Port, a.cookie)
	for _, o := range b.ByKey {
		if (listener{Local: local}).Gets(o.Server) && o.Server.Port() == a.Port {
			o.shared = true
		}
	}
}

// Claim returns our end of a connection that was accepted, and the process at the other end, 0 if
// it is not known. It returns nil if the connection is TCP. If there is an end the caller closes
// tcp.
func (b *Broker) Claim(tcp *net.TCPConn) (end *net.UnixConn, pid int) {
	key := KeyOf(proto.AddrPortOf(tcp.RemoteAddr()), proto.AddrPortOf(tcp.LocalAddr()))
	b.Mu.Lock()
	defer b.Mu.Unlock()
	o := b.ByKey[key]
	if o == nil || o.shared || !o.Bind(isIPv6(tcp)) { // rule: internal/run/supervisor TestDeskShare: o.shared -> false
		return nil, 0
	}
	copied, err := unix.FcntlInt(uintptr(o.End), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, 0 // it is joined to TCP in a while
	}
	if end = proto.UnixConn(copied); end == nil {
		return nil, 0
	}
	o.Claimed = true
	b.Listeners.Claimed(key.Server.Port(), 1)
	b.Drop(o)
	o.releaseCopy(tcp)
	return end, o.PID
}

// releaseCopy is [Offer.Release] for a socket that the caller closes, too. Where there is no
// descriptor for a copy that is all.
func (o *Offer) releaseCopy(tcp *net.TCPConn) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		if copied, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			o.Release(copied)
		}
	})
}

// isIPv6 reports whether a socket is AF_INET6, whatever its addresses are.
func isIPv6(sc syscall.Conn) (yes bool) {
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		yes = err == nil && domain == unix.AF_INET6
	})
	return yes
}
