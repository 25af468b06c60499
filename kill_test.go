package smc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// The tests of this file and of stop, limits and idle_test.go run a second process: the test
// binary, as one of these programs.
func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){
		"traffic": childTraffic,
		"churn":   childChurn,
		"echo":    childEcho,
		"spawn":   childSpawn,
		"hold":    childHold,
		"starve":  childStarve,
		"crowd":   childCrowd,
		"idle":    childIdle,
		"files":   childFiles,
		"share":   childShare,
	})
}

// slow is how long anything may take that normally takes milliseconds.
const slow = 10 * time.Second

// Words that the traffic of a child keeps up to date, so that they outlive it.
const (
	wordWritten  = iota // bytes that Write has taken
	wordRead            // bytes that Read has given, and that were right
	wordMismatch        // 1 + the offset of a byte that was wrong
)

// childHost makes the host of a child, with a run directory.
func childHost(p *smctest.Parent, dir string) *Host {
	h, err := NewHost(&Config{Dir: dir})
	p.Check(err)
	return h
}

// listenOn returns a listener on a port of its own.
func listenOn(h *Host) (*Listener, error) {
	lc := ListenConfig{Host: h}
	return lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
}

// childEnd makes one end of a connection: "listen" or "dial ADDR".
func childEnd(p *smctest.Parent, h *Host, how, addr string) *Conn {
	if how == "dial" {
		d := Dialer{Host: h, Require: RequireSMCD, Timeout: slow}
		c, err := d.Dial("tcp", addr)
		p.Check(err)
		return c
	}
	l, err := listenOn(h)
	p.Check(err)
	p.Say("listening %v", l.Addr())
	c, err := l.AcceptSMC()
	p.Check(err)
	return c
}

// childTraffic reads and writes as fast as it can until it is killed.
// Arguments: run directory, file of words, listen or dial, address.
func childTraffic(p *smctest.Parent) {
	h := childHost(p, p.Args[0])
	words, err := smctest.OpenWords(p.Args[1])
	p.Check(err)
	c := childEnd(p, h, p.Args[2], p.Args[3])
	p.Say("connected %v", c.State().Mode)
	go writePattern(c, func(total uint64) { words[wordWritten].Store(total) })
	go func() {
		var total uint64
		buf := make([]byte, 50_000)
		for {
			n, err := c.Read(buf)
			if err := smctest.CheckPattern(buf[:n], total); err != nil {
				words[wordMismatch].Store(total + 1)
			}
			total += uint64(n)
			words[wordRead].Store(total)
			if err != nil {
				return
			}
		}
	}()
	p.Hear()
}

// writePattern writes the pattern until there is an error, which it returns.
func writePattern(c net.Conn, progress func(total uint64)) error {
	buf := make([]byte, 30_011) // no divisor of a buffer
	var total uint64
	for {
		smctest.Pattern(buf, total)
		n, err := c.Write(buf)
		total += uint64(n)
		progress(total)
		if err != nil {
			return err
		}
	}
}

// endTraffic starts the child at one end, and returns the other end and the child.
func endTraffic(t *testing.T, h *Host, dir string, childHow, wordsPath string) (*Conn, *smctest.Process) {
	t.Helper()
	if childHow == "listen" {
		child := smctest.Start(t, "traffic", dir, wordsPath, "listen", "-")
		d := Dialer{Host: h, Require: RequireSMCD, Timeout: slow}
		c, err := d.Dial("tcp", child.Hear("listening"))
		if err != nil {
			t.Fatal(err)
		}
		child.Hear("connected SMC-D")
		return c, child
	}
	l, err := listenOn(h)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	child := smctest.Start(t, "traffic", dir, wordsPath, "dial", l.Addr().String())
	l.SetDeadline(time.Now().Add(slow))
	c, err := l.AcceptSMC()
	if err != nil {
		t.Fatal(err)
	}
	child.Hear("connected SMC-D")
	return c, child
}

