package host

import (
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// TestSMCRGone kills the process at the other end. Its kernel says that its UDP port is nobody's
// any more.
func TestSMCRGone(t *testing.T) {
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 1)
	cables.Sysctl(1, "net/ipv4/icmp_ratelimit", "0") // RDMA packets to that port are answered, too
	log := new(record)
	cfg := Config{
		UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"10.99.0.0/16"}, RDMA: rdma.Config{Port: 4791},
		Namespace: func(f func()) { cables.Visit(0, f) }, Logger: log.logger(),
	}
	h := newTestHost(t, cfg)
	var child *smctest.Process
	server := cables.Addr[0][1]
	cables.Run[1](func() {
		child = smctest.Start(t, "host-smcr", t.TempDir(), netip.AddrPortFrom(server, 4791).String(), server.String())
	})
	addr := strings.TrimPrefix(child.Hear("listening"), "listening ")
	var conns []conn.Conn
	for range 3 {
		var c conn.Conn
		var err error
		cables.Run[0](func() {
			c, err = h.Dial(boundedContext(t), "tcp", addr, DialOptions{Require: conn.RequireSMCR})
		})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	child.Kill()
	for _, c := range conns {
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || err == io.EOF {
			t.Errorf("read of one whose peer was killed = %d, %v", n, err)
		}
		c.Close()
	}
	checkGone(t, h)
	log.awaitEnd(t, nobodys)
}

// A countedBinding counts how often its peer was suspected to be gone.
type countedBinding struct {
	transport.Binding
	suspects atomic.Int32
}

// countSuspects counts for the next connection of a host over SMC-R.
func countSuspects(h *Host) *countedBinding {
	counted := new(countedBinding)
	wrapBindings(h, func(b transport.Binding) transport.Binding {
		counted.Binding = b
		return counted
	})
	return counted
}

func (c *countedBinding) Suspect() {
	c.suspects.Add(1)
	c.Binding.Suspect()
}

// TestSMCRHalfFIN ends one direction of TCP without a flag: the peer is asked whether it is there, more than once as data on
// its way is a sign of life too, but not for ever. The connection goes on.
func TestSMCRHalfFIN(t *testing.T) {
	r := newSMCRRig(t, nil)
	counted := countSuspects(r.server)
	c, s := r.connect()
	defer c.Close()
	defer s.Close()
	checkSMCR(t, c, s)
	if err := tcpOf(c).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	const asked = 5 // after 20 ms, and each time after twice as long
	smctest.Eventually(t, patience, "the peer was asked", func() bool { return int(counted.suspects.Load()) == asked })
	checkExchange(t, c, s)
	if n := int(counted.suspects.Load()); n != asked {
		t.Errorf("asked %d times, want %d", n, asked)
	}
}

// TestSMCRCloseAfterPeer closes a connection after its peer has closed, over a network that has
// stopped: there is no peer to wait for.
func TestSMCRCloseAfterPeer(t *testing.T) {
	var cut atomic.Bool
	drop := func([]byte) bool { return cut.Load() }
	r := newSMCRRig(t, func(c, s *Config) { c.RDMA.Drop, s.RDMA.Drop = drop, drop })
	c, s := r.connect()
	checkSMCR(t, c, s)
	c.Close()
	if _, err := s.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("read = %v, want EOF", err)
	}
	smctest.Eventually(t, patience, "the peer's flag", s.(*conn.SMC).PeerFinished)
	cut.Store(true)
	defer cut.Store(false)
	begun := time.Now()
	s.Close()
	if took := time.Since(begun); took >= 2*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// shareOf makes a socket on a UDP port that several share, steered as an agent has it steered, in the calling thread's
// network namespace.
func shareOf(t *testing.T, p *bpf.Port, addr netip.Addr, slot uint32) *rdma.Share {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "share")
	t.Cleanup(func() { f.Close() })
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.As4(), Port: roce.Port})
	}
	if err == nil {
		err = p.Put(slot, fd, bpf.Owner{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &rdma.Share{Socket: f, First: wire.QPN(slot) << 16, Count: 1 << 16, Key: [16]byte{1}}
}

// TestSMCRKnockShared suspects the peers of two link groups that share a UDP port. The kernel says that nobody has the
// port for a number that no process owns, and for no other: a link that is idle does not end because its peer shares
// the port.
func TestSMCRKnockShared(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load eBPF programs")
	}
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 1)
	cables.Sysctl(1, "net/ipv4/icmp_ratelimit", "0")
	pins := filepath.Join(smctest.MountBPF(t), "gosmc")
	if err := bpf.PreparePins(pins); err != nil {
		t.Fatal(err)
	}
	port, err := bpf.OpenPort(pins, "port-test", [16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	cfg := Config{
		UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"10.99.0.0/16"}, RDMA: rdma.Config{Port: roce.Port},
		Namespace: func(f func()) { cables.Visit(0, f) },
	}
	client := newTestHost(t, cfg)
	const firstSlot, nobodys = 3, 9
	for i := range uint32(2) {
		cfg := cfg
		cfg.Namespace = func(f func()) { cables.Visit(1, f) }
		cables.Run[1](func() { cfg.RDMA.Share = shareOf(t, port, cables.Addr[0][1], firstSlot+i) })
		r := &smcrRig{t: t, client: client, server: newTestHost(t, cfg), local: cables.Addr[0][0], in: cables.Run[0]}
		cables.Run[1](func() { r.l = mustListen(t, r.server, netip.AddrPortFrom(cables.Addr[0][1], 0).String()) })
		c, s := r.connect()
		defer c.Close()
		defer s.Close()
		checkSMCR(t, c, s)
	}
	groups := groupsOf(client)
	if len(groups) != 2 {
		t.Fatalf("%d link groups, want 2", len(groups))
	}
	n := client.rnicOf(cables.Addr[0][0])
	for _, g := range groups {
		peer, qpn := cables.Addr[0][1], wire.QPN(g.Links[0].PeerQPN)
		if n.Refuses(peer, qpn) {
			t.Errorf("the kernel is said to refuse packets for %v of a living process", qpn)
		}
		if none := wire.QPN(nobodys)<<16 | qpn&0xffff; !n.Refuses(peer, none) {
			t.Errorf("the kernel is not said to refuse packets for %v of no process", none)
		}
	}
}
