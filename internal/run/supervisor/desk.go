package supervisor

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/sockdiag"
)

// A Desk is a supervisor in a program of package smc. It takes the ends that programs of 'gosmc
// run' offer for its listeners. The program accepts for itself, so it claims without a message. Its
// methods may be called from several goroutines.
type Desk struct {
	s    *supervisor
	done chan struct{} // closed when serve has returned
}

// A Spot is a listener that was announced at a [Desk].
type Spot struct {
	port   uint16
	cookie uint64
}

// OpenDesk opens a desk in a run directory that is there. The policy says which connections of
// servers may leave TCP.
func OpenDesk(dir string, policy *config.Policy) (*Desk, error) {
	d := &Desk{s: emptySupervisor(policy), done: make(chan struct{})}
	d.s.patience = deskLook
	opened := make(chan error, 1)
	go func() {
		defer close(d.done)
		// On this goroutine, which no caller has locked to a thread of another network namespace:
		// it asks the kernel about listeners later.
		err := d.s.open(rundir.Supervisors(dir), proto.NewSocketName())
		opened <- err
		if err == nil {
			tidy(rundir.Supervisors(dir), nil)
			d.s.serve()
		}
	}()
	if err := <-opened; err != nil {
		<-d.done
		d.s.close()
		return nil, err
	}
	return d, nil
}

// Close ends a desk. Connections that were claimed go on, others do not.
func (d *Desk) Close() {
	d.s.stop()
	<-d.done
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.s.close()
}

// Announce announces a listener. It reports false if connections to it will be TCP: somebody else
// has the port, or it is in another network namespace, or accepts only clients that have sent
// something over TCP, which clients of 'gosmc run' do not.
func (d *Desk) Announce(l *net.TCPListener) (spot Spot, ok bool) {
	raw, err := l.SyscallConn()
	if err != nil {
		return spot, false
	}
	m := proto.Message{Local: proto.AddrPortOf(l.Addr())}
	deferral := 0 // seconds
	cerr := raw.Control(func(fd uintptr) {
		deferral, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT)
		if m.NetNS, err = proto.NetNSOf(int(fd)); err == nil {
			m.Unique, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
		}
	})
	if cerr != nil || err != nil || deferral > 0 { // rule: TestDeskDeferral
		return spot, false
	}
	m.Unique = listenerCookie(m.Local, m.Unique)
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return Spot{m.Local.Port(), m.Unique}, d.s.listeners.add(m)
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
func (d *Desk) Withdraw(spot Spot) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.s.listeners.remove(spot.port, spot.cookie)
}

// Share withdraws a listener from which other processes may accept from now on. An offer that
// nobody has claimed is joined to TCP once any process has accepted its connection.
func (d *Desk) Share(spot Spot) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	local := d.s.listeners.remove(spot.port, spot.cookie)
	for _, o := range d.s.offers {
		if (listener{Local: local}).Gets(o.server) && o.server.Port() == spot.port {
			o.shared = true
		}
	}
}

// Claim returns our end of a connection that was accepted, and the process at the other end, 0 if
// it is not known. It returns nil if the connection is TCP. If there is an end the caller closes
// tcp.
func (d *Desk) Claim(tcp *net.TCPConn) (end *net.UnixConn, pid int) {
	key := keyOf(proto.AddrPortOf(tcp.RemoteAddr()), proto.AddrPortOf(tcp.LocalAddr()))
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	o := d.s.offers[key]
	if o == nil || o.shared || !o.bind(isIPv6(tcp)) { // rule: TestDeskShare: o.shared -> false
		return nil, 0
	}
	copied, err := unix.FcntlInt(uintptr(o.end), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, 0 // it is joined to TCP in a while
	}
	if end = proto.UnixConn(copied); end == nil {
		return nil, 0
	}
	o.claimed = true
	d.s.listeners.claimed(key.server.Port(), 1)
	d.s.drop(o)
	o.releaseCopy(tcp)
	return end, o.pid
}

// releaseCopy is [offer.release] for a socket that the caller closes, too. Where there is no
// descriptor for a copy that is all.
func (o *offer) releaseCopy(tcp *net.TCPConn) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		if copied, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			o.release(copied)
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
