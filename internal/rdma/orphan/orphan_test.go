package orphan_test

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rdma/orphan"
	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// patience is how long a test waits for an answer.
const patience = 20 * time.Second

func here(f func()) { f() }

func randomLoopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(rand.N(250) + 2), byte(rand.N(250) + 2), byte(rand.N(250) + 2)})
}

// onlyShare makes the only share of an address's port.
func onlyShare(t *testing.T, addr netip.Addr) *rdma.Share {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "share")
	t.Cleanup(func() { f.Close() })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.As4(), Port: roce.Port}); err != nil {
		t.Fatal(err)
	}
	return &rdma.Share{Socket: f, First: 1 << 16, Count: 1 << 16, Key: [16]byte{7, 7}}
}

// TestSourcePort has the ports that Linux 6.12 rdma_rxe sends from: wire/roce/testdata.
func TestSourcePort(t *testing.T) {
	for _, tt := range []struct {
		own, remote wire.QPN
		want        uint16
	}{{17, 17, 49441}, {18, 18, 49476}, {19, 19, 49513}} {
		if got := orphan.SourcePort(tt.own, tt.remote); got != tt.want {
			t.Errorf("sourcePort(%v, %v) = %d, want %d", tt.own, tt.remote, got, tt.want)
		}
	}
}

// An orphanRig is a device, and a host that plays soft-RoCE, with queue pairs that send to some that are gone.
type orphanRig struct {
	t     *testing.T
	dev   *rdma.Device // nil with a responder
	addr  netip.Addr   // of the device or the responder
	far   netip.Addr
	run   func(func()) // in the network namespace
	naks  *udp.Socket  // port 4791 of the host
	socks map[uint16]*udp.Socket
}

func newOrphanRig(t *testing.T, shared bool) *orphanRig {
	r := &orphanRig{t: t, addr: randomLoopback(), far: randomLoopback(), run: here, socks: make(map[uint16]*udp.Socket)}
	var err error
	cfg := rdma.Config{}
	if shared {
		cfg.Share = onlyShare(t, r.addr) // packets for other numbers come to it
	}
	if r.dev, err = rdma.Open(r.addr, &cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.dev.Close() })
	r.naks = r.listen(roce.Port)
	return r
}

func (r *orphanRig) listen(port uint16) *udp.Socket {
	r.t.Helper()
	if s := r.socks[port]; s != nil {
		return s
	}
	var s *udp.Socket
	var err error
	r.run(func() { s, err = udp.Listen(udp.Config{Local: netip.AddrPortFrom(r.far, port)}) })
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	s.SetReadDeadline(time.Now().Add(patience))
	r.socks[port] = s
	return s
}

// send sends a packet from a port. damaged spoils its ICRC.
func (r *orphanRig) send(port uint16, op roce.Opcode, qpn wire.QPN, psn wire.PSN, damaged bool) {
	r.t.Helper()
	to := netip.AddrPortFrom(r.addr, roce.Port)
	p := roce.Packet{BTH: roce.BTH{Opcode: op, PKey: roce.DefaultPKey, DestQPN: qpn, PSN: psn}, Payload: []byte{1, 2, 3, 4}}
	if op == roce.Acknowledge {
		p.Payload = nil
	}
	b := append(p.Append(nil), 0, 0, 0, 0)
	flow := roce.NewFlow(netip.AddrPortFrom(r.far, port), to)
	batch := udp.NewTxBatch(0)
	batch.To(to, 0)
	flow.Seal(0, b)
	if damaged {
		b[len(b)-1] ^= 1
		b[len(b)-2] ^= 1
		b[len(b)-3] ^= 1
	}
	copy(batch.Next(len(b)), b)
	batch.Commit(len(b))
	if err := r.listen(port).Send(batch, nil); err != nil {
		r.t.Fatal(err)
	}
}

// TestOrphan has a queue pair of soft-RoCE send again and again to one that is gone: it gets a NAK for its oldest packet.
func TestOrphan(t *testing.T) {
	t.Run("alone", func(t *testing.T) { checkOrphan(t, newOrphanRig(t, false)) })
	t.Run("shared", func(t *testing.T) {
		r := newOrphanRig(t, true)
		checkOrphan(t, r)
		if st := r.dev.Stats(); st.HandedOn == 0 || st.HandedOver == 0 {
			t.Errorf("%d packets were handed on, and %d taken", st.HandedOn, st.HandedOver)
		}
	})
}

