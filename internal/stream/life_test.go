package stream

import (
	"bytes"
	"errors"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire/cdc"
)

// writeOps are all ways to write b.
func writeOps(c *Conn) iter.Seq2[string, func(b []byte) (int64, error)] {
	return func(yield func(string, func(b []byte) (int64, error)) bool) {
		_ = yield("Write", func(b []byte) (int64, error) { n, err := c.Write(b); return int64(n), err }) &&
			yield("WriteBuffers", func(b []byte) (int64, error) { return c.WriteBuffers([][]byte{b}) }) &&
			yield("WriteBuffers of two", func(b []byte) (int64, error) { return c.WriteBuffers([][]byte{b, b}) }) &&
			yield("ReadFrom", func(b []byte) (int64, error) { return c.ReadFrom(bytes.NewBuffer(b)) })
	}
}

// Half close: the other direction goes on.
func TestHalfClose(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 100, 0)
	a.Write([]byte("last"))
	if err := a.CloseWrite(); err != nil {
		t.Fatalf("CloseWrite = %v", err)
	}
	a.SendFlags(cdc.DoneWriting)
	for name, op := range writeOps(a) {
		if n, err := op([]byte("x")); n != 0 || err != syscall.EPIPE {
			t.Errorf("%s after CloseWrite = %d, %v, want 0, EPIPE", name, n, err)
		}
	}
	if got, err := io.ReadAll(b); string(got) != "last" || err != nil {
		t.Errorf("ReadAll = %q, %v, want last", got, err)
	}
	for range 3 {
		b.Write([]byte("answer"))
		buf := make([]byte, 6)
		if n, err := io.ReadFull(a, buf); err != nil || string(buf) != "answer" {
			t.Errorf("Read of the answer = %d, %v", n, err)
		}
	}
	b.Write([]byte("unread"))
	if err := a.CloseRead(); err != nil {
		t.Fatalf("CloseRead = %v", err)
	}
	if n, err := a.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read after CloseRead = %d, %v, want EOF", n, err)
	}
	if n, err := b.Write([]byte("more")); n != 4 || err != nil {
		t.Errorf("peer's Write after CloseRead = %d, %v", n, err)
	}
	if unread := a.Close(); unread != 10 {
		t.Errorf("Close = %d, want 10 bytes unread", unread)
	}
	for name, err := range map[string]error{"CloseRead": a.CloseRead(), "CloseWrite": a.CloseWrite()} {
		if err != net.ErrClosed {
			t.Errorf("%s after Close = %v, want %v", name, err, net.ErrClosed)
		}
	}
}

// A peer that closes while a write waits for room resets the connection for the writer: not all
// that was written has been sent. The peer's earlier bytes end with EOF all the same.
func TestClosedInWrite(t *testing.T) {
	watchdog(t)
	p := newPuppet(64, 100)
	p.conn.SetWriteDeadline(time.Now().Add(time.Hour))
	type result struct {
		n   int
		err error
	}
	done := make(chan result)
	go func() {
		n, err := p.conn.Write(make([]byte, 101))
		done <- result{n, err}
	}()
	p.asleep(t, 1)
	if p.conn.Unsent() {
		t.Error("Unsent = true while the peer has not closed")
	}
	p.consume(cdc.Cursor{}, 0, cdc.Closed)
	p.conn.Wake()
	if r := <-done; r.n != 100 || r.err != syscall.ECONNRESET || !p.conn.Unsent() {
		t.Errorf("Write = %d, %v with Unsent %t, want 100, ECONNRESET, true", r.n, r.err, p.conn.Unsent())
	}
	if n, err := p.conn.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read = %d, %v, want EOF", n, err)
	}

	p = newPuppet(64, 100)
	go func() {
		n, err := p.conn.Write(make([]byte, 101))
		done <- result{n, err}
	}()
	p.asleep(t, 1)
	p.consume(at(20, 100), 0, 0)
	p.conn.Wake()
	if r := <-done; r.n != 101 || r.err != nil { // with the flag WriterBlocked still set
		t.Errorf("Write = %d, %v, want 101", r.n, r.err)
	}
	p.consume(cdc.Cursor{}, 0, cdc.Closed)
	if n, err := p.conn.Write([]byte("x")); n != 1 || err != nil || p.conn.Unsent() {
		t.Errorf("Write after the close = %d, %v with Unsent %t, want it taken, and false", n, err, p.conn.Unsent())
	}
}

