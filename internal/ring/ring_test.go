package ring

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

// TestStreams sends more than a ring has, in both directions at once, in writes and reads of random sizes:
// it goes in-band first, then round the ring many times.
func TestStreams(t *testing.T) {
	forms(t, func(t *testing.T, how form) {
		smctest.CheckLeaks(t)
		var joined atomic.Int32 // directions: a reader that is always behind keeps one in-band
		defer func() {
			if joined.Load() == 0 {
				t.Error("no direction has gone over to its ring")
			}
		}()
		for seed := range uint64(4) {
			a, b := newEnds(t, how)
			var all sync.WaitGroup
			for i, ends := range [][2]*End{{a, b}, {b, a}} {
				const total = 5 << 20
				sent := make([]byte, total)
				smctest.Pattern(sent, seed+uint64(i))
				most := []int{100, 5000, 300 << 10, 20 << 10}[(int(seed)+i)%4]
				all.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					for left := sent; len(left) > 0; {
						n := min(1+r.IntN(most), len(left))
						if did, err := ends[0].Write(left[:n]); err != nil || did != n {
							t.Errorf("seed %d: Write = %d, %v; want %d", seed, did, err, n)
							return
						}
						left = left[n:]
					}
					if ends[0].out.state == stateJoined {
						joined.Add(1)
					}
					ends[0].CloseWrite()
				})
				all.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(10+i)))
					var got []byte
					buf := make([]byte, most*2)
					for {
						n, err := ends[1].Read(buf[:1+r.IntN(len(buf))])
						got = append(got, buf[:n]...)
						if err == io.EOF {
							break
						}
						if err != nil {
							t.Errorf("seed %d: Read: %v", seed, err)
							return
						}
					}
					if !bytes.Equal(got, sent) {
						t.Errorf("seed %d: %d bytes have come, others than the %d that were sent", seed, len(got), total)
					}
				})
			}
			all.Wait()
			a.Close()
			b.Close()
		}
		if n := mappedBytes.Load(); n != 0 {
			t.Errorf("%d bytes of rings are mapped when all ends are closed", n)
		}
	})
}

// TestTurns has requests and answers join rings, and a sleeping reader be woken.
func TestTurns(t *testing.T) {
	forms(t, func(t *testing.T, how form) {
		a, b := newEnds(t, how)
		done := make(chan error, 1)
		const count = 3000
		go func() {
			var buf [64]byte
			for range count {
				if _, err := io.ReadFull(b, buf[:]); err != nil {
					done <- err
					return
				}
				if _, err := b.Write(buf[:]); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		var sent, got [64]byte
		for i := range count {
			smctest.Pattern(sent[:], uint64(i))
			if _, err := a.Write(sent[:]); err != nil {
				t.Fatal(err)
			}
			if i%500 == 0 {
				time.Sleep(2 * spinTime) // the other end sleeps by then, or is about to
			}
			if _, err := io.ReadFull(a, got[:]); err != nil {
				t.Fatal(err)
			}
			if got != sent {
				t.Fatalf("turn %d: other bytes come back", i)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for _, s := range []state{a.out.state, a.in.state, b.out.state, b.in.state} {
			if s != stateJoined {
				t.Errorf("after %d turns a direction is in state %d", count, s)
			}
		}
	})
}

// TestFull has a writer wait for room until its reader makes some, and end by its deadline before.
func TestFull(t *testing.T) {
	forms(t, func(t *testing.T, how form) {
		a, b := newEnds(t, how)
		joins(t, a, b)
		sent := make([]byte, 3*makeBytes+12345)
		smctest.Pattern(sent, 1)
		a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		n, err := a.Write(sent)
		if n != makeBytes || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Write into a ring of %d bytes = %d, %v; want a timeout", makeBytes, n, err)
		}
		a.SetWriteDeadline(time.Now().Add(waitMost))
		wrote := make(chan error, 1)
		go func() {
			_, err := a.Write(sent[n:])
			wrote <- err
		}()
		got := make([]byte, len(sent))
		for at := 0; at < len(got); {
			did, err := b.Read(got[at:min(at+3000, len(got))])
			if err != nil {
				t.Fatalf("Read after %d bytes: %v", at, err)
			}
			at += did
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, sent) {
			t.Error("other bytes have come than were sent")
		}
	})
}

// TestDeadlines has reads and writes of a joined direction end by deadlines, also where bytes are there.
func TestDeadlines(t *testing.T) {
	a, b := newEnds(t, marks)
	joins(t, a, b)
	var buf [10]byte
	b.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if n, err := b.Read(buf[:]); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read of an empty ring = %d, %v; want a timeout", n, err)
	}
	if _, err := a.Write(buf[:]); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Read(buf[:]); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read after the deadline = %d, %v; want a timeout", n, err)
	}
	b.SetReadDeadline(time.Time{})
	if n, err := b.Read(buf[:]); n != len(buf) || err != nil {
		t.Errorf("Read without a deadline = %d, %v", n, err)
	}
	a.SetWriteDeadline(time.Now().Add(-time.Second))
	if n, err := a.Write(buf[:]); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write after the deadline = %d, %v; want a timeout", n, err)
	}
}

