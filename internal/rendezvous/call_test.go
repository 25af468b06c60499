package rendezvous

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/wire/clc"
)

// TestLoserAsksLate has a socket that has lost the race ask when another one is connected already,
// as package net has them where a name has several addresses: nothing of it may be left.
func TestLoserAsksLate(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, c *Call, l *net.TCPListener)
	}{
		{"another one won", func(t *testing.T, c *Call, l *net.TCPListener) {
			tcp, err := net.Dial("tcp4", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer tcp.Close()
			if p, _, err := c.Await(t.Context(), tcp.(*net.TCPConn)); p != nil || err != nil {
				t.Errorf("Await = %v, %v; want neither peering nor error", p, err)
			}
		}},
		{"none won", func(_ *testing.T, c *Call, _ *net.TCPListener) { c.HangUp() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, d := newPoint(t, 1)
			peer := d.peers[testGID(2)]
			l := plainListener(t)
			announceAll(t, p, d, l)
			asking, goOn := make(chan struct{}), make(chan struct{})
			d.hold = func() { close(asking); <-goOn }
			c := p.NewCall()
			late := make(chan struct{})
			loser := net.Dialer{ControlContext: func(ctx context.Context, _, address string, raw syscall.RawConn) error {
				c.Ask(ctx, raw, netip.MustParseAddrPort(address))
				close(late)
				return context.Canceled
			}}
			go loser.Dial("tcp4", l.Addr().String())
			<-asking
			tt.end(t, c, l)
			close(goOn)
			<-late
			if n := p.Attempts(); n != 0 {
				t.Errorf("%d attempts are left, want none", n)
			}
			if asked, cancelled := peer.count(Expect), peer.count(Cancel); asked != cancelled {
				t.Errorf("%d Expects and %d Cancels were sent, want as many", asked, cancelled)
			}
			// A socket that comes later does not even ask.
			asked := peer.count(Expect)
			dial(t, c, l).Close()
			if n := peer.count(Expect); n != asked {
				t.Errorf("a socket asked after the end of its call: %d Expects, were %d", n, asked)
			}
		})
	}
}