// The peer's flags end reading only after the last byte, and writing as they say.
func TestPeerFlags(t *testing.T) {
	for _, tt := range []struct {
		flags  cdc.ConnFlags
		reader error // after the data
		writer error
	}{
		{0, os.ErrDeadlineExceeded, nil},
		{cdc.DoneWriting, io.EOF, nil},
		{cdc.Closed, io.EOF, syscall.EPIPE},
		{cdc.DoneWriting | cdc.Closed, io.EOF, syscall.EPIPE},
		{cdc.Abort, syscall.ECONNRESET, syscall.ECONNRESET},
		{cdc.DoneWriting | cdc.Abort, io.EOF, syscall.ECONNRESET},
		{cdc.Closed | cdc.Abort, syscall.ECONNRESET, syscall.ECONNRESET},
		{cdc.DoneWriting | cdc.Closed | cdc.Abort, io.EOF, syscall.ECONNRESET},
	} {
		p := newPuppet(64, 1000)
		copy(p.element[0][cdc.HeaderLen:], "abc")
		p.produce(at(3, 64))
		p.consume(cdc.Cursor{}, 0, tt.flags)
		if got := p.conn.PeerFlags(); got != tt.flags {
			t.Errorf("PeerFlags = %v, want %v", got, tt.flags)
		}
		buf := make([]byte, 2)
		for _, want := range []string{"ab", "c"} {
			if n, err := p.conn.Read(buf); string(buf[:n]) != want || err != nil {
				t.Errorf("flags %v: Read = %q, %v, want %q", tt.flags, buf[:n], err, want)
			}
		}
		if tt.writer == syscall.EPIPE { // which comes after one more
			if n, err := p.conn.Write([]byte("x")); n != 1 || err != nil {
				t.Errorf("flags %v: first Write = %d, %v, want it taken", tt.flags, n, err)
			}
		}
		for name, op := range writeOps(p.conn) {
			if _, err := op([]byte("x")); err != tt.writer {
				t.Errorf("flags %v: %s = %v, want %v", tt.flags, name, err, tt.writer)
			}
		}
		if got := p.noticed(); (len(got) > 0) != (tt.writer != nil) {
			t.Errorf("flags %v: notices after writing = %v", tt.flags, got)
		}
		before := len(p.noticed())
		expireWhenIdle(p.conn)
		if n, err := p.conn.Read(buf); n != 0 || err != tt.reader {
			t.Errorf("flags %v: Read at the end = %d, %v, want %v", tt.flags, n, err, tt.reader)
		}
		got := p.noticed()[before:]
		if tt.flags == 0 && len(got) != 0 || tt.flags != 0 && (len(got) != 1 || got[0] != notice{tt.flags, nil}) {
			t.Errorf("flags %v: notices after reading = %v, want the flags", tt.flags, got)
		}
	}
}

// A last byte that comes together with DoneWriting is not taken for the end, however the
// loads of the reader fall between the stores of the peer.
func TestEndAfterData(t *testing.T) {
	watchdog(t)
	const capacity = 64
	rounds := uint64(300_000)
	if raceEnabled {
		rounds = 30_000
	}
	p := newPuppet(capacity, 64)
	random := newRandom(t)
	var begun, done atomic.Uint64
	seed := random.Uint32() | 1
	go func() {
		for round := uint64(1); round <= rounds; round++ {
			for begun.Load() < round {
				runtime.Gosched()
			}
			seed = seed*1664525 + 1013904223
			pause(seed >> 28)
			p.produce(at(round, capacity))
			p.consume(cdc.Cursor{}, 0, cdc.DoneWriting)
			p.conn.Wake()
			done.Store(round)
		}
	}()
	defer begun.Store(rounds) // lets the peer end after a failure
	buf := make([]byte, 2)
	for round := uint64(1); round <= rounds; round++ {
		begun.Store(round)
		pause(random.Uint32() >> 28)
		n, err := p.conn.Read(buf)
		if n != 1 || err != nil {
			t.Fatalf("Read in round %d = %d, %v, want 1 byte", round, n, err)
		}
		for done.Load() < round {
			runtime.Gosched()
		}
		p.consume(cdc.Cursor{}, 0, 0) // the next round's reader starts without the flag
	}
}

