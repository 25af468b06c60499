package ism

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPeering(t *testing.T) {
	x := newPair(t)
	if x.pa.GID() != x.b.GID() || x.pb.GID() != x.a.GID() {
		t.Errorf("GIDs %v, %v; want %v, %v", x.pa.GID(), x.pb.GID(), x.b.GID(), x.a.GID())
	}
	want := Cred{PID: os.Getpid(), UID: os.Getuid(), GID: os.Getgid()}
	if x.pa.Cred() != want || x.pb.Cred() != want {
		t.Errorf("Cred() = %v, %v; want %v", x.pa.Cred(), x.pb.Cred(), want)
	}
	if x.pa.Accepted() || !x.pb.Accepted() {
		t.Errorf("Accepted() = %v, %v; want false, true", x.pa.Accepted(), x.pb.Accepted())
	}
	if got := dialPeer(t, x.a, x.b); got != x.pa {
		t.Errorf("second Peer(%v) made another peering", x.b.GID())
	}
	if err := x.pa.Err(); err != nil {
		t.Errorf("Err() = %v, want nil", err)
	}
	if u := x.a.GID().UUID(); u[6]>>4 != 4 || u[8]>>6 != 2 {
		t.Errorf("GID %v is no UUID of version 4", x.a.GID())
	}
}

// Callers that want the same peering at once share it.
func TestPeerSharedDial(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	a, _ := openDevice(t, Config{Dir: dir})
	b, rb := openDevice(t, Config{Dir: dir})
	peers := make([]*Peer, 20)
	var wg sync.WaitGroup
	for i := range peers {
		wg.Go(func() { peers[i], _ = a.Peer(testContext(t), b.GID()) })
	}
	wg.Wait()
	for i, p := range peers {
		if p == nil || p != peers[0] {
			t.Errorf("caller %d got %p, want %p", i, p, peers[0])
		}
	}
	await(t, "PeerUp", rb.ups)
	if len(rb.ups) != 0 {
		t.Errorf("%d more peerings", len(rb.ups))
	}
}

// A device may be its own peer: it then has two Peers.
func TestPeerSelf(t *testing.T) {
	checkLeaks(t)
	d, r := openDevice(t, Config{Dir: t.TempDir()})
	p := dialPeer(t, d, d)
	q := await(t, "PeerUp", r.ups)
	if p == q {
		t.Fatal("both ends are one Peer")
	}
	rung := make(chan struct{}, 1)
	dmb := mustDMB(t, p, 16<<10, func() { rung <- struct{}{} })
	w := mustAttach(t, q, dmb)
	w.Mem()[100] = 42
	w.Ring()
	await(t, "ring", rung)
	if dmb.Mem()[100] != 42 {
		t.Errorf("Mem()[100] = %d, want 42", dmb.Mem()[100])
	}
	w.Release(true)
	dmb.Release(true)
	d.Close()
	for range 2 {
		if e := await(t, "PeerGone", r.gone); e.err == nil {
			t.Error("PeerGone with nil")
		}
	}
}

// A greeter sends a signal from PeerUp.
type greeter struct{ *recorder }

func (g greeter) PeerUp(p *Peer) {
	p.Send([]byte("welcome"))
	g.recorder.PeerUp(p)
}

// PeerUp comes before the first signal, even when Poll is called all the time, and the messages
// that it sends come after the Hello.
func TestPeerUpOrder(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	r := newRecorder()
	server, err := Open(Config{Dir: dir, Handler: greeter{r}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				server.Poll()
			}
		}
	})
	for i := range 100 {
		client, rc := openDevice(t, Config{Dir: dir})
		p := dialPeer(t, client, server)
		if err := p.Send([]byte("hello")); err != nil {
			t.Fatalf("Send = %v", err)
		}
		server.Poll()
		if len(r.received()) != i+1 || len(r.ups) == 0 {
			t.Fatalf("after Poll %d signals, %d peers up; want %d, 1", len(r.received()), len(r.ups), i+1)
		}
		<-r.ups
		if got := rc.next(t, 0); got != "welcome" {
			t.Errorf("signal %q, want that of PeerUp", got)
		}
		client.Close()
	}
}

func TestSignals(t *testing.T) {
	x := newPair(t)
	var want []string
	for i := range 1000 {
		s := fmt.Sprintf("signal %d", i)
		for {
			err := x.pa.Send([]byte(s))
			if err == nil {
				break
			}
			if !errors.Is(err, ErrCongested) {
				t.Fatalf("Send = %v", err)
			}
			x.b.Poll()
		}
		want = append(want, s)
	}
	x.rb.next(t, 999)
	for i, got := range x.rb.received() {
		if got != want[i] {
			t.Fatalf("signal %d = %q, want %q", i, got, want[i])
		}
	}
	if err := x.pa.Send(make([]byte, MaxSignal)); err != nil {
		t.Errorf("Send of %d bytes = %v", MaxSignal, err)
	}
	if got := x.rb.next(t, 1000); len(got) != MaxSignal {
		t.Errorf("signal of %d bytes, want %d", len(got), MaxSignal)
	}
	if err := x.pa.Send(make([]byte, MaxSignal+1)); !errors.Is(err, ErrSize) {
		t.Errorf("Send of %d bytes = %v, want ErrSize", MaxSignal+1, err)
	}
	if err := x.pb.Send(nil); err != nil {
		t.Errorf("Send(nil) = %v", err)
	}
	if got := x.ra.next(t, 0); got != "" {
		t.Errorf("signal %q, want nothing in it", got)
	}
}