// TestManyAnnouncers has as many processes at one address as are asked, and one more: a connection
// of theirs waits for none that was not asked.
func TestManyAnnouncers(t *testing.T) {
	for _, count := range []int{9, maxAnnouncers, maxAnnouncers + 1} {
		p, d := newPoint(t, count)
		l := plainListener(t)
		announceAll(t, p, d, l)
		// The one that is asked last has the connection.
		last := make(chan *fakePeer, count)
		for _, peer := range d.peers {
			peer.on = func(m Message) {
				if m.Kind == Expect {
					last <- peer
				}
			}
		}
		c := p.NewCall()
		tcp := dial(t, c, l)
		if count > maxAnnouncers {
			if peer, reason, err := c.Await(t.Context(), tcp); peer != nil || reason != clc.DiagCrowded || err != nil {
				t.Errorf("%d announcers: Await = %v, %v, %v; want TCP because of %v", count, peer, reason, err, clc.DiagCrowded)
			}
			if len(last) > 0 || p.Attempts() > 0 {
				t.Errorf("%d announcers: %d were asked, want none", count, len(last))
			}
			continue
		}
		if len(last) != count {
			t.Errorf("%d announcers: %d were asked, want all", count, len(last))
			c.HangUp()
			continue
		}
		var want *fakePeer
		for range count {
			want = <-last
		}
		id := want.sent[0].ID
		if err := p.Signal(want, (&Message{Kind: Accepted, ID: id}).Append(nil)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if peer, reason, err := c.Await(ctx, tcp); peer != want || err != nil {
			t.Errorf("%d announcers: Await = %v, %v, %v; want the last one", count, peer, reason, err)
		}
		cancel()
	}
}

// TestDeadAnnouncersDoNotCrowd has many announcements of dead processes beside few live ones.
func TestDeadAnnouncersDoNotCrowd(t *testing.T) {
	p, d := newPoint(t, 2*maxAnnouncers)
	l := plainListener(t)
	announceAll(t, p, d, l)
	live := d.peers[testGID(2)]
	clear(d.peers)
	d.peers[live.gid] = live
	c := p.NewCall()
	dial(t, c, l)
	if n := live.count(Expect); n != 1 {
		t.Errorf("the live announcer was asked %d times, want once", n)
	}
	c.HangUp()
	if n := p.Attempts(); n != 0 {
		t.Errorf("%d attempts are left", n)
	}
}

// TestAnswerUnasked has a peer answer that was not asked: it is not heard.
func TestAnswerUnasked(t *testing.T) {
	p, d := newPoint(t, 1)
	asked := d.peers[testGID(2)]
	stranger := newFakePeer(testGID(9))
	asked.on = func(m Message) {
		if m.Kind == Expect {
			p.Signal(stranger, (&Message{Kind: Accepted, ID: m.ID}).Append(nil))
			p.Signal(asked, (&Message{Kind: Refused, ID: m.ID, Reason: uint32(clc.DiagBusy)}).Append(nil))
		}
	}
	l := plainListener(t)
	announceAll(t, p, d, l)
	c := p.NewCall()
	tcp := dial(t, c, l)
	if got, reason, err := c.Await(t.Context(), tcp); got != nil || reason != clc.DiagBusy || err != nil {
		t.Errorf("Await = %v, %v, %v; want what the one that was asked says, %v", got, reason, err, clc.DiagBusy)
	}
}

// TestSocketOfRoot has a listening socket that root has made, and a process of our user that says
// it accepts from it, as one that has inherited it. It is believed if the connection was accepted
// by that user.
func TestSocketOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const uid = 60001
	for _, tt := range []struct {
		acceptedBy int
		reason     clc.Diagnosis // DiagNone: the peering
	}{
		{uid, clc.DiagNone},
		{uid + 1, clc.DiagForeign},
		{0, clc.DiagForeign},
	} {
		p, l, peer := rootsListener(t, uid)
		asEffective(t, uid, func() {
			c := p.NewCall()
			tcp := dial(t, c, l)
			accepted := make(chan net.Conn)
			go func() {
				runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
				syscall.Setfsuid(tt.acceptedBy)
				s, err := l.Accept()
				if err != nil {
					t.Error(err)
				}
				accepted <- s
			}()
			s := <-accepted
			got, reason, err := c.Await(t.Context(), tcp)
			if err != nil || reason != tt.reason || (got == peer) != (tt.reason == clc.DiagNone) {
				t.Errorf("accepted by user %d: Await = %v, %v, %v; want %v", tt.acceptedBy, got, reason, err, tt.reason)
			}
			s.Close()
		})
	}
}

// rootsListener returns a listener of root's, and a peer of another user that has announced it, and
// accepts whatever is expected.
func rootsListener(t *testing.T, uid int) (*Point, *net.TCPListener, Peer) {
	p, d := newPoint(t, 1)
	peer := d.peers[testGID(2)]
	peer.uid = uid
	peer.on = func(m Message) {
		if m.Kind == Expect {
			p.Signal(peer, (&Message{Kind: Accepted, ID: m.ID}).Append(nil))
		}
	}
	l := plainListener(t)
	announceAll(t, p, d, l)
	return p, l, peer
}

// asEffective calls f on a thread that has another effective user, and root's files.
func asEffective(t *testing.T, uid int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		same := ^uintptr(0)
		if _, _, err := syscall.RawSyscall(syscall.SYS_SETRESUID, same, uintptr(uid), same); err != 0 {
			t.Error(err)
			return
		}
		syscall.Setfsuid(0)
		f()
	}()
	<-done
}