// TestClose has an end closed while calls of it wait, and its peer read what was written before.
func TestClose(t *testing.T) {
	forms(t, func(t *testing.T, how form) {
		smctest.CheckLeaks(t)
		a, b := newEnds(t, how)
		joins(t, a, b)
		joins(t, b, a)
		failed := make(chan error, 2)
		go func() {
			_, err := a.Read(make([]byte, 1))
			failed <- err
		}()
		go func() {
			_, err := a.Write(make([]byte, 2*makeBytes))
			failed <- err
		}()
		for a.out.ring.wanted().Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		a.Close()
		for range 2 {
			if err := <-failed; !errors.Is(err, net.ErrClosed) {
				t.Errorf("a call of an end that is closed: %v, want %v", err, net.ErrClosed)
			}
		}
		got, err := io.ReadAll(b)
		if len(got) != makeBytes || err != nil {
			t.Errorf("its peer reads %d bytes, %v; want %d", len(got), err, makeBytes)
		}
		smctest.Eventually(t, waitMost, "its peer cannot write", func() bool { // as with TCP, a moment later
			_, err := b.Write(make([]byte, 100))
			return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
		})
	})
}

// TestCloseTidy has a reader close an end whose bytes it has all read: the peer sees an end of file, and no
// reset. With bytes unread it sees a reset.
func TestCloseTidy(t *testing.T) {
	for _, unread := range []bool{false, true} {
		a, b := newEnds(t, marks)
		joins(t, a, b)
		// A reader that has slept has armed: the next bytes come with a token, which stays.
		b.SetReadDeadline(time.Now().Add(time.Millisecond))
		b.Read(make([]byte, 1))
		b.SetReadDeadline(time.Time{})
		if _, err := a.Write(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if !unread {
			if _, err := io.ReadFull(b, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
		}
		b.Close()
		_, err := a.Read(make([]byte, 1))
		if want := map[bool]error{false: io.EOF, true: syscall.ECONNRESET}[unread]; !errors.Is(err, want) {
			t.Errorf("unread %v: the peer reads %v, want %v", unread, err, want)
		}
	}
}

// TestLeave has a writer leave its ring with bytes in it, with tokens on the way: the bytes behind these are
// in-band.
func TestLeave(t *testing.T) {
	forms(t, func(t *testing.T, how form) {
		a, b := newEnds(t, how)
		joins(t, a, b)
		sent := make([]byte, 1000)
		smctest.Pattern(sent, 3)
		if _, err := a.Write(sent[:500]); err != nil {
			t.Fatal(err)
		}
		if err := a.LeaveOut(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Write(sent[500:]); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("across the end of a ring other bytes come than were sent, %v", err)
		}
		if a.out.state != stateNone || b.in.state != stateNone {
			t.Errorf("the writer is in state %d, the reader in %d", a.out.state, b.in.state)
		}
	})
}

// TestCloseRead has a reader that wants no more get the bytes of its ring, and its writer an error.
func TestCloseRead(t *testing.T) {
	a, b := newEnds(t, marks)
	joins(t, a, b)
	if _, err := a.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := b.CloseRead(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(b); string(got) != "last" || err != nil {
		t.Errorf("the reader gets %q, %v", got, err)
	}
	if _, err := a.Write(make([]byte, 100)); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("its writer: %v, want %v", err, syscall.EPIPE)
	}
}

// TestWriterPeerGone has a peer end without having read all, in a ring that is not armed: the writer hears of
// it soon though it sends no token.
func TestWriterPeerGone(t *testing.T) {
	a, raw := newPair(t)
	e := New(a, -1, true)
	defer e.Close()
	p := &peer{t: t, end: e, socket: raw}
	p.attach(e)
	e.out.ring.pub().And(^uint64(pubArmed)) // as a reader that has bytes to read
	raw.Close()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		_, err := e.Write([]byte("x"))
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			break
		}
		if err != nil || time.Since(begin) > waitMost {
			t.Fatalf("writes to a peer that has gone: %v", err)
		}
	}
}

// TestGift has bytes on the way when a ring from the beginning could be joined: no byte is taken for a token.
func TestGift(t *testing.T) {
	a, b := newEnds(t, gifts)
	sent := make([]byte, 1<<20)
	smctest.Pattern(sent, 5)
	wrote := make(chan error, 1)
	go func() {
		for left := sent; len(left) > 0; {
			n := min(1000, len(left))
			if _, err := a.Write(left[:n]); err != nil {
				wrote <- err
				return
			}
			left = left[n:]
		}
		wrote <- nil
	}()
	var got []byte
	buf := make([]byte, 700)
	for len(got) < len(sent) {
		if len(got) < 600<<10 && len(got)%50 == 0 {
			time.Sleep(20 * time.Microsecond) // the writer is ahead
		}
		n, err := b.Read(buf)
		if err != nil {
			t.Fatalf("after %d bytes: %v", len(got), err)
		}
		got = append(got, buf[:n]...)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Error("other bytes have come than were sent")
	}
}