// When Poll returns, every signal that was sent before it was called has been delivered, however
// the receiver's goroutine runs.
func TestPoll(t *testing.T) {
	x := newPair(t)
	for i := range 2000 {
		if err := x.pa.Send([]byte{byte(i)}); err != nil {
			t.Fatalf("Send = %v", err)
		}
		x.b.Poll()
		if got := len(x.rb.received()); got != i+1 {
			t.Fatalf("after Poll %d signals were delivered, want %d", got, i+1)
		}
	}
	x.a.Poll() // has accepted nothing
}

func TestSendAllocations(t *testing.T) {
	x := newPair(t)
	payload := make([]byte, 40)
	n := testing.AllocsPerRun(500, func() {
		for x.pa.Send(payload) != nil {
			x.b.Poll()
		}
	})
	// The receiving side runs in this process, too, and its recorder allocates; it is the only one.
	if n > 4 {
		t.Errorf("Send and delivery allocate %v times, want those of the test's handler at most", n)
	}
	fd, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := conn{sendFD: fd[0]}
	var buf [maxMessage]byte
	if n := testing.AllocsPerRun(500, func() {
		if err := c.sendSignal(payload); err != nil {
			t.Errorf("sendSignal = %v", err)
		}
		unix.Read(fd[1], buf[:])
	}); n != 0 {
		t.Errorf("Send allocates %v times, want 0", n)
	}
	closeFD(t, fd[0])
	closeFD(t, fd[1])
}