// diedError reports whether an error is one that an application gets, as from TCP, when its peer
// has died. That is a reset if bytes were on their way to it or unread, else the error that it
// would get from a peer that has closed.
func diedError(err error) bool {
	var op *net.OpError
	return err == io.EOF || errors.As(err, &op) && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

// TestKill kills one process of a connection in mid transfer, both directions busy. The other
// gets all that was written, then an error, soon.
func TestKill(t *testing.T) {
	rounds := 8
	if testing.Short() || raceEnabled() {
		rounds = 2
	}
	for _, childHow := range []string{"listen", "dial"} {
		t.Run("child "+childHow+"s", func(t *testing.T) {
			smctest.CheckLeaks(t)
			dir := t.TempDir()
			h := newHost(t, Config{Dir: dir})
			var times []time.Duration
			for range rounds {
				times = append(times, killOnce(t, h, dir, childHow)...)
			}
			slices.Sort(times)
			t.Logf("from SIGKILL to the error of Read and Write: median %v, worst %v of %d", times[len(times)/2], times[len(times)-1], len(times))
		})
	}
}

// killOnce returns how long it took until Read and Write returned an error.
func killOnce(t *testing.T, h *Host, dir, childHow string) []time.Duration {
	t.Helper()
	words, path := smctest.NewWords(t)
	c, child := endTraffic(t, h, dir, childHow, path)
	defer c.Close()

	threshold := 1 + rand.Uint64N(32<<20)
	passed := make(chan struct{}) // the reader is there
	type end struct {
		at  time.Time
		err error
	}
	readEnd, writeEnd := make(chan end, 1), make(chan end, 1)
	var read uint64
	go func() {
		buf := make([]byte, 70_001)
		signal := sync.OnceFunc(func() { close(passed) })
		defer signal()
		for {
			n, err := c.Read(buf)
			if perr := smctest.CheckPattern(buf[:n], read); perr != nil {
				err = perr
			}
			read += uint64(n)
			if read >= threshold {
				signal()
			}
			if err != nil {
				readEnd <- end{time.Now(), err}
				return
			}
		}
	}()
	go func() {
		err := writePattern(c, func(uint64) {})
		writeEnd <- end{time.Now(), err}
	}()
	select {
	case <-passed:
	case <-time.After(2 * slow):
		t.Fatalf("transfer did not reach %d bytes", threshold)
	}
	killed := child.Kill()
	var times []time.Duration
	for what, ch := range map[string]chan end{"Read": readEnd, "Write": writeEnd} {
		select {
		case e := <-ch:
			if !diedError(e.err) {
				t.Errorf("%s after the peer was killed: %v, want ECONNRESET, or EOF and EPIPE", what, e.err)
			}
			took := e.at.Sub(killed)
			if took > 2*time.Second {
				t.Errorf("%s returned %v after the peer was killed, want at most 2s", what, took)
			}
			times = append(times, took)
		case <-time.After(slow):
			t.Fatalf("%s still hangs %v after the peer was killed", what, slow)
		}
	}
	if written := words[wordWritten].Load(); read < written {
		t.Errorf("read %d bytes, but the peer had written %d before it was killed", read, written)
	}
	if at := words[wordMismatch].Load(); at != 0 {
		t.Errorf("the killed process had read a wrong byte near %d", at-1)
	}
	return times
}

// childChurn makes connections in both roles until it kills itself, at a time that the test chose.
// Arguments: run directory, address of the test's listener, microseconds to live.
func childChurn(p *smctest.Parent) {
	h := childHost(p, p.Args[0])
	micros, err := strconv.Atoi(p.Args[2])
	p.Check(err)
	l, err := listenOn(h)
	p.Check(err)
	go serveEach(l, func(c net.Conn) { echo(c) })
	p.Say("listening %v", l.Addr())
	time.AfterFunc(time.Duration(micros)*time.Microsecond, func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	for range 2 {
		go func() {
			for {
				// Only the killed process may see an error, and nobody can see that.
				p.Check(exchange(h, p.Args[1]))
			}
		}()
	}
	select {}
}

// echo sends back the bytes that it gets, and closes.
func echo(c net.Conn) error {
	defer c.Close()
	_, err := io.Copy(c, c)
	return err
}

// exchange makes a connection, sends some bytes of the pattern, checks the echo, and closes.
func exchange(h *Host, addr string) error {
	d := Dialer{Host: h, Timeout: slow}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(slow))
	out := make([]byte, 1+rand.IntN(100_000))
	smctest.Pattern(out, 0)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(out)
		if err == nil {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	back, err := io.ReadAll(c)
	if perr := smctest.CheckPattern(back, 0); perr != nil {
		err = fmt.Errorf("wrong bytes: %w", perr)
	}
	if err != nil {
		c.Close() // so that the writer ends
		<-sent
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if len(back) != len(out) {
		return fmt.Errorf("got %d bytes back, sent %d", len(back), len(out))
	}
	return nil
}

// TestKillRounds kills a process that makes connections at a random moment, many times: in the middle of a
// rendezvous, a handshake, a transfer, a close. The survivor keeps nothing.
func TestKillRounds(t *testing.T) {
	rounds := 1000
	switch {
	case testing.Short():
		rounds = 50
	case raceEnabled(): // it takes long to start a process
		rounds = 250
	}
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	h := newHost(t, Config{Dir: dir})
	l, err := listenOn(h)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serveEach(l, func(c net.Conn) {
		c.SetDeadline(time.Now().Add(slow))
		if err := echo(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection still stands %v after its peer was killed: %v", slow, err)
		}
	})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	var warm, after usage
	dials, failed := 0, 0
	for round := range rounds {
		if round == rounds/5 {
			warm = settle(t, h)
		}
		d, f := killRound(t, h, dir, l.Addr().String(), time.Duration(random.IntN(8_000))*time.Microsecond)
		dials, failed = dials+d, failed+f
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	smctest.Eventually(t, slow, "no goroutines left over", func() bool { return runtime.NumGoroutine() <= warm.goroutines })
	after = settle(t, h)
	status := h.h.Status()
	t.Logf("%d connections from here, %d of them cut; all: %v; fallbacks %v; failed handshakes %d", dials, failed,
		status.Counters.Connections, status.Counters.Fallbacks, status.Counters.HandshakesFailed)
	t.Logf("after %d rounds: %+v; after %d: %+v", rounds/5, warm, rounds, after)
	if after.descriptors > warm.descriptors || after.mappings > warm.mappings || after.goroutines > warm.goroutines {
		t.Errorf("something was leaked: after %d rounds %+v, after %d %+v", rounds/5, warm, rounds, after)
	}
	if grown := int64(after.heap) - int64(warm.heap); grown > int64(rounds)<<11 { // the test itself keeps some 1000 bytes for each child
		t.Errorf("the heap has grown by %d bytes in %d rounds", grown, rounds-rounds/5)
	}
	if err := exchange(h, l.Addr().String()); err != nil {
		t.Errorf("a connection of the survivor with itself: %v", err)
	}
}

// killRound runs one child to its end, and dials it as long as it lives.
func killRound(t *testing.T, h *Host, dir, addr string, life time.Duration) (dials, failed int) {
	t.Helper()
	child := smctest.Start(t, "churn", dir, addr, strconv.FormatInt(life.Microseconds(), 10))
	theirs := child.Hear("listening")
	for {
		start := time.Now()
		err := exchange(h, theirs)
		if took := time.Since(start); took > slow/2 {
			t.Errorf("connection to a process that was killed took %v (%v)", took, err)
		}
		dials++
		if err == nil {
			continue
		}
		failed++
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			t.Errorf("connection to a process that was killed: %v", err)
		}
		if errors.As(err, new(*smctest.Mismatch)) {
			t.Error(err)
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
	}
	child.Wait()
	if !child.Killed() {
		t.Errorf("child ended with %v, not by SIGKILL", child.Wait())
	}
	return dials, failed
}

// usage counts the resources of the test's process when it is at rest.
type usage struct {
	descriptors, mappings, goroutines int
	heap                              uint64
}

// settle waits until the host has no connection and no peer, and returns the remaining usage.
func settle(t *testing.T, h *Host) usage {
	t.Helper()
	smctest.Eventually(t, slow, "no connections and no peers", func() bool {
		s := h.h.Status()
		for _, l := range s.Limits {
			if l.Name == "peers" && l.Used > 0 || l.Name == "memory" && l.Used > 0 {
				return false
			}
		}
		return len(s.Connections) == 0
	})
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u, err := smctest.UsageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return usage{len(u.Descriptors), u.Mappings, runtime.NumGoroutine(), m.HeapAlloc}
}

// childSpawn echoes on one connection, and starts a process that outlives it.
// Arguments: run directory.
func childSpawn(p *smctest.Parent) {
	p.Say("before %s", sharedDescriptors(p))
	h := childHost(p, p.Args[0])
	l, err := listenOn(h)
	p.Check(err)
	p.Say("listening %v", l.Addr())
	c, err := l.AcceptSMC()
	p.Check(err)
	go echo(c)
	exe, err := os.Executable()
	p.Check(err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "GOSMC_TEST_CHILD=hold")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	p.Check(cmd.Start())
	cmd.Wait()
}

// childHold reports the descriptors that it has inherited, and stays until the test has nothing
// more to say.
func childHold(p *smctest.Parent) {
	p.Say("holding %d %s", os.Getpid(), sharedDescriptors(p))
	p.Hear()
}

// sharedDescriptors lists the descriptors by which a process could keep a connection alive.
func sharedDescriptors(p *smctest.Parent) (list string) {
	u, err := smctest.UsageOf(os.Getpid())
	p.Check(err)
	for _, d := range u.Descriptors {
		if strings.HasPrefix(d, "socket:") || strings.Contains(d, "memfd:") {
			list += d + " "
		}
	}
	return list + fmt.Sprintf("and %d mappings", u.Mappings)
}

// TestInherit starts a process from one that has a connection. It inherits nothing, so that the connection
// ends when its owner is killed, though the new process lives.
func TestInherit(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	h := newHost(t, Config{Dir: dir})
	child := smctest.Start(t, "spawn", dir)
	before := child.Hear("before")
	d := Dialer{Host: h, Require: RequireSMCD, Timeout: slow}
	c, err := d.Dial("tcp", child.Hear("listening"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	held, inherited, _ := strings.Cut(child.Hear("holding"), " ")
	pid, err := strconv.Atoi(held)
	if err != nil {
		t.Fatal(err)
	}
	if inherited != before {
		t.Errorf("a process started by one with a connection has %s; one started before the connection would have %s", inherited, before)
	}
	msg := []byte("still here?")
	c.SetDeadline(time.Now().Add(slow))
	if _, err := c.Write(msg); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, msg); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	child.Signal(syscall.SIGKILL) // its standard input stays open, for the process that it has started
	_, err = c.Read(msg)
	took := time.Since(killed)
	if err != io.EOF || took > 2*time.Second { // it had read everything
		t.Errorf("Read after the peer was killed: %v after %v, want EOF within 2s", err, took)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the process that the peer had started is gone: %v", err)
	}
}
