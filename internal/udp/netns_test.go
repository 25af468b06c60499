package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

// A veth is two network namespaces, joined by a cable with an interface called veth at either end.
// They are gone with the test.
type veth struct {
	run  [2]func(f func()) // calls f on a thread that is in the namespace
	addr [2]netip.Addr     // IPv4
	six  [2]netip.Addr     // link-local IPv6, with zone
}

// newVeth makes one, with the given maximum of segments that a super-packet may have on the cable.
// The test is skipped where that is not permitted.
func newVeth(t testing.TB, gsoMaxSegs int) *veth {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("needs iproute2: %v", err)
	}
	v := &veth{addr: [2]netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("10.99.0.2")}}
	var ns [2]string
	for i := range v.run {
		v.run[i], ns[i] = smctest.EnterNamespace(t)
	}
	ip := func(i int, args string) {
		t.Helper()
		v.run[i](func() {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", args, err, out)
			}
		})
	}
	ip(0, "link add veth type veth peer name peer")
	ip(0, "link set peer netns "+ns[1])
	ip(1, "link set peer name veth")
	for i, addr := range v.addr {
		ip(i, "link set lo up")
		six := netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: byte(i + 1)})
		v.six[i] = six.WithZone("veth")
		ip(i, fmt.Sprintf("link set veth addrgenmode none mtu 1500 gso_max_segs %d", gsoMaxSegs))
		ip(i, fmt.Sprintf("addr add %v/24 dev veth", addr))
		ip(i, fmt.Sprintf("addr add %v/64 dev veth nodad", six))
		ip(i, "link set veth up")
	}
	if t.Failed() {
		t.FailNow()
	}
	for _, run := range v.run {
		smctest.AwaitCarrier(t, run, "veth")
	}
	return v
}