// expireWhenIdle makes the deadlines of c pass as soon as it would wait.
func expireWhenIdle(c *Conn) {
	for _, half := range []struct {
		w     *waiter
		state *atomic.Uint32
	}{{&c.r.waiter, &c.r.state}, {&c.w.waiter, &c.w.state}} {
		ready := half.w.ready
		half.w.ready = func() bool {
			if !ready() {
				half.state.Or(stExpired)
			}
			return true
		}
	}
}

// A failure ends writing at once, and reading after the bytes that have come. The first one counts.
func TestFail(t *testing.T) {
	p := newPuppet(64, 64)
	copy(p.element[0][cdc.HeaderLen:], "abc")
	p.produce(at(3, 64))
	p.conn.Fail(errFailed)
	p.conn.Fail(errTest)
	for name, op := range writeOps(p.conn) {
		if n, err := op([]byte("x")); n != 0 || err != errFailed {
			t.Errorf("%s after Fail = %d, %v, want %v", name, n, err, errFailed)
		}
	}
	buf := make([]byte, 2)
	for _, want := range []struct {
		data string
		err  error
	}{{"ab", nil}, {"c", nil}, {"", errFailed}, {"", errFailed}} {
		if n, err := p.conn.Read(buf); string(buf[:n]) != want.data || err != want.err {
			t.Errorf("Read after Fail = %q, %v, want %q, %v", buf[:n], err, want.data, want.err)
		}
	}
	p.conn.SetReadDeadline(time.Unix(1, 0))
	if _, err := p.conn.Read(buf); err != os.ErrDeadlineExceeded {
		t.Errorf("Read after Fail and deadline = %v, want the deadline's", err)
	}
	p.conn.Close()
	if _, err := p.conn.Read(buf); err != net.ErrClosed {
		t.Errorf("Read after Fail and Close = %v, want %v", err, net.ErrClosed)
	}
}

// After Detach nothing of the peer's is touched; the bytes that have come can be read.
func TestDetach(t *testing.T) {
	watchdog(t)
	p := newPuppet(1000, 64)
	p.produce(at(800, 1000))
	p.conn.Write(make([]byte, 64))
	waiting := start(p.conn.Write, make([]byte, 1))
	p.asleep(t, 1)
	p.conn.Detach()
	if got := <-waiting; got.n != 0 || got.err != syscall.ECONNRESET {
		t.Errorf("Write while Detach = %d, %v, want ECONNRESET", got.n, got.err)
	}
	before := bytes.Clone(p.element[1])
	p.sleeps[1][0].Store(1)
	p.sleeps[1][1].Store(1)
	p.conn.SendFlags(cdc.Closed)
	for name, op := range writeOps(p.conn) {
		if n, err := op([]byte("x")); n != 0 || err != syscall.ECONNRESET {
			t.Errorf("%s after Detach = %d, %v, want ECONNRESET", name, n, err)
		}
	}
	if n, err := p.conn.Read(make([]byte, 900)); n != 800 || err != nil {
		t.Errorf("Read after Detach = %d, %v, want 800", n, err)
	}
	p.conn.SayRead()
	p.conn.Detach()
	p.conn.Close()
	if !bytes.Equal(before, p.element[1]) {
		t.Error("the peer's element has changed after Detach")
	}
	if p.sleeps[1][0].Load() != 1 || p.sleeps[1][1].Load() != 1 || p.ringCount() != 0 {
		t.Error("the peer's sleep words were touched, or it was rung, after Detach")
	}
}