// TestGiftUnread has a reader that always has bytes in its socket: the writer does not switch before they are
// read, as they would be taken for tokens.
func TestGiftUnread(t *testing.T) {
	const step = 1000
	a, b := newEnds(t, gifts)
	sent := make([]byte, 1<<20)
	smctest.Pattern(sent, 6)
	n, got := 0, make([]byte, 0, len(sent))
	write := func() {
		t.Helper()
		if _, err := a.Write(sent[n : n+step]); err != nil {
			t.Fatal(err)
		}
		n += step
	}
	read := func(size int) {
		t.Helper()
		if _, err := io.ReadFull(b, got[len(got):len(got)+size]); err != nil {
			t.Fatalf("after %d bytes: %v", len(got), err)
		}
		got = got[:len(got)+size]
	}
	write()
	for a.out.state != stateWaiting || a.out.ring.attached().Load() != attachedYes {
		if n+step > len(sent)/2 {
			t.Fatalf("after %d bytes the writer is in state %d", n, a.out.state)
		}
		write()
		read(step)
	}
	for range 50 {
		write()
	}
	if a.out.state != stateWaiting {
		t.Errorf("with bytes unread in the socket the writer is in state %d", a.out.state)
	}
	read(n - len(got))
	for range 10 {
		write()
		read(step)
	}
	if a.out.state != stateJoined || !bytes.Equal(got, sent[:n]) {
		t.Errorf("the writer is in state %d, equal bytes: %t", a.out.state, bytes.Equal(got, sent[:n]))
	}
}

// TestAllocations has the calls of joined directions allocate nothing, with a buffer on the stack.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("needs no race detector: with it the compiler puts the buffer on the heap")
	}
	a, b := newEnds(t, marks)
	joins(t, a, b)
	n := testing.AllocsPerRun(1000, func() {
		var buf [64]byte
		if _, err := a.Write(buf[:]); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(buf[:]); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTakeHostile has files that are no rings be refused.
func TestTakeHostile(t *testing.T) {
	file := func(size int64, seal int, flags int) int {
		fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
		if err != nil {
			t.Skipf("memfd_create: %v", err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	write := func(fd int, at int64, b ...byte) int {
		if _, err := unix.Pwrite(fd, b, at); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	magicBytes := []byte{0x67, 0x6f, 0x73, 0x67, 0x72, 0x6d, 0x30, 0x32} // little-endian
	before := mappedBytes.Load()
	for name, fd := range map[string]int{
		"not sealed":    write(file(headerLen+leastBytes, unix.F_SEAL_GROW, 0), 0, append(magicBytes, 0, 0x10)...),
		"no power of 2": write(file(headerLen+3*leastBytes, seals, 0), 0, append(magicBytes, 0, 0x30)...),
		"too small":     write(file(headerLen+leastBytes/2, seals, 0), 0, append(magicBytes, 0, 8)...),
		"header alone":  write(file(headerLen, seals, 0), 0, magicBytes...),
		"empty":         file(0, seals, 0),
		"too large":     write(file(headerLen+2*mostBytes, seals, 0), 0, append(magicBytes, 0, 0, 0, 2)...),
		"other size":    write(file(headerLen+leastBytes, seals, 0), 0, append(magicBytes, 0, 0x20)...),
		"no magic":      write(file(headerLen+leastBytes, seals, 0), 8, 0, 0x10),
	} {
		if m, err := takeMemory(fd); err == nil {
			t.Errorf("a file that is %s is taken: %d bytes", name, m.size)
			m.free()
		}
		if _, _, _, err := takeGift(fd); err == nil {
			t.Errorf("a file that is %s is taken for the agent's", name)
		}
	}
	good := write(file(headerLen+leastBytes, seals, 0), 0, append(magicBytes, 0, 0x10)...)
	m, err := takeMemory(good)
	if err != nil {
		t.Fatalf("a ring is refused: %v", err)
	}
	m.free()
	pipe := [2]int{}
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if _, err := takeMemory(pipe[0]); err == nil {
		t.Error("a pipe is taken")
	}
	if now := mappedBytes.Load(); now != before {
		t.Errorf("%d bytes stay mapped", now-before)
	}
}

// TestAfford has a process map no more rings than it may: by number, and by bytes.
func TestAfford(t *testing.T) {
	var taken []uint64
	defer func() {
		for _, size := range taken {
			giveUp(size)
		}
	}()
	for afford(leastBytes) {
		if taken = append(taken, leastBytes); len(taken) > maxRings {
			t.Fatalf("%d rings are mapped", len(taken))
		}
	}
	for _, size := range taken {
		giveUp(size)
	}
	taken = nil
	for sum := 0; afford(mostBytes); {
		taken = append(taken, mostBytes)
		if sum += mostBytes; sum > maxBytes {
			t.Fatalf("%d bytes of rings are mapped", sum)
		}
	}
	if len(taken) == 0 {
		t.Error("no ring can be mapped")
	}
}