func TestPeerCloseLocal(t *testing.T) {
	x := newPair(t)
	if err := x.pa.Send([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	x.pa.Close()
	if e := await(t, "PeerGone", x.ra.gone); e.peer != x.pa || !errors.Is(e.err, net.ErrClosed) {
		t.Errorf("PeerGone(%p, %v), want %p, net.ErrClosed", e.peer, e.err, x.pa)
	}
	if e := await(t, "PeerGone", x.rb.gone); e.peer != x.pb || e.err != io.EOF {
		t.Errorf("PeerGone(%p, %v), want %p, EOF", e.peer, e.err, x.pb)
	}
	if got := x.rb.received(); len(got) != 1 || got[0] != "last words" {
		t.Errorf("before PeerGone %q was delivered, want the last words", got)
	}
	await(t, "Done", x.pa.Done())
	for _, p := range []*Peer{x.pa, x.pb} {
		if _, err := p.NewDMB(16<<10, nil); !errors.Is(err, ErrPeerGone) {
			t.Errorf("NewDMB = %v, want ErrPeerGone", err)
		}
		if _, err := p.Attach(testContext(t), 1, 16<<10); !errors.Is(err, ErrPeerGone) {
			t.Errorf("Attach = %v, want ErrPeerGone", err)
		}
		if err := p.Send(nil); !errors.Is(err, ErrPeerGone) {
			t.Errorf("Send = %v, want ErrPeerGone", err)
		}
		p.Close()
	}
	again := dialPeer(t, x.a, x.b)
	if again == x.pa {
		t.Error("Peer returned a peering that has ended")
	}
}

// A peer that dies with unread messages in its socket makes the kernel report a reset before it
// hands out the messages that the peer had sent. None of them may be lost.
func TestPeerGoneAfterEverythingDelivered(t *testing.T) {
	checkLeaks(t)
	d, r := openDevice(t, Config{Dir: t.TempDir()})
	s := dialScript(t, d)
	s.hello()
	p := await(t, "PeerUp", r.ups)
	p.conn.recvMu.Lock() // the receiver is late
	for i := range 100 {
		s.sendMessage(message{kind: kindSignal, payload: []byte{byte(i)}})
		if err := p.Send([]byte("never read")); err != nil {
			t.Fatal(err)
		}
	}
	s.close()
	p.conn.recvMu.Unlock()
	if e := await(t, "PeerGone", r.gone); e.err != io.EOF {
		t.Errorf("PeerGone(%v), want EOF", e.err)
	}
	if got := r.received(); len(got) != 100 {
		t.Errorf("%d signals before PeerGone, want 100", len(got))
	}
}

func TestPeerDead(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	d, _ := openDevice(t, Config{Dir: dir})
	if _, err := d.Peer(testContext(t), otherGID); !errors.Is(err, ErrDead) {
		t.Errorf("Peer of a GID that never was = %v, want ErrDead", err)
	}
	// A process that was killed leaves a socket that nobody listens on.
	path := filepath.Join(dir, socketsDir, otherGID.String())
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	closeFD(t, fd)
	if _, err := d.Peer(testContext(t), otherGID); !errors.Is(err, ErrDead) {
		t.Errorf("Peer of a dead socket = %v, want ErrDead", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dead socket: Lstat = %v, want that it was removed", err)
	}
	// A file that is no socket is not ours to remove.
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Peer(testContext(t), otherGID); !errors.Is(err, ErrDead) {
		t.Errorf("Peer of a plain file = %v, want ErrDead", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("plain file: Lstat = %v, want that it is still there", err)
	}
	list, _ := os.ReadDir(filepath.Join(dir, socketsDir))
	if len(list) != 2 {
		t.Errorf("%v in the directory, want the device and the file", list)
	}
	d.Close()
	if _, err := os.Lstat(filepath.Join(dir, socketsDir, d.GID().String())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: Lstat = %v, want that the socket was removed", err)
	}
	if _, err := d.Peer(testContext(t), otherGID); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Peer of a closed device = %v, want net.ErrClosed", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("second Close() = %v", err)
	}
}

// A device whose process is stopped accepts nothing: the wait ends with the context.
func TestPeerSilent(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	d, _ := openDevice(t, Config{Dir: dir})
	l := listenScript(t, dir, otherGID)
	defer l.close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		s := l.accept()
		s.recv() // the Hello, never answered
		cancel()
		s.recv() // until the device closes
		s.close()
	}()
	if _, err := d.Peer(ctx, otherGID); !errors.Is(err, context.Canceled) {
		t.Errorf("Peer of a silent device = %v, want context.Canceled", err)
	}
	d.Close()
}

// A process that connects and says nothing is thrown out, and does not delay Close.
func TestAcceptSilent(t *testing.T) {
	checkLeaks(t)
	d, _ := openDevice(t, Config{Dir: t.TempDir()})
	s := dialScript(t, d)
	defer s.close()
	if m, err := s.recv(); err != nil || m.kind != kindRefuse {
		t.Errorf("without a Hello: received %v, %v; want Refuse", m.kind, err)
	}
	s2 := dialScript(t, d)
	defer s2.close()
	d.Close()
	s2.recv()
}

// More connections without Hello than a device will have are turned away at once.
func TestAcceptFlood(t *testing.T) {
	checkLeaks(t)
	d, _ := openDevice(t, Config{Dir: t.TempDir()})
	var silent []*script
	for range maxHelloing + 10 {
		silent = append(silent, dialScript(t, d))
	}
	defer func() {
		for _, s := range silent {
			s.close()
		}
	}()
	m, err := silent[len(silent)-1].recv()
	if err != nil || m.kind != kindRefuse || m.reason != refuseLimit {
		t.Errorf("connection %d: received %+v, %v; want Refuse, limit", len(silent), m, err)
	}
	for _, s := range silent[:10] {
		s.close()
	}
	// Room again. The device may take a moment to see it.
	eventually(t, "a peering after the flood", func() bool {
		_, err := d.Peer(testContext(t), d.GID())
		return err == nil
	})
}

// Both sides end while everything is in use: nothing crashes, PeerGone comes once for each.
func TestCloseWhileInUse(t *testing.T) {
	x := newPair(t)
	var dmbs []*DMB
	var windows []*Window
	for range 50 {
		d := mustDMB(t, x.pa, 16<<10, nil)
		dmbs = append(dmbs, d, mustDMB(t, x.pa, 32<<10, nil))
		windows = append(windows, mustAttach(t, x.pb, d))
	}
	var wg sync.WaitGroup
	wg.Go(func() { x.a.Close() })
	wg.Go(func() { x.b.Close() })
	wg.Wait()
	for i, w := range windows {
		w.Mem()[HeaderLen] = byte(i)
		w.Ring()
		w.PeerReaderSleeps().Store(1)
		if got := dmbs[2*i].Mem()[HeaderLen]; got != byte(i) {
			t.Errorf("after the end Mem()[%d] = %d, want %d", HeaderLen, got, i)
		}
		w.Release(i%2 == 0)
	}
	for i, d := range dmbs {
		d.Release(i%2 == 0)
		d.Release(true) // nothing
	}
	for _, r := range []*recorder{x.ra, x.rb} {
		await(t, "PeerGone", r.gone)
		if len(r.gone) != 0 {
			t.Errorf("PeerGone was called %d times more", len(r.gone))
		}
	}
	for _, d := range []*Device{x.a, x.b} {
		if s := d.Stats(); s.DMBs != 0 || s.CachedDMBs != 0 || s.Bytes != 0 || s.Windows != 0 || s.PeersDialed != 0 || s.PeersAccepted != 0 {
			t.Errorf("at the end Stats() = %+v", s)
		}
	}
}