// Detach waits for a write under way: once it returns, not a byte is written.
func TestDetachDuringWrite(t *testing.T) {
	watchdog(t)
	for range 300 {
		a, b := newPair(t, 10_000, 0)
		writing := start(func(buf []byte) (int, error) {
			for {
				if n, err := a.Write(buf); err != nil {
					return n, err
				}
			}
		}, make([]byte, 100_000))
		reading := start(func(buf []byte) (int, error) {
			for {
				if n, err := b.Read(buf); err != nil {
					return n, err
				}
			}
		}, make([]byte, 1000))
		eventually(t, "a byte", func() bool { _, written := a.Totals(); return written > 0 })
		a.Detach()
		cursor := a.OwnHeader().Producer
		if got := <-writing; got.err != syscall.ECONNRESET {
			t.Fatalf("Write = %v, want ECONNRESET", got.err)
		}
		if a.OwnHeader().Producer != cursor {
			t.Fatal("the producer cursor has changed after Detach")
		}
		b.Close()
		<-reading
	}
}

// SendFlags adds to the published flags, and wakes both of the peer's halves.
func TestSendFlags(t *testing.T) {
	p := newPuppet(1000, 64)
	p.produce(at(800, 1000))
	p.conn.Read(make([]byte, 800))
	p.sleeps[1][0].Store(1)
	p.sleeps[1][1].Store(1)
	p.conn.SendFlags(cdc.DoneWriting)
	p.conn.SendFlags(cdc.Closed)
	cursor, _, flags := p.consumed()
	if flags != cdc.DoneWriting|cdc.Closed || cursor != at(800, 1000) {
		t.Errorf("published = %v, %v, want %v, D and C", cursor, flags, at(800, 1000))
	}
	if n := p.ringCount(); n != 2 {
		t.Errorf("rings = %d, want 2", n)
	}
}

// mapped is memory that faults when it is touched after forbid.
func mapped(tb testing.TB, size int) (b []byte, forbid func()) {
	tb.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Munmap(b) })
	return b, func() {
		if err := unix.Mprotect(b, unix.PROT_NONE); err != nil {
			tb.Fatal(err)
		}
	}
}

// newFaulty is a Conn over memory that can be forbidden, with a file to read from.
func newFaulty(t *testing.T) (c *Conn, forbidLocal, forbidRemote func(), file *os.File) {
	t.Helper()
	const size = 16 << 10
	local, forbidLocal := mapped(t, 2*size)
	remote, forbidRemote := mapped(t, 2*size)
	flag := func(page []byte, i int) *atomic.Uint32 {
		return (*atomic.Uint32)(unsafe.Pointer(&page[size+128*i]))
	}
	c = New(Config{
		In:           ElementInbox(local[:size]),
		Out:          NewMemory(remote[:size], flag(remote, 0), flag(remote, 1), func() {}),
		ReaderSleeps: flag(local, 0), WriterSleeps: flag(local, 1),
	})
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return c, forbidLocal, forbidRemote, file
}

