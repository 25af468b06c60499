package smc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// pingPong sends a byte each way and back.
func pingPong(a, b net.Conn) error {
	for _, c := range []net.Conn{a, b} {
		if err := c.SetDeadline(time.Now().Add(slow)); err != nil {
			return err
		}
	}
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		out, in := []byte{byte(time.Now().UnixNano())}, make([]byte, 1)
		if _, err := way[0].Write(out); err != nil {
			return err
		}
		if _, err := io.ReadFull(way[1], in); err != nil {
			return err
		}
		if in[0] != out[0] {
			return fmt.Errorf("got %#x, sent %#x", in, out)
		}
	}
	return nil
}

// TestMemoryBudget makes more connections than there is memory for, on the server and on the client.
// Those that do not fit are TCP and say why; when memory is free again there is SMC again.
func TestMemoryBudget(t *testing.T) {
	const buffer, fit, beyond = 64 << 10, 5, 3
	limited := Config{ReadBuffer: buffer, MemoryBudget: fit*buffer + buffer/2}
	for _, tt := range []struct {
		name           string
		client, server Config
		// The reason that each side gives for a connection that did not fit. The peer is told a
		// reason that RFC 7609 has a code for.
		clientReason, serverReason clc.Diagnosis
	}{
		{"server", Config{ReadBuffer: buffer}, limited, clc.DiagMemory, clc.DiagBudget},
		{"client", limited, Config{ReadBuffer: buffer}, clc.DiagBudget, clc.DiagMemory},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			tt.client.Dir = t.TempDir()
			tt.server.Dir = tt.client.Dir
			client, server := newHost(t, tt.client), newHost(t, tt.server)
			for range 2 { // a second time, with the remains of the first
				var conns [][2]*Conn
				for range fit {
					c, s := connect(t, client, server, ModeSMCD)
					conns = append(conns, [2]*Conn{c, s})
				}
				for range beyond {
					c, s := connect(t, client, server, ModeTCP)
					conns = append(conns, [2]*Conn{c, s})
					if got := c.State().Reason.Code; got != uint32(tt.clientReason) {
						t.Errorf("reason on the client = %v, want %v", c.State().Reason, tt.clientReason)
					}
					if got := s.State().Reason.Code; got != uint32(tt.serverReason) {
						t.Errorf("reason on the server = %v, want %v", s.State().Reason, tt.serverReason)
					}
				}
				for i, ends := range conns {
					if err := pingPong(ends[0], ends[1]); err != nil {
						t.Errorf("connection %d, %v: %v", i, ends[0].State().Mode, err)
					}
				}
				conns[0][0].Close()
				conns[0][1].Close()
				smctest.Eventually(t, slow, "a closed connection has freed its buffer", func() bool {
					return memoryUsed(client) <= (fit-1)*buffer || memoryUsed(server) <= (fit-1)*buffer || cached(client, server)
				})
				c, s := connect(t, client, server, ModeSMCD)
				conns[0] = [2]*Conn{c, s}
				if err := pingPong(c, s); err != nil {
					t.Error(err)
				}
				for _, ends := range conns {
					ends[0].Close()
					ends[1].Close()
				}
				smctest.Eventually(t, slow, "all connections are closed", func() bool {
					return len(client.h.Status().Connections)+len(server.h.Status().Connections) == 0
				})
			}
		})
	}
}

// cached reports whether two hosts have one connection less than they had buffers for: its buffer is kept for
// the next one.
func cached(client, server *Host) bool {
	return countMode(client, ModeSMCD) == 4 && countMode(server, ModeSMCD) == 4
}

// countMode returns how many connections a host has in the mode.
func countMode(h *Host, mode Mode) (n int) {
	for _, c := range h.h.Status().Connections {
		if c.Mode == mode.String() {
			n++
		}
	}
	return n
}

// memoryUsed returns the bytes that count toward the budget of a host.
func memoryUsed(h *Host) int64 {
	for _, l := range h.h.Status().Limits {
		if l.Name == "memory" {
			return l.Used
		}
	}
	return 0
}

// setLimit lets the process have only so many more descriptors than it has.
func setLimit(p *smctest.Parent, more int) {
	u, err := smctest.UsageOf(os.Getpid())
	p.Check(err)
	var r unix.Rlimit
	p.Check(unix.Getrlimit(unix.RLIMIT_NOFILE, &r))
	r.Cur = uint64(len(u.Descriptors) + more)
	p.Check(unix.Setrlimit(unix.RLIMIT_NOFILE, &r))
}

