package orphan_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rdma/orphan"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// newResponderRig is newOrphanRig with a responder in place of the device.
func newResponderRig(t *testing.T, run func(func()), addr, far netip.Addr) (*orphanRig, *orphan.Responder) {
	t.Helper()
	r := &orphanRig{t: t, addr: addr, far: far, run: run, socks: make(map[uint16]*udp.Socket)}
	var o *orphan.Responder
	var err error
	run(func() { o, err = orphan.Respond(netip.AddrPortFrom(addr, roce.Port)) })
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_NET_RAW")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	r.naks = r.listen(roce.Port)
	return r, o
}

// TestOrphanResponder is TestOrphan where nobody has the port.
func TestOrphanResponder(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) {
		r, o := newResponderRig(t, here, randomLoopback(), randomLoopback())
		checkOrphan(t, r)
		smctest.Eventually(t, patience, "the answer to be counted", func() bool { return o.Refused() > 0 })
	})
	t.Run("IPv6", func(t *testing.T) {
		c := smctest.NewCables(t, 1)
		c.IP(0, "addr add fd00:4791::1/128 dev lo nodad")
		c.IP(0, "addr add fd00:4791::2/128 dev lo nodad")
		r, _ := newResponderRig(t, c.Run[0], netip.MustParseAddr("fd00:4791::1"), netip.MustParseAddr("fd00:4791::2"))
		checkOrphan(t, r)
	})
	t.Run("link-local", func(t *testing.T) {
		c := smctest.NewCables(t, 1)
		var index int
		var err error
		c.IP(0, "addr add fe80::5:1/64 dev cable0 nodad")
		c.IP(0, "addr add fe80::5:2/64 dev cable0 nodad")
		c.Run[0](func() {
			var ifi *net.Interface
			if ifi, err = net.InterfaceByName("cable0"); err == nil {
				index = ifi.Index
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		zone := strconv.Itoa(index)
		r, _ := newResponderRig(t, c.Run[0], netip.MustParseAddr("fe80::5:1%"+zone), netip.MustParseAddr("fe80::5:2%"+zone))
		checkOrphan(t, r)
	})
}

// TestOrphanResponderRules is TestOrphanRules where nobody has the port.
func TestOrphanResponderRules(t *testing.T) {
	r, _ := newResponderRig(t, here, randomLoopback(), randomLoopback())
	checkOrphanRules(t, r)
}

// TestOrphanResponderOwned has a process, and then a device, take the port that a responder watches.
// Nobody is answered as long as one of them has it.
func TestOrphanResponderOwned(t *testing.T) {
	r, o := newResponderRig(t, here, randomLoopback(), randomLoopback())
	again := func(own, qpn wire.QPN, psn wire.PSN) {
		for range 2 * orphan.Rounds {
			r.send(orphan.SourcePort(own, qpn), roce.SendOnly, qpn, psn, false)
		}
	}
	owned := func(want bool) {
		t.Helper()
		if got, err := o.Owned(); got != want || err != nil {
			t.Errorf("Owned() = %v, %v; want %v", got, err, want)
		}
	}
	owned(false) // the other host's port 4791 is not this one's
	process, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.addr, roce.Port)))
	if err != nil {
		t.Fatalf("the port of the responder: %v", err)
	}
	owned(true)
	again(17, 0x200001, 1)
	smctest.Eventually(t, patience, "an answer that is not given", func() bool { return o.Withheld() > 0 })
	process.Close()
	dev, err := rdma.Open(r.addr, nil)
	if err != nil {
		t.Fatalf("the port of the responder: %v", err)
	}
	owned(true)
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	owned(false)
	batch := udp.NewRxBatch(8)
	smctest.Eventually(t, patience, "an answer", func() bool {
		again(17, 0x200002, 2)
		got, err := r.naks.TryRecv(batch)
		return got || err != nil
	})
	b, _ := batch.Message(0).Segment(0)
	var p roce.Packet
	if err := p.Parse(b); err != nil || p.PSN != 2 {
		t.Errorf("the first answer: %+v, %v; want one to packet 2", p, err)
	}
}

// TestOrphanResponderGarbage sends datagrams that are no packets to a responder, which goes on.
func TestOrphanResponderGarbage(t *testing.T) {
	r, o := newResponderRig(t, here, randomLoopback(), randomLoopback())
	s := r.listen(orphan.MinRxePort)
	batch := udp.NewTxBatch(0)
	for _, n := range []int{0, 1, 11, 12, 15, 16, 17, 1500, 30_000} {
		batch.To(netip.AddrPortFrom(r.addr, roce.Port), 0)
		batch.Next(n)
		batch.Commit(n)
		if err := s.Send(batch, nil); err != nil {
			t.Fatal(err)
		}
		batch.Reset()
	}
	for _, b := range [][]byte{nil, {0x45}, make([]byte, 20), make([]byte, 28)} {
		for _, host := range []unix.Sockaddr{nil, &unix.SockaddrInet4{}, &unix.SockaddrInet6{}, &unix.SockaddrUnix{}} {
			if from, _, _, ok := o.Parse(b, host); ok {
				t.Errorf("parse(%x) is from %v", b, from)
			}
		}
	}
	checkOrphan(t, r)
}

// TestListsOwner reads tables of UDP sockets.
func TestListsOwner(t *testing.T) {
	word := func(a, b, c, d byte) string { // as the kernel prints it
		const digits = "0123456789ABCDEF"
		var text strings.Builder
		v := binary.NativeEndian.Uint32([]byte{a, b, c, d})
		for i := 28; i >= 0; i -= 4 {
			text.WriteByte(digits[v>>i&15])
		}
		return text.String()
	}
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
	line := func(addr, port string) string {
		return head + " 1234: " + addr + ":" + port + " 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 16 2 0 0\n"
	}
	four, six := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fe80::1%3")
	for _, tt := range []struct {
		name, table string
		local       netip.Addr
		want        bool
	}{
		{"nobody", head, four, false},
		{"the address", line(word(192, 0, 2, 7), "12B7"), four, true},
		{"another port", line(word(192, 0, 2, 7), "12B8"), four, false},
		{"another address", line(word(192, 0, 2, 8), "12B7"), four, false},
		{"all addresses", line(word(0, 0, 0, 0), "12B7"), four, true},
		{"all addresses of IPv4, for IPv6", line(word(0, 0, 0, 0), "12B7"), six, false},
		{"all addresses of IPv6", line(strings.Repeat(word(0, 0, 0, 0), 4), "12B7"), four, true},
		{"the address as one of IPv6", line(word(0, 0, 0, 0)+word(0, 0, 0, 0)+word(0, 0, 255, 255)+word(192, 0, 2, 7), "12B7"), four, true},
		{"IPv6", line(word(0xfe, 0x80, 0, 0)+word(0, 0, 0, 0)+word(0, 0, 0, 0)+word(0, 0, 0, 1), "12B7"), six, true},
		{"an address that nobody knows", line("12", "12B7"), four, true},
		{"no digits", line(word(192, 0, 2, 7), "port"), four, false},
	} {
		if got, err := orphan.ListsOwner(strings.NewReader(tt.table), netip.AddrPortFrom(tt.local, roce.Port)); got != tt.want || err != nil {
			t.Errorf("%s: %v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
	if _, err := orphan.ListsOwner(errReader{}, netip.AddrPortFrom(four, roce.Port)); err == nil {
		t.Error("a table that cannot be read has no owner")
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, unix.EIO }
