package supervisor

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// newTestDesk opens a desk that is closed when the test ends, and leaves nothing.
func newTestDesk(t testing.TB) *broker.Broker {
	t.Helper()
	d := openTestDesk(t)
	t.Cleanup(func() { closeTest(t, d) })
	return d
}

func closeTest(t testing.TB, d *broker.Broker) {
	t.Helper()
	path := d.Path
	d.Close()
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(left) != 0 {
		t.Errorf("the desk has left %v", left)
	}
}

func openTestDesk(t testing.TB) *broker.Broker {
	t.Helper()
	dir, err := os.MkdirTemp("", "run") // a short name: sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := rundir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	policy, err := config.NewPolicy(config.Filter{}, config.Filter{}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	d, err := broker.Open(dir, func() *config.Policy { return policy })
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// playersOf has the programs of a test ask a broker: see [supervisor.program].
func playersOf(d *broker.Broker) *supervisor { return &supervisor{Broker: d} }

// announced announces a listener of package net, as package smc has them.
func announced(t testing.TB, d *broker.Broker) (*net.TCPListener, broker.Announcement) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inner.Close() })
	l := inner.(*net.TCPListener)
	spot, ok := d.Announce(l)
	if !ok {
		t.Fatal("Announce: false")
	}
	return l, spot
}

// TestDesk has a connection claimed that was offered, and an announcement that is believed when the kernel is asked, though the kernel shows another cookie of
// such a listener than the listener has.
func TestDesk(t *testing.T) {
	d := newTestDesk(t)
	l, spot := announced(t, d)
	d.Mu.Lock()
	d.Listeners.Look(spot.Port)
	d.Mu.Unlock()
	c := playersOf(d).offerTo(t, l)
	c.connect()
	end, pid := d.Claim(c.accept())
	if end == nil || pid != os.Getpid() {
		t.Fatalf("Claim = %v, %d; want an end of process %d", end, pid, os.Getpid())
	}
	defer end.Close()
	end.Write([]byte("hello"))
	b := make([]byte, 10)
	if n, err := readFrom(c.end, b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("the client has read %q, %v", b[:n], err)
	}
	if again, _ := d.Claim(c.accept()); again != nil {
		t.Error("claimed twice")
	}
	d.Withdraw(spot)
	d.Withdraw(spot)
	if _, err := os.Lstat(d.Listeners.Link(spot.Port)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the listener is still announced, %v", err)
	}
}

// TestDeskShare has a listener shared in the middle of two connections to it: nobody claims them,
// and the bytes that are sent over their pairs come out of TCP.
func TestDeskShare(t *testing.T) {
	d := newTestDesk(t)
	l, spot := announced(t, d)
	early, late := playersOf(d).offerTo(t, l), playersOf(d).offerTo(t, l)
	early.connect()
	conn := early.accept()
	if err := late.dial(); err != nil {
		t.Fatal(err)
	}
	other := late.accept()
	d.Share(spot)
	for _, tcp := range []*net.TCPConn{conn, other} {
		if end, _ := d.Claim(tcp); end != nil {
			t.Error("claimed, though another process may have accepted it")
		}
	}
	late.connect()
	for _, c := range []*connection{early, late} {
		unix.Write(c.end, []byte("hello"))
		c.accepted.SetDeadline(time.Now().Add(30 * time.Second))
		b := make([]byte, 5)
		if _, err := io.ReadFull(c.accepted, b); err != nil || string(b) != "hello" {
			t.Errorf("the server has read %q, %v", b, err)
		}
		c.accepted.Close()
		if n, err := readFrom(c.end, b); n != 0 || err != nil {
			t.Errorf("the client has read %d, %v; want the end", n, err)
		}
	}
}

// TestDeskCloses has a desk closed with an offer: the client sees the end of its connection.
func TestDeskCloses(t *testing.T) {
	d := openTestDesk(t)
	l, _ := announced(t, d)
	c := playersOf(d).offerTo(t, l)
	c.connect()
	closeTest(t, d)
	if n, err := readFrom(c.end, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("the client has read %d, %v; want the end", n, err)
	}
}

// TestDeskHostile has others ask for things that a desk does not have: it hangs up.
func TestDeskHostile(t *testing.T) {
	d := newTestDesk(t)
	l, _ := announced(t, d)
	raw, _ := l.SyscallConn()
	for _, k := range []proto.Kind{proto.KindAnnounce, proto.KindBoard, proto.KindClaim, proto.KindReturn, proto.KindTaken} {
		p := playersOf(d).program(t)
		raw.Control(func(fd uintptr) {
			var fds []int
			if k == proto.KindClaim || k == proto.KindReturn {
				fds = []int{int(fd)}
			}
			p.send(proto.Message{Kind: k, NetNS: d.Listeners.NetNS, Local: proto.AddrPortOf(l.Addr())}.Append(nil), fds...)
		})
		if got, _ := p.reply(); got != 99 {
			t.Errorf("message %d: status %d, want to be hung up on", k, got)
		}
	}
}

// TestDeskDeferral has a listener that defers accept stay with TCP: it would wait for bytes that a client of ours does not send.
func TestDeskDeferral(t *testing.T) {
	d := newTestDesk(t)
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 30) })
		return errors.Join(err, cerr)
	}}
	for _, mptcp := range []bool{false, true} {
		lc.SetMultipathTCP(mptcp)
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if spot, ok := d.Announce(l.(*net.TCPListener)); ok {
			d.Withdraw(spot)
			t.Errorf("Announce of a listener that defers accept (MPTCP %t) = true, want false", mptcp)
		}
	}
}