// childStarve serves or dials with few descriptors. Arguments: run directory, "serve" or the address to dial,
// number of descriptors that it may have beside those it needs anyway.
//
// As a server it echoes. As a client it dials until that fails, says how, closes all, and says whether
// the next connection is SMC-D.
func childStarve(p *smctest.Parent) {
	h := childHost(p, p.Args[0])
	more, err := strconv.Atoi(p.Args[2])
	p.Check(err)
	l, err := listenOn(h)
	p.Check(err)
	if p.Args[1] == "serve" {
		go func() {
			for {
				c, err := l.Accept()
				if err == nil {
					go echo(c)
					continue
				}
				//lint:ignore SA1019 this is how package net/http decides whether to go on
				if ne, ok := err.(net.Error); !ok || !ne.Temporary() {
					p.Check(err)
				}
			}
		}()
		p.Say("listening %v", l.Addr())
		p.Hear() // the test has a connection
		setLimit(p, more)
		p.Say("limited")
		for {
			p.Hear()
		}
	}
	p.Check(exchange(h, p.Args[1])) // now everything is open that one connection needs
	setLimit(p, more)
	for round := range 3 {
		conns, modes := []*Conn{}, map[Mode]int{}
		var failure error
		reasons := map[string]int{}
		for failure == nil {
			d := Dialer{Host: h, Timeout: slow}
			c, err := d.Dial("tcp", p.Args[1])
			if failure = err; err == nil {
				conns = append(conns, c)
				modes[c.State().Mode]++
				reasons[c.State().Reason.Tag]++
			}
		}
		for _, c := range conns {
			p.Check(c.SetDeadline(time.Now().Add(slow)))
			_, err := c.Write([]byte("x"))
			p.Check(err)
			_, err = io.ReadFull(c, make([]byte, 1))
			p.Check(err)
			p.Check(c.Close())
		}
		if !errors.Is(failure, syscall.EMFILE) {
			p.Check(fmt.Errorf("round %d: Dial without descriptors: %w, want EMFILE", round, failure))
		}
		p.Say("dialed %d %d %v", modes[ModeSMCD], modes[ModeTCP], reasons)
	}
	d := Dialer{Host: h, Require: RequireSMCD, Timeout: slow}
	deadline := time.Now().Add(slow)
	for {
		c, err := d.Dial("tcp", p.Args[1])
		if err == nil {
			p.Check(c.Close())
			break
		}
		if time.Now().After(deadline) {
			p.Check(fmt.Errorf("Dial after all connections were closed: %w", err))
		}
	}
	p.Say("recovered")
	p.Hear()
}

// TestDescriptorsClient lets a client run out of descriptors.
func TestDescriptorsClient(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	h := newHost(t, Config{Dir: dir})
	l, err := listenOn(h)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serveEach(l, func(c net.Conn) { echo(c) })
	fellBack := 0
	for more := range 6 { // so that it is another step that finds none
		child := smctest.Start(t, "starve", dir, l.Addr().String(), strconv.Itoa(10+more))
		for range 3 {
			var smcd, tcp int
			said := child.Hear("dialed")
			if _, err := fmt.Sscan(said, &smcd, &tcp); err != nil {
				t.Fatal(err)
			}
			if smcd == 0 || tcp > 0 && !strings.HasSuffix(said, fmt.Sprintf("NOFILE:%d]", tcp)) {
				t.Errorf("with %d descriptors: %s, want some SMC-D, and all TCP for NOFILE", 10+more, said)
			}
			fellBack += tcp
			t.Logf("with %d descriptors: %s", 10+more, said)
		}
		child.Hear("recovered")
		child.Kill()
	}
	if fellBack == 0 {
		t.Error("no connection fell back")
	}
}

