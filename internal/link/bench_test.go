package link

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
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
	envPeer = "SMC_LINK_BENCH_PEER" // the address of the peer's device
	envWork = "SMC_LINK_BENCH_WORK"
	envOver = "SMC_LINK_BENCH_OVER"
	envSpin = "SMC_LINK_BENCH_SPIN"
)

// benchTicket is what one side tells the other.
type benchTicket struct {
	Peer Peer
	RMBE PeerRMBE
	TCP  uint16 // the port of the peer's listener
}

const benchSize = wire.SizeCode(6)

// A benchEnd is an end of the connection that is measured.
type benchEnd struct {
	conn   io.ReadWriter
	ticket benchTicket
	join   func(benchTicket) error
	link   *Link
}

// newBenchEnd makes one on an address.
func newBenchEnd(over string, addr netip.Addr, spin time.Duration, listen bool) (*benchEnd, error) {
	e := &benchEnd{}
	if over == "tcp" {
		if listen {
			l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
			if err != nil {
				return nil, err
			}
			e.ticket.TCP = uint16(l.Addr().(*net.TCPAddr).Port)
			e.join = func(benchTicket) (err error) {
				e.conn, err = l.AcceptTCP()
				return err
			}
			return e, nil
		}
		e.join = func(t benchTicket) (err error) {
			e.conn, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.Peer.GID.Addr(), t.TCP)))
			return err
		}
		return e, nil
	}
	dev, err := rdma.Open(addr, nil)
	if err != nil {
		return nil, err
	}
	g := NewGroup()
	l, err := g.NewLink(dev)
	if err != nil {
		return nil, err
	}
	rmb, err := g.NewRMB(benchSize)
	if err != nil {
		return nil, err
	}
	var conn *stream.Conn
	c, err := g.NewCarrier(CarrierConfig{RMB: rmb, Wake: func() { conn.Wake() }, SendBuffer: benchSize.Bytes()})
	if err != nil {
		return nil, err
	}
	token, _ := rmb.Token(l)
	e.link = l
	e.ticket.Peer = Peer{GID: dev.GID(), QPN: l.QPN(), PSN: l.PSN(), MTU: dev.MTU()}
	e.ticket.RMBE = PeerRMBE{AlertToken: c.AlertToken(), RKey: token.RKey, Addr: token.Addr, Index: 1, Size: benchSize}
	e.join = func(t benchTicket) error {
		if err := l.ReadyToReceive(t.Peer); err != nil {
			return err
		}
		if err := l.ReadyToSend(); err != nil {
			return err
		}
		l.group.tokenMu.Lock() // nothing may come in between
		defer l.group.tokenMu.Unlock()
		if err := c.Attach(l, t.RMBE, false); err != nil {
			return err
		}
		cfg := c.Stream()
		cfg.Spin = spin
		conn = stream.New(cfg)
		e.conn = conn
		return nil
	}
	return e, nil
}

// benchPeer is the other process: it sends its ticket, receives ours, and works.
func benchPeer() error {
	addr, err := netip.ParseAddr(os.Getenv(envPeer))
	if err != nil {
		return err
	}
	spin, _ := time.ParseDuration(os.Getenv(envSpin))
	e, err := newBenchEnd(os.Getenv(envOver), addr, spin, true)
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
	go func() {
		io.Copy(io.Discard, os.Stdin) // until the other process has had enough
		os.Exit(0)
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := e.conn.Read(b)
		if err == nil && os.Getenv(envWork) == "echo" {
			_, err = e.conn.Write(b[:n])
		}
		if err != nil {
			return err
		}
	}
}

// newBench returns an end whose peer does the work.
func newBench(b *testing.B, over, work string, spin time.Duration) *benchEnd {
	b.Helper()
	cables := smctest.NewCables(b, 1)
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	var cmd *exec.Cmd
	var e *benchEnd
	cmd = exec.Command(self)
	cmd.Env = append(os.Environ(), envPeer+"="+cables.Addr[0][1].String(), envWork+"="+work, envOver+"="+over, envSpin+"="+spin.String())
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
	cables.Run[0](func() { e, err = newBenchEnd(over, cables.Addr[0][0], spin, false) })
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
func benchOver(b *testing.B, work string, f func(b *testing.B, e *benchEnd)) {
	for _, over := range []string{"link", "tcp"} {
		b.Run(over, func(b *testing.B) {
			e := newBench(b, over, work, benchSpin())
			start := cpuTime()
			f(b, e)
			b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
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
	benchOver(b, "sink", func(b *testing.B, e *benchEnd) {
		data := make([]byte, size)
		b.SetBytes(int64(size))
		b.ReportAllocs()
		for b.Loop() {
			if n, err := e.conn.Write(data); n != size || err != nil {
				b.Fatal(n, err)
			}
		}
	})
}

func BenchmarkBulk(b *testing.B)      { benchWrites(b, 64<<10) }
func BenchmarkStream100(b *testing.B) { benchWrites(b, 100) }

func BenchmarkPingPong(b *testing.B) {
	benchOver(b, "echo", func(b *testing.B, e *benchEnd) {
		data := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := e.conn.Write(data); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(e.conn, data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchSpin() time.Duration {
	d, err := time.ParseDuration(os.Getenv(envSpin))
	if err != nil {
		return stream.DefaultSpin
	}
	return d
}

// cpuTime is what this process has used of processors.
func cpuTime() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
