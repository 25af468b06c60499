package link

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire"
)

// The benchmarks compare a connection over a link with one over TCP, between two processes in network namespaces that a
// cable joins. The other process is this program again.
//
//	go test -run '^$' -bench . ./internal/link

const (
	envPeer  = "SMC_LINK_BENCH_PEER" // the address of the peer's device
	envWork  = "SMC_LINK_BENCH_WORK"
	envOver  = "SMC_LINK_BENCH_OVER"
	envConns = "SMC_LINK_BENCH_CONNS"
)

// benchTicket has the values that one side tells the other.
type benchTicket struct {
	Peer  Peer
	RMBEs []PeerRMBE
	TCP   uint16 // the port of the peer's listener
}

const benchSize = wire.SizeCode(6) // 1 MiB

// A benchEnd is an end of the connections that are measured.
type benchEnd struct {
	conns  []io.ReadWriter
	ticket benchTicket
	join   func(benchTicket) error
	link   *Link
}

// newBenchEnd makes one on an address.
func newBenchEnd(over string, addr netip.Addr, conns int, listen bool) (*benchEnd, error) {
	e := &benchEnd{conns: make([]io.ReadWriter, conns)}
	if over == "tcp" {
		return e, e.overTCP(addr, listen)
	}
	return e, e.overLink(addr)
}

func (e *benchEnd) overTCP(addr netip.Addr, listen bool) error {
	if !listen {
		e.join = func(t benchTicket) (err error) {
			for i := range e.conns {
				if e.conns[i], err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.Peer.GID.Addr(), t.TCP))); err != nil {
					return err
				}
			}
			return nil
		}
		return nil
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return err
	}
	e.ticket.TCP = uint16(l.Addr().(*net.TCPAddr).Port)
	e.join = func(benchTicket) (err error) {
		for i := range e.conns {
			if e.conns[i], err = l.AcceptTCP(); err != nil {
				return err
			}
		}
		return nil
	}
	return nil
}

func (e *benchEnd) overLink(addr netip.Addr) error {
	dev, err := rdma.Open(addr, nil)
	if err != nil {
		return err
	}
	g := NewGroup()
	l, err := g.NewLink(rdma.Verbs(dev))
	if err != nil {
		return err
	}
	e.link = l
	e.ticket.Peer = Peer{GID: dev.GID(), QPN: l.QPN(), PSN: l.PSN(), MTU: dev.MTU()}
	carriers, streams := make([]*Carrier, len(e.conns)), make([]*stream.Conn, len(e.conns))
	var ready atomic.Bool
	for i := range e.conns {
		rmb, err := g.NewRMB(benchSize)
		if err != nil {
			return err
		}
		wake := func() {
			if ready.Load() {
				streams[i].Wake()
			}
		}
		if carriers[i], err = g.NewCarrier(CarrierConfig{RMB: rmb, Wake: wake, SendBuffer: benchSize.Bytes()}); err != nil {
			return err
		}
		token, _ := rmb.Token(l)
		e.ticket.RMBEs = append(e.ticket.RMBEs, PeerRMBE{AlertToken: carriers[i].AlertToken(), RKey: token.RKey, Addr: token.Addr, Index: 1, Size: benchSize})
	}
	e.join = func(t benchTicket) error {
		if err := l.ReadyToReceive(t.Peer); err != nil {
			return err
		}
		if err := l.ReadyToSend(); err != nil {
			return err
		}
		for i, c := range carriers {
			if err := c.Attach(l, t.RMBEs[i], false); err != nil {
				return err
			}
			streams[i] = stream.New(c.Stream())
			e.conns[i] = streams[i]
		}
		ready.Store(true)
		return nil
	}
	return nil
}

