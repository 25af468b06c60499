package stream

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gosmc/smc/wire/cdc"
)

// patience bounds every wait in the tests. It only passes when a test fails.
const patience = 40 * time.Second

// seedFlag replays a random test: go test -run TestTransfer -stream.seed=N.
var seedFlag = flag.Uint64("stream.seed", 0, "seed of random tests; 0 means a new one")

// TestMain runs the tests, or the child process of TestTwoProcesses.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(runChild())
	}
	goleak.VerifyTestMain(m)
}

// newRandom returns a random source whose seed is printed if the test fails.
func newRandom(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("replay with -run '^%s$' -stream.seed=%d", tb.Name(), seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// watchdog ends the process with the stacks of all goroutines if the test hangs.
func watchdog(tb testing.TB) {
	tb.Helper()
	name := tb.Name()
	timer := time.AfterFunc(patience, func() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		fmt.Fprintf(os.Stderr, "%s hangs; goroutines:\n%s\n", name, stacks)
		os.Exit(2)
	})
	tb.Cleanup(func() { timer.Stop() })
}

// eventually waits for a condition that other goroutines bring about.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			tb.Fatalf("never came: %s", what)
		}
	}
}

// withProcessors runs f with GOMAXPROCS n.
func withProcessors(n int, f func()) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
	f()
}

// A result holds the values that Read or Write returned in another goroutine.
type result struct {
	n   int
	err error
}

// start runs op in a goroutine and returns where its result will be.
func start(op func([]byte) (int, error), b []byte) <-chan result {
	c := make(chan result, 1)
	go func() {
		n, err := op(b)
		c <- result{n, err}
	}()
	return c
}

// A puppet is a Conn whose peer is played by the test: it writes and reads the shared words.
type puppet struct {
	*memory
	conn  *Conn
	stats Stats

	mu      sync.Mutex
	rings   int
	dirty   int
	notices []notice
}

type notice struct {
	flags cdc.ConnFlags
	err   error
}

// newPuppet returns a Conn that never spins, over rings of these capacities.
func newPuppet(localCapacity, remoteCapacity int) *puppet {
	p := &puppet{memory: newMemory(localCapacity+cdc.HeaderLen, remoteCapacity+cdc.HeaderLen)}
	p.conn = New(p.puppetConfig(p.countRing))
	return p
}

func (p *puppet) countRing() {
	p.mu.Lock()
	p.rings++
	p.mu.Unlock()
}

func (p *puppet) puppetConfig(ring func()) Config {
	cfg := p.config(0, ring)
	if joined != byMemory {
		cfg.Out = p.sendByMessages()
	}
	cfg.Spin = 0
	cfg.Stats = &p.stats
	cfg.Dirty = func() {
		p.mu.Lock()
		p.dirty++
		p.mu.Unlock()
	}
	cfg.Notice = func(flags cdc.ConnFlags, err error) {
		p.mu.Lock()
		p.notices = append(p.notices, notice{flags, err})
		p.mu.Unlock()
	}
	return cfg
}

// produce stores the peer's producer cursor.
func (p *puppet) produce(c cdc.Cursor) {
	word(p.element[0], cdc.ProducerOffset).Store(cdc.PackProducer(c))
}

// consume stores the peer's consumer cursor and flags.
func (p *puppet) consume(c cdc.Cursor, prod cdc.ProducerFlags, conn cdc.ConnFlags) {
	word(p.element[0], cdc.ConsumerOffset).Store(cdc.PackConsumer(c, prod, conn))
}

// produced is the producer cursor that the Conn has published.
func (p *puppet) produced() cdc.Cursor {
	return cdc.UnpackProducer(word(p.element[1], cdc.ProducerOffset).Load())
}

// consumed is the consumer half that the Conn has published.
func (p *puppet) consumed() (cdc.Cursor, cdc.ProducerFlags, cdc.ConnFlags) {
	return cdc.UnpackConsumer(word(p.element[1], cdc.ConsumerOffset).Load())
}

// ringCount is how often the Conn has rung the peer.
func (p *puppet) ringCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rings
}

// noticed returns the notices so far.
func (p *puppet) noticed() []notice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]notice(nil), p.notices...)
}

// asleep waits until n waits of the Conn have ended in parking.
func (p *puppet) asleep(tb testing.TB, n uint64) {
	tb.Helper()
	eventually(tb, fmt.Sprintf("sleep %d", n), func() bool { return p.stats.Sleeps.Load() >= n })
}

// pattern is the byte at this place of a stream. It differs between laps of any ring.
func pattern(place uint64) byte {
	return byte(place) ^ byte(place>>8)*7 ^ byte(place>>16)*31 ^ byte(place>>24)
}

// fillPattern makes b the bytes of a stream from place on.
func fillPattern(b []byte, place uint64) {
	for i := range b {
		b[i] = pattern(place + uint64(i))
	}
}

// checkPattern returns an error if b differs from the bytes of the stream from place on.
func checkPattern(b []byte, place uint64) error {
	for i := range b {
		if want := pattern(place + uint64(i)); b[i] != want {
			return fmt.Errorf("byte %d is %#02x, want %#02x", place+uint64(i), b[i], want)
		}
	}
	return nil
}

// spinNow makes the next waits of c begin with a spin. A new Conn parks at first.
func spinNow(c *Conn) {
	c.r.spinner.credit, c.w.spinner.credit = spinCredit, spinCredit
}
