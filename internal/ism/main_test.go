package ism

import (
	"context"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gosmc/smc/internal/rundir"
)

// socketsDir is the directory of the devices' sockets, in Config.Dir.
const socketsDir = rundir.ISM

// patience bounds every wait in the tests. It only passes when a test fails.
const patience = 20 * time.Second

// TestMain runs the tests, or the child process that a test has started: see child_test.go.
func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(runChild(role))
	}
	// The runtime opens its poller at first use and keeps it, which must not look like a leak.
	if d, err := Open(Config{Dir: os.TempDir()}); err == nil {
		d.Close()
	}
	goleak.VerifyTestMain(m)
}

// An event is a call of a Handler function other than PeerUp.
type event struct {
	peer    *Peer
	payload string
	err     error
}

// A recorder is a Handler that hands on each event.
type recorder struct {
	ups  chan *Peer
	gone chan event

	mu      sync.Mutex
	signals []event
	wake    chan struct{} // has an element when there is something new in signals
}

func newRecorder() *recorder {
	return &recorder{ups: make(chan *Peer, 2000), gone: make(chan event, 2000), wake: make(chan struct{}, 1)}
}

func (r *recorder) PeerUp(p *Peer) { r.ups <- p }

func (r *recorder) Signal(p *Peer, payload []byte) {
	r.mu.Lock()
	r.signals = append(r.signals, event{peer: p, payload: string(payload)})
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *recorder) PeerGone(p *Peer, err error) { r.gone <- event{peer: p, err: err} }

// received returns the payloads of all signals so far.
func (r *recorder) received() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s []string
	for _, e := range r.signals {
		s = append(s, e.payload)
	}
	return s
}

// next waits for the signal with this index.
func (r *recorder) next(t testing.TB, i int) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		if s := r.received(); len(s) > i {
			return s[i]
		}
		select {
		case <-r.wake:
		case <-deadline:
			t.Fatalf("signal %d did not come", i)
		}
	}
}

// await receives from a channel.
func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// checkLeaks makes the test fail if at its end there are more descriptors or mappings than now.
func checkLeaks(t testing.TB) {
	t.Helper()
	fds, maps := countFDs(t), countMaps(t)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		deadline := time.Now().Add(patience)
		for countFDs(t) > fds || countMaps(t) > maps {
			if time.Now().After(deadline) {
				t.Errorf("at the end %d descriptors, %d mappings; %d, %d at the start", countFDs(t), countMaps(t), fds, maps)
				return
			}
			runtime.Gosched()
		}
	})
}

func countFDs(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func countMaps(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "/memfd:")
}

// openDevice opens a device that is closed at the end of the test.
func openDevice(t testing.TB, config Config) (*Device, *recorder) {
	t.Helper()
	r := newRecorder()
	config.Handler = r
	d, err := Open(config)
	if err != nil {
		t.Fatalf("Open(%+v) = %v", config, err)
	}
	t.Cleanup(func() { d.Close() })
	return d, r
}

// A pair is two devices with a peering between them: one has dialled, the other has accepted.
type pair struct {
	a, b   *Device
	ra, rb *recorder
	pa, pb *Peer
}

func newPair(t testing.TB) *pair {
	t.Helper()
	checkLeaks(t)
	dir := t.TempDir()
	var x pair
	x.a, x.ra = openDevice(t, Config{Dir: dir})
	x.b, x.rb = openDevice(t, Config{Dir: dir})
	x.pa = dialPeer(t, x.a, x.b)
	x.pb = await(t, "PeerUp", x.rb.ups)
	return &x
}

func dialPeer(t testing.TB, from, to *Device) *Peer {
	t.Helper()
	p, err := from.Peer(testContext(t), to.GID())
	if err != nil {
		t.Fatalf("Peer(%v) = %v", to.GID(), err)
	}
	return p
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// mustDMB makes a DMB of p.
func mustDMB(t testing.TB, p *Peer, size int, ring func()) *DMB {
	t.Helper()
	d, err := p.NewDMB(size, ring)
	if err != nil {
		t.Fatalf("NewDMB(%d) = %v", size, err)
	}
	return d
}

// mustAttach attaches d, which the other side of p owns.
func mustAttach(t testing.TB, p *Peer, d *DMB) *Window {
	t.Helper()
	w, err := p.Attach(testContext(t), d.Token(), len(d.Mem()))
	if err != nil {
		t.Fatalf("Attach(%v) = %v", d.Token(), err)
	}
	return w
}