// listen is listen at one end.
func (v *veth) listen(t testing.TB, end int, cfg Config) (s *Socket) {
	t.Helper()
	var err error
	v.run[end](func() { s, err = Listen(cfg) })
	if err != nil {
		t.Fatalf("Listen(%v): %v", cfg.Local, err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return s
}

// sniff opens a packet socket at one end that sees IPv4 frames as the interface gets them.
func (v *veth) sniff(t testing.TB, end int) (fd int) {
	t.Helper()
	var err error
	v.run[end](func() {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(hton(unix.ETH_P_IP)))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	timeout := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	return fd
}

func hton(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// TestIdentifications captures super-packets and plain datagrams on a link that needs segments. The
// identification of each packet equals the id that Seal was given, which it has written into the
// payload.
func TestIdentifications(t *testing.T) {
	v := newVeth(t, 1)
	for _, noSegmentation := range []bool{false, true} {
		a := v.listen(t, 0, Config{Local: netip.AddrPortFrom(v.addr[0], 0), NoSegmentation: noSegmentation})
		b := v.listen(t, 1, Config{Local: netip.AddrPortFrom(v.addr[1], 0)})
		for range 2 { // the second has the same identifications
			v.identifications(t, a, b, noSegmentation)
		}
		if a.Stats().SegmentationRefused != 0 || a.Capabilities().Segmentation == noSegmentation {
			t.Errorf("segmentation %v: %+v", !noSegmentation, a.Stats())
		}
	}
}

// identifications sends from a, at end 0, to b, looks at the headers, and receives.
func (v *veth) identifications(t *testing.T, a, b *Socket, noSegmentation bool) {
	t.Helper()
	fd := v.sniff(t, 1)
	tx := NewTxBatch(0)
	tx.To(b.LocalAddr(), 5)
	sizes := append(repeat(70, 1000), 1056, 1040, 1040, 20, 20, 300, 400, 10)
	for i, size := range sizes {
		put(t, tx, i, size)
	}
	var seal stamp
	if err := a.Send(tx, &seal); err != nil {
		t.Fatal(err)
	}
	if got := slices.Max(seal.ids); noSegmentation && got != 0 || !noSegmentation && got != MaxSegments-1 {
		t.Errorf("segmentation %v: Seal was told identifications up to %d", !noSegmentation, got)
	}
	if got := a.Stats().SendErrors; got != (SendErrors{}) {
		t.Fatalf("segmentation %v: refused: %+v", !noSegmentation, got)
	}
	buf := make([]byte, 70_000)
	for i, size := range sizes {
		n, err := unix.Read(fd, buf)
		for err == unix.EINTR { // with a time limit the kernel does not go on by itself
			n, err = unix.Read(fd, buf)
		}
		if err != nil {
			t.Fatalf("capturing datagram %d: %v", i, err)
		}
		packet := buf[:n]
		if n < 32 || n != size+28 || packet[0] != 0x45 {
			t.Fatalf("captured %d bytes, %x, want %d", n, packet[:min(n, 32)], size+28)
		}
		id, flags := binary.BigEndian.Uint16(packet[4:]), binary.BigEndian.Uint16(packet[6:])
		if sealed := binary.BigEndian.Uint16(packet[28:]); id != seal.ids[i] || sealed != id || flags != 0x4000 {
			t.Errorf("segmentation %v: datagram %d has identification %d, flags %#x; Seal was told %d and wrote %d",
				!noSegmentation, i, id, flags, seal.ids[i], sealed)
		}
	}
	check(t, collect(t, b, NewRxBatch(8), len(sizes)), a.LocalAddr(), 5, seal.ids, sizes)
}

// TestVeth transfers over a cable, with super-packets whole and taken apart, both families, with
// headers and without.
func TestVeth(t *testing.T) {
	for _, gsoMaxSegs := range []int{65535, 1} {
		v := newVeth(t, gsoMaxSegs)
		for _, tt := range []struct {
			name string
			addr [2]netip.Addr
			cfg  Config
		}{
			{"v4", v.addr, Config{}},
			{"v4 plain", v.addr, Config{NoCoalescing: true}},
			{"v4 headers", v.addr, Config{Headers: HeadersAlways}},
			{"link-local v6", v.six, Config{}},
			{"link-local v6 headers", v.six, Config{Headers: HeadersAlways}},
		} {
			t.Run(fmt.Sprintf("%s, %d segments", tt.name, gsoMaxSegs), func(t *testing.T) {
				tt.cfg.Local = netip.AddrPortFrom(tt.addr[1], 0)
				a := v.listen(t, 0, Config{Local: netip.AddrPortFrom(tt.addr[0], 0)})
				b := v.listen(t, 1, tt.cfg)
				if got, want := b.Capabilities().Headers, tt.cfg.Headers == HeadersAlways && tt.addr[1].Is4(); got != want {
					t.Fatalf("Capabilities().Headers = %v, want %v", got, want)
				}
				sizes := append(repeat(100, 1000), 17, 1400, 0, 3)
				tx := NewTxBatch(0)
				tx.To(b.LocalAddr(), 9)
				for i, size := range sizes {
					put(t, tx, i, size)
				}
				var seal stamp
				if err := a.Send(tx, &seal); err != nil {
					t.Fatal(err)
				}
				got := collect(t, b, NewRxBatch(4), len(sizes))
				check(t, got, a.LocalAddr(), 9, seal.ids, sizes)

				// An address that was received from can be sent to.
				tx.Reset()
				tx.To(got[0].from, 1)
				put(t, tx, 0, 1)
				if err := b.Send(tx, nil); err != nil {
					t.Fatal(err)
				}
				collect(t, a, NewRxBatch(1), 1)

				// Larger than the path: an error of that message alone, and not one of segmentation.
				tx.Reset()
				tx.To(b.LocalAddr(), 2)
				for i, size := range []int{1473, 1473, 50, 50} {
					put(t, tx, i, size)
				}
				if err := a.Send(tx, nil); err != nil {
					t.Fatal(err)
				}
				st := a.Stats()
				if st.SendErrors.TooBig == 0 || !a.Capabilities().Segmentation {
					t.Errorf("beyond the MTU: %+v, %+v", st.SendErrors, a.Capabilities())
				}
				collect(t, b, NewRxBatch(4), 4-int(st.SendErrors.TooBig))
			})
		}
	}
}

// TestUnreachable sends to a host that does not exist, and where there is no route.
func TestUnreachable(t *testing.T) {
	v := newVeth(t, 65535)
	a := v.listen(t, 0, Config{Local: netip.AddrPortFrom(v.addr[0], 0)})
	tx := NewTxBatch(0)
	tx.To(netip.MustParseAddrPort("192.0.2.1:9"), 0)
	put(t, tx, 0, 10)
	put(t, tx, 1, 10)
	if err := a.Send(tx, nil); err != nil {
		t.Fatal(err)
	}
	if st := a.Stats(); st.SendErrors != (SendErrors{Unreachable: 2}) {
		t.Errorf("without a route: %+v, want 2 unreachable", st.SendErrors)
	}
}

// TestForgedPackets puts frames on the cable that nobody must see, each before one that is good.
func TestForgedPackets(t *testing.T) {
	v := newVeth(t, 65535)
	b := v.listen(t, 1, Config{Local: netip.AddrPortFrom(v.addr[1], 0), Headers: HeadersAlways})
	src, dst := netip.AddrPortFrom(v.addr[0], 1234), b.LocalAddr()
	to, ifindex := v.cable(t)
	fd := v.sniff(t, 0)
	inject := func(packet []byte, kind byte) {
		t.Helper()
		sa := &unix.SockaddrLinklayer{Protocol: hton(unix.ETH_P_IP), Ifindex: ifindex, Halen: 6}
		copy(sa.Addr[:], to)
		if kind == unix.PACKET_OTHERHOST {
			sa.Addr[5] ^= 1
		}
		if err := unix.Sendto(fd, packet, 0, sa); err != nil {
			t.Fatal(err)
		}
	}
	payload := make([]byte, 40)
	change := func(at int, to ...byte) []byte {
		p := ipv4Packet(src, dst, 1, payload)
		copy(p[at:], to)
		fixSums(p)
		return p
	}
	options := slices.Concat([]byte{0x46}, change(3, 72)[1:20], []byte{1, 1, 1, 1}, change(0)[20:])
	fixSums(options)
	noSum := change(0)
	noSum[26], noSum[27] = 0, 0
	badSum := change(0)
	badSum[27] ^= 1
	for i, tt := range []struct {
		name      string
		packet    []byte
		kind      byte
		delivered int
		count     func(*Stats) uint64 // nil: the filter drops it
	}{
		{"good", change(0), unix.PACKET_HOST, 1, func(s *Stats) uint64 { return s.Received.Datagrams }},
		{"without UDP checksum", noSum, unix.PACKET_HOST, 1, func(s *Stats) uint64 { return s.Received.Datagrams }},
		{"wrong UDP checksum", badSum, unix.PACKET_HOST, 0, func(s *Stats) uint64 { return s.Malformed }},
		{"options", options, unix.PACKET_HOST, 0, func(s *Stats) uint64 { return s.Options }},
		{"UDP length", change(25, 47), unix.PACKET_HOST, 0, func(s *Stats) uint64 { return s.Malformed }},
		{"from loopback", change(12, 127, 0, 0, 1), unix.PACKET_HOST, 0, func(s *Stats) uint64 { return s.Malformed }},
		{"from itself, by its header", change(12, 127, 9, 9, 9), unix.PACKET_HOST, 0, func(s *Stats) uint64 { return s.Malformed }},
		{"from a group", change(12, 224, 0, 0, 1), unix.PACKET_HOST, 0, func(s *Stats) uint64 { return s.Malformed }},
		{"first fragment", change(6, 0x20), unix.PACKET_HOST, 0, nil},
		{"fragment", change(6, 0, 8), unix.PACKET_HOST, 0, nil},
		{"TCP", change(9, 6), unix.PACKET_HOST, 0, nil},
		{"other address", change(19, 77), unix.PACKET_HOST, 0, nil},
		{"loopback address", change(16, 127, 0, 0, 1), unix.PACKET_HOST, 0, nil},
		{"other port", change(22, 0, 9), unix.PACKET_HOST, 0, nil},
		{"for another host", change(0), unix.PACKET_OTHERHOST, 0, nil},
		{"IPv6 by its version", change(0, 0x65), unix.PACKET_HOST, 0, nil},
		{"no UDP header", change(0)[:20], unix.PACKET_HOST, 0, nil},
	} {
		before := b.Stats()
		inject(tt.packet, tt.kind)
		inject(ipv4Packet(src, dst, uint16(1000+i), payload), unix.PACKET_HOST)
		got := collect(t, b, NewRxBatch(2), tt.delivered+1)
		last := got[len(got)-1]
		if last.id != uint16(1000+i) || last.from != src || len(last.data) != len(payload) {
			t.Errorf("%s: the good packet behind it has identification %d, %d bytes from %v", tt.name, last.id, len(last.data), last.from)
		}
		after := b.Stats()
		if tt.count != nil {
			if got, want := tt.count(&after)-tt.count(&before), uint64(1+tt.delivered); got != want {
				t.Errorf("%s: counted %d times, want %d", tt.name, got, want)
			}
		} else if after.Malformed != before.Malformed || after.Options != before.Options {
			t.Errorf("%s: has come past the filter", tt.name)
		}
	}
}

// cable is the hardware address of the far end of the cable and the index of its near end.
func (v *veth) cable(t testing.TB) (hardware []byte, ifindex int) {
	t.Helper()
	var near, far *net.Interface
	var errs [2]error
	v.run[0](func() { near, errs[0] = net.InterfaceByName("veth") })
	v.run[1](func() { far, errs[1] = net.InterfaceByName("veth") })
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return far.HardwareAddr, near.Index
}