// benchPeer is the other process: it sends its ticket, receives ours, and works.
func benchPeer() error {
	addr, err := netip.ParseAddr(os.Getenv(envPeer))
	if err != nil {
		return err
	}
	conns, err := strconv.Atoi(os.Getenv(envConns))
	if err != nil {
		return err
	}
	e, err := newBenchEnd(os.Getenv(envOver), addr, conns, true)
	if err != nil {
		return err
	}
	e.ticket.Peer.GID = wire.GIDFromAddr(addr)
	if err := json.NewEncoder(os.Stdout).Encode(e.ticket); err != nil {
		return err
	}
	in := json.NewDecoder(os.Stdin)
	var t benchTicket
	if err := in.Decode(&t); err != nil {
		return err
	}
	if err := e.join(t); err != nil {
		return err
	}
	fmt.Println("{}")
	for _, c := range e.conns {
		go func() {
			b := make([]byte, 64<<10)
			for {
				n, err := c.Read(b)
				if err == nil && os.Getenv(envWork) == "echo" {
					_, err = c.Write(b[:n])
				}
				if err != nil {
					return
				}
			}
		}()
	}
	io.Copy(io.Discard, os.Stdin) // until the other process has had enough
	return nil
}

// newBench returns an end whose peer does the work.
func newBench(b *testing.B, over, work string, conns int) *benchEnd {
	b.Helper()
	cables := smctest.NewCables(b, 1)
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envPeer+"="+cables.Addr[0][1].String(), envWork+"="+work, envOver+"="+over, envConns+"="+strconv.Itoa(conns))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	cables.Run[1](func() { err = cmd.Start() })
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	var e *benchEnd
	cables.Run[0](func() { e, err = newBenchEnd(over, cables.Addr[0][0], conns, false) })
	if err != nil {
		b.Fatal(err)
	}
	tickets := json.NewDecoder(out)
	var theirs, done benchTicket
	if err := tickets.Decode(&theirs); err != nil {
		b.Fatal(err)
	}
	if err := json.NewEncoder(in).Encode(e.ticket); err != nil {
		b.Fatal(err)
	}
	cables.Run[0](func() { err = e.join(theirs) })
	if err != nil {
		b.Fatal(err)
	}
	if err := tickets.Decode(&done); err != nil {
		b.Fatal(err)
	}
	return e
}

// benchOver runs a benchmark over a link and over TCP.
func benchOver(b *testing.B, work string, conns int, f func(b *testing.B, e *benchEnd)) {
	for _, over := range []string{"link", "tcp"} {
		b.Run(over, func(b *testing.B) {
			e := newBench(b, over, work, conns)
			start := cpuTime()
			f(b, e)
			b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
			for _, c := range e.conns {
				if c, ok := c.(*net.TCPConn); ok {
					c.Close()
				}
			}
			if l := e.link; l != nil {
				s := l.Stats()
				b.ReportMetric(float64(s.SentCDC)/float64(b.N), "cdc/op")
				b.ReportMetric(float64(s.ReceivedCDC)/float64(b.N), "rcdc/op")
				l.group.Close()
				l.dev.Close()
			}
		})
	}
}

func benchWrites(b *testing.B, size int) {
	benchOver(b, "sink", 1, func(b *testing.B, e *benchEnd) {
		data := make([]byte, size)
		b.SetBytes(int64(size))
		b.ReportAllocs()
		for b.Loop() {
			if n, err := e.conns[0].Write(data); n != size || err != nil {
				b.Fatal(n, err)
			}
		}
	})
}

func BenchmarkBulk(b *testing.B)      { benchWrites(b, 64<<10) }
func BenchmarkStream100(b *testing.B) { benchWrites(b, 100) }

func BenchmarkPingPong(b *testing.B) {
	benchOver(b, "echo", 1, func(b *testing.B, e *benchEnd) {
		data := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := e.conns[0].Write(data); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(e.conns[0], data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkConns has 64 connections that send 64 bytes there and back, all at once.
func BenchmarkConns(b *testing.B) {
	benchOver(b, "echo", 64, func(b *testing.B, e *benchEnd) {
		var all sync.WaitGroup
		var left atomic.Int64
		left.Store(int64(b.N))
		b.ResetTimer()
		for _, c := range e.conns {
			all.Go(func() {
				data := make([]byte, 64)
				for left.Add(-1) >= 0 {
					if _, err := c.Write(data); err != nil {
						b.Error(err)
						return
					}
					if _, err := io.ReadFull(c, data); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

// cpuTime is the processor time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