// TestDescriptorsServer lets a server run out of descriptors. Every dial ends in time, in a connection or in an error;
// and when there are descriptors again, all connections that stand work, and new ones are SMC.
func TestDescriptorsServer(t *testing.T) {
	smctest.CheckLeaks(t)
	for more := range 5 {
		t.Run(strconv.Itoa(10+more), func(t *testing.T) {
			t.Parallel() // most of it is waiting
			dir := t.TempDir()
			h := newHost(t, Config{Dir: dir})
			child := smctest.Start(t, "starve", dir, "serve", strconv.Itoa(10+more))
			addr := child.Hear("listening")
			if err := exchange(h, addr); err != nil {
				t.Fatal(err)
			}
			child.Say("starve")
			child.Hear("limited")
			var mu sync.Mutex // guards the variables below
			var conns []*Conn
			modes := map[Mode]int{}
			reasons := map[string]int{}
			var failures []error
			dial := func() {
				d := Dialer{Host: h, Timeout: slow}
				start := time.Now()
				c, err := d.Dial("tcp", addr)
				took := time.Since(start)
				mu.Lock()
				defer mu.Unlock()
				if took > slow*3/4 {
					t.Errorf("Dial of a server without descriptors took %v (%v)", took, err)
				}
				if err != nil {
					var ne net.Error
					if !errors.As(err, &ne) || ne.Timeout() {
						t.Errorf("Dial of a server without descriptors: %v", err)
					}
					failures = append(failures, err)
					return
				}
				modes[c.State().Mode]++
				reasons[c.State().Reason.Tag]++
				conns = append(conns, c)
			}
			for len(conns) < 8 { // for these there is room
				dial()
			}
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(dial)
			}
			wg.Wait()
			t.Logf("%v, %v; failures %v", modes, reasons, failures)
			// A server that cannot accept is not told apart from one that is not there.
			if modes[ModeSMCD] == 0 || modes[ModeTCP] == 0 || modes[ModeTCP] != reasons["MEMORY"]+reasons["NOT_ACCEPTED"] {
				t.Errorf("modes = %v for %v, want SMC-D, and TCP for MEMORY or NOT_ACCEPTED", modes, reasons)
			}
			// Each that closes makes room for one that waits to be accepted.
			var cut atomic.Int32
			for i, c := range conns {
				wg.Go(func() {
					defer c.Close()
					c.SetDeadline(time.Now().Add(2 * slow))
					out, in := make([]byte, 1000), make([]byte, 1000)
					smctest.Pattern(out, uint64(i))
					_, err := c.Write(out)
					if err == nil {
						_, err = io.ReadFull(c, in)
					}
					if err == nil {
						err = smctest.CheckPattern(in, uint64(i))
					}
					if errors.Is(err, syscall.ECONNRESET) {
						cut.Add(1)
					} else if err != nil {
						t.Errorf("connection %d (%v, %v): %v", i, c.State().Mode, c.State().Reason, err)
					}
				})
			}
			wg.Wait()
			if cut := cut.Load(); cut > 0 {
				t.Logf("%d connections were reset", cut)
			}
			d := Dialer{Host: h, Require: RequireSMCD, Timeout: slow}
			smctest.Eventually(t, slow, "SMC-D after the server has descriptors again", func() bool {
				c, err := d.Dial("tcp", addr)
				if err != nil {
					return false
				}
				c.Close()
				return true
			})
			if err := exchange(h, addr); err != nil {
				t.Errorf("connection after recovery: %v", err)
			}
		})
	}
}

// childCrowd is many hosts, of which each makes a connection and keeps it, as the test says.
// Arguments: run directory, address.
func childCrowd(p *smctest.Parent) {
	var hosts []*Host
	for {
		switch p.Hear() {
		case "join":
			h := childHost(p, p.Args[0])
			hosts = append(hosts, h)
			d := Dialer{Host: h, Timeout: slow, ReadBuffer: 16 << 10}
			c, err := d.Dial("tcp", p.Args[1])
			p.Check(err)
			p.Check(c.SetDeadline(time.Now().Add(slow)))
			_, err = c.Write([]byte("x"))
			p.Check(err)
			_, err = io.ReadFull(c, make([]byte, 1))
			p.Check(err)
			p.Say("joined %v %s", c.State().Mode, c.State().Reason.Tag)
		case "leave":
			p.Check(hosts[0].Close())
			hosts = hosts[1:]
			p.Say("left")
		}
	}
}

// TestPeerTable fills a host's table of peers. The next peer uses TCP, until another has left.
func TestPeerTable(t *testing.T) {
	if testing.Short() {
		t.Skip("opens 1024 devices")
	}
	const peers = 1024 // maxPeers of internal/ism
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	h := newHost(t, Config{Dir: dir, ReadBuffer: 16 << 10})
	l, err := listenOn(h)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serveEach(l, func(c net.Conn) { echo(c) })
	child := smctest.Start(t, "crowd", dir, l.Addr().String())
	join := func() string {
		child.Say("join")
		return child.Hear("joined")
	}
	for n := range peers {
		if got := join(); got != "SMC-D " {
			t.Fatalf("connection of peer %d = %s, want SMC-D", n+1, got)
		}
	}
	for range 3 {
		if got := join(); got != "TCP LIMIT" {
			t.Errorf("connection of a peer too many = %s, want TCP for LIMIT", got)
		}
	}
	child.Say("leave")
	child.Hear("left")
	smctest.Eventually(t, slow, "SMC-D after a peer has left", func() bool { return join() == "SMC-D " })
}