// TestStrangerAtSocketOfRoot has a process of another user than the client's say that it accepts
// from a socket of root's. Anybody can say so, and not answer then, so it is not asked.
func TestStrangerAtSocketOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p, l, peer := rootsListener(t, 60001)
	c := p.NewCall()
	tcp := dial(t, c, l)
	if got, reason, err := c.Await(t.Context(), tcp); got != nil || reason != clc.DiagForeign || err != nil {
		t.Errorf("Await = %v, %v, %v; want %v", got, reason, err, clc.DiagForeign)
	}
	if n := len(peer.(*fakePeer).sent); n != 0 {
		t.Errorf("the stranger was sent %d messages", n)
	}
}

// TestStrangerNotDialled has a device of another user announced at a listener of root's, which
// would answer never: it is not dialled.
func TestStrangerNotDialled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, tt := range []struct {
		uid     int
		admit   bool
		dialled bool
	}{{0, false, true}, {60001, true, false}, {60001, false, false}, {60002, true, true}, {60002, false, false}} {
		p, l, _ := rootsListener(t, tt.uid)
		p.cfg.Admit = func(int) bool { return tt.admit }
		if tt.uid == 60002 {
			p.owners.entries = map[netip.AddrPort]ownerEntry{AddrPort(l.Addr()): {uid: 60002, at: time.Now().Add(time.Hour)}}
		}
		d, _, _ := p.cfg.Open()
		device := d.(*fakeDevice)
		path := filepath.Join(rundir.Path(p.cfg.Dir, rundir.ISM), testGID(2).String())
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, tt.uid, tt.uid); err != nil {
			t.Fatal(err)
		}
		dialled := false
		device.mu.Lock()
		device.hold = func() { dialled = true }
		device.mu.Unlock()
		c := p.NewCall()
		dial(t, c, l)
		c.HangUp()
		if dialled != tt.dialled {
			t.Errorf("a device of user %d, admitted %t: dialled %t", tt.uid, tt.admit, dialled)
		}
	}
}

// TestIsElsewhere has a process without SMC at the port of one that was asked. When it has accepted the connection, that
// is known; not before, and not where the one that was asked has.
func TestIsElsewhere(t *testing.T) {
	plain := exec.Command("sleep", "1000")
	if err := plain.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		plain.Process.Kill()
		plain.Wait()
	})
	p, d := newPoint(t, 1)
	peer := d.peers[testGID(2)]
	l := plainListener(t)
	announceAll(t, p, d, l)
	peer.on = func(m Message) {
		if m.Kind == Cancel {
			p.Signal(peer, (&Message{Kind: Refused, ID: m.ID, Reason: uint32(clc.DiagNotAccepted)}).Append(nil))
		}
	}
	c := p.NewCall()
	tcp := dial(t, c, l)
	var a *attempt
	for _, a = range p.attempts {
	}
	check := func(when string, pid int, want bool) {
		t.Helper()
		peer.pid = pid
		if got := p.isElsewhere(a, tcp); got != want {
			t.Errorf("%s: isElsewhere = %t, want %t", when, got, want)
		}
	}
	check("before somebody has accepted it", plain.Process.Pid, false)
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	check("accepted by the one that was asked", os.Getpid(), false)
	check("the one that was asked cannot be seen", 0, false)
	check("the one that was asked has ended", 1<<30, false)
	check("accepted by another one", plain.Process.Pid, true)

	// The client goes on at once, or soon at least where the machine is busy, and not after AcceptTime.
	for deadline := time.Now().Add(patience); ; {
		start := time.Now()
		if got, reason, err := c.Await(t.Context(), tcp); got != nil || reason != clc.DiagNotAccepted || err != nil {
			t.Fatalf("Await = %v, %v, %v; want TCP because of %v", got, reason, err, clc.DiagNotAccepted)
		}
		took := time.Since(start)
		if took < AcceptTime {
			t.Logf("after %v", took)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Await takes %v where another process has the connection, want less than %v", took, AcceptTime)
		}
		c = p.NewCall()
		tcp = dial(t, c, l)
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
}