func checkOrphan(t *testing.T, r *orphanRig) {
	t.Helper()
	const own, dead, oldest = 1717, 0x654321, 0xfffffe // the numbers of packets go round
	port := orphan.SourcePort(own, dead)
	found, others := false, 0
	send := func() {
		others = 0
		for range orphan.Rounds {
			for i := range 4 {
				r.send(port, roce.SendOnly, dead, wire.PSN(oldest).Add(i), false)
			}
		}
		r.naks.SetReadDeadline(time.Now().Add(time.Second))
	}
	send()
	begun := time.Now()
	for batch := udp.NewRxBatch(8); !found; {
		err := r.naks.Recv(batch)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Since(begun) < patience {
			send() // as rxe does without end: on a busy machine packets are lost
			continue
		}
		if err != nil {
			t.Fatalf("%v; %d NAKs to other numbers", err, others)
		}
		for i := range batch.Len() {
			m := batch.Message(i)
			flow := roce.NewFlow(m.From, netip.AddrPortFrom(r.far, roce.Port))
			for k := range m.Segments() {
				b, _ := m.Segment(k)
				var p roce.Packet
				if err := p.Parse(b); err != nil {
					t.Fatal(err)
				}
				if _, v := flow.Verify(uint16(k), b); v != roce.Exact {
					t.Errorf("segment %d: verdict %v of its ICRC", k, v)
				}
				if p.Opcode != roce.Acknowledge || p.AETH.Syndrome != roce.NakRemoteOperation || p.PSN != oldest || orphan.SourcePort(p.DestQPN, dead) != port {
					t.Fatalf("packet %+v", p)
				}
				if found = found || p.DestQPN == own; !found {
					others++
				}
			}
		}
	}
	if others > 256 {
		t.Errorf("%d NAKs to other numbers", others)
	}
}

// TestOrphanRules sends packets that are not to be answered, often enough, and then one that is.
func TestOrphanRules(t *testing.T) { checkOrphanRules(t, newOrphanRig(t, false)) }

func checkOrphanRules(t *testing.T, r *orphanRig) {
	t.Helper()
	const own = 17
	for range 2 * orphan.Rounds {
		r.send(1000+orphan.MinRxePort/2, roce.SendOnly, 0x200001, 1, false)            // of no soft-RoCE
		r.send(orphan.SourcePort(own, 0x200002), roce.SendOnly, 0x200002, 2, true)     // damaged
		r.send(orphan.SourcePort(own, 0x200003), roce.Acknowledge, 0x200003, 3, false) // no request
	}
	for i := range 2 * orphan.Rounds { // new packets: their queue pair may be there again
		r.send(orphan.SourcePort(own, 0x200005), roce.SendOnly, 0x200005, wire.PSN(5+i), false)
	}
	for range orphan.Rounds {
		r.send(orphan.SourcePort(own, 0x200006), roce.SendOnly, 0x200006, 77, false)
	}
	batch := udp.NewRxBatch(8)
	if err := r.naks.Recv(batch); err != nil {
		t.Fatal(err)
	}
	b, _ := batch.Message(0).Segment(0)
	var p roce.Packet
	if err := p.Parse(b); err != nil || p.PSN != 77 {
		t.Errorf("the first answer: %+v, %v; want one to packet 77", p, err)
	}
}

// TestOrphanForeign has senders that are no soft-RoCE of another machine take no place in the list, nor
// the time in which one answer is sent: no number of a queue pair fits to their port.
func TestOrphanForeign(t *testing.T) {
	local, peer := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, tt := range []struct {
		from    netip.AddrPort
		op      roce.Opcode
		refused bool
	}{
		{netip.AddrPortFrom(peer, orphan.MinRxePort), roce.SendOnly, true},
		{netip.AddrPortFrom(peer, orphan.MinRxePort-1), roce.SendOnly, false},
		{netip.AddrPortFrom(local, orphan.MinRxePort), roce.SendOnly, false},
		{netip.AddrPortFrom(peer, orphan.MinRxePort), roce.Acknowledge, false},
	} {
		var l orphan.List
		var p roce.Packet
		p.Opcode, p.DestQPN, p.PSN = tt.op, 0x200001, 1
		refused := false
		for range orphan.Rounds {
			refused = l.Look(time.Second, tt.from, local, &p, func() bool { return true }) != nil || refused
		}
		if known := l.Len() > 0; refused != tt.refused || known != tt.refused {
			t.Errorf("%v from %v: refused %t, known %t; want %t", tt.op, tt.from, refused, known, tt.refused)
		}
	}
}

// TestOrphanDamaged has one packet arrive damaged, with a sequence number that was not sent: the orphan is answered all the same.
func TestOrphanDamaged(t *testing.T) {
	r := newOrphanRig(t, false)
	const own, dead = 17, 0x200007
	port := orphan.SourcePort(own, dead)
	r.send(port, roce.SendOnly, dead, 10, false)
	r.send(port, roce.SendOnly, dead, 1, true)
	for range orphan.Rounds {
		r.send(port, roce.SendOnly, dead, 10, false)
	}
	batch := udp.NewRxBatch(8)
	if err := r.naks.Recv(batch); err != nil {
		t.Fatal(err)
	}
	b, _ := batch.Message(0).Segment(0)
	var p roce.Packet
	if err := p.Parse(b); err != nil || p.PSN != 10 {
		t.Errorf("the answer: %+v, %v; want one to packet 10", p, err)
	}
}