// After Close only the operations that its comment names may touch the memory, which may be gone.
func TestClosedTouchesNothing(t *testing.T) {
	watchdog(t)
	c, forbidLocal, forbidRemote, file := newFaulty(t)
	c.Write(make([]byte, 5000))
	c.inProd.Store(cdc.PackProducer(at(300, len(c.rdata))))
	c.Read(make([]byte, 100))
	c.SetReadDeadline(time.Now().Add(time.Hour))
	if unread := c.Close(); unread != 200 {
		t.Errorf("Close = %d, want 200 bytes unread", unread)
	}
	c.Detach()
	forbidLocal()
	forbidRemote()

	buf := make([]byte, 10)
	closed := map[string]func() error{
		"Read":                   func() error { _, err := c.Read(buf); return err },
		"Read of nothing":        func() error { _, err := c.Read(nil); return err },
		"Write of nothing":       func() error { _, err := c.Write(nil); return err },
		"Write of much":          func() error { _, err := c.Write(make([]byte, 1<<20)); return err },
		"WriteTo":                func() error { _, err := c.WriteTo(io.Discard); return err },
		"ReadFrom a file":        func() error { _, err := c.ReadFrom(file); return err },
		"WriteBuffers of none":   func() error { _, err := c.WriteBuffers(nil); return err },
		"WriteBuffers, an empty": func() error { _, err := c.WriteBuffers([][]byte{nil}); return err },
		"CloseRead":              c.CloseRead,
		"CloseWrite":             c.CloseWrite,
		"SetReadDeadline":        func() error { return c.SetReadDeadline(time.Now()) },
		"SetWriteDeadline":       func() error { return c.SetWriteDeadline(time.Now()) },
	}
	for name, op := range writeOps(c) {
		closed[name] = func() error { _, err := op(buf); return err }
	}
	for name, op := range closed {
		if err := faultless(op); err != net.ErrClosed {
			t.Errorf("%s after Close = %v, want %v", name, err, net.ErrClosed)
		}
	}
	for name, op := range map[string]func(){
		"SendFlags":   func() { c.SendFlags(cdc.Closed) }, // we are detached
		"SayRead":     c.SayRead,
		"Idle":        func() { c.Idle() },
		"ReturnPages": func() { c.ReturnPages(func(int, int) error { return errors.New("pages given") }) },
		"Wake":        func() { c.Wake() },
		"Fail":        func() { c.Fail(errTest) },
		"Detach":      c.Detach,
		"Totals":      func() { c.Totals() },
		"Buffers":     func() { c.Buffers() },
	} {
		if err := faultless(func() error { op(); return nil }); err != nil {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if err := c.ReturnPages(func(int, int) error { return errTest }); err != nil {
		t.Errorf("ReturnPages after Close = %v, want nothing given", err)
	}
	// That the test can fail:
	if err := faultless(func() error { c.PeerFlags(); return nil }); err == nil {
		t.Error("a read of forbidden memory was not noticed")
	}
}

// faultless runs op and returns its error, or the fault if it touched forbidden memory.
func faultless(op func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fault.(error)
		}
	}()
	return op()
}

// After Detach the peer's memory may be gone, while ours is still read.
func TestDetachedTouchesNothing(t *testing.T) {
	watchdog(t)
	c, _, forbidRemote, file := newFaulty(t)
	c.inProd.Store(cdc.PackProducer(at(12_000, len(c.rdata))))
	c.Detach()
	forbidRemote()
	expireWhenIdle(c)
	for name, op := range map[string]func(){
		"Read": func() {
			if n, err := io.ReadFull(c, make([]byte, 12_000)); err != nil {
				t.Errorf("ReadFull = %d, %v", n, err)
			}
		},
		"SayRead":         c.SayRead,
		"ReadFrom a file": func() { c.ReadFrom(file) },
		"SendFlags":       func() { c.SendFlags(cdc.Abort) },
		"Queues":          func() { c.Queues() },
		"PeerFlags":       func() { c.PeerFlags() },
		"CloseWrite":      func() { c.CloseWrite() },
		"WriteBuffers":    func() { c.WriteBuffers(nil) },
		"Fail":            func() { c.Fail(errTest) },
	} {
		if err := faultless(func() error { op(); return nil }); err != nil {
			t.Errorf("%s after Detach: %v", name, err)
		}
	}
	for name, op := range writeOps(c) {
		if err := faultless(func() error { _, err := op([]byte("x")); return err }); err == nil || errors.As(err, new(interface{ Addr() uintptr })) {
			t.Errorf("%s after Detach: %v", name, err)
		}
	}
	if err := faultless(func() error { c.Read(make([]byte, 1)); c.Close(); return nil }); err != nil {
		t.Errorf("Read and Close after Detach: %v", err)
	}
}
