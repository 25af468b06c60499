package bpf

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/smctest"
)

// A foreignHost is at the other end of a tunnel, and acts as the test says.
type foreignHost struct {
	t    *testing.T
	fd   int
	addr netip.Addr
	port uint16 // of its next connection
}

// newForeignHost makes a tunnel to 192.0.2.2 in the namespace, which has 192.0.2.1.
func newForeignHost(t *testing.T, p *place) *foreignHost {
	t.Helper()
	return &foreignHost{t: t, fd: p.tunnel(t, "192.0.2.1"), addr: netip.MustParseAddr("192.0.2.2"), port: 40000}
}

// tunnel makes an interface with an address of 192.0.2.0/24 in the namespace. Its packets are read from, and written to, the
// descriptor.
func (p *place) tunnel(t *testing.T, addr string) int {
	t.Helper()
	fd, err := -1, error(nil)
	p.run(func() { fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) })
	if err != nil {
		t.Skipf("needs a tunnel: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	p.run(func() {
		var r *unix.Ifreq
		if r, err = unix.NewIfreq("tun0"); err != nil {
			return
		}
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
			return
		}
		var sock int
		if sock, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		defer unix.Close(sock)
		for _, a := range []struct {
			request uint
			addr    string
		}{{unix.SIOCSIFADDR, addr}, {unix.SIOCSIFNETMASK, "255.255.255.0"}} {
			if r, err = unix.NewIfreq("tun0"); err != nil {
				return
			}
			if err = r.SetInet4Addr(net.ParseIP(a.addr).To4()); err != nil {
				return
			}
			if err = unix.IoctlIfreq(sock, a.request, r); err != nil {
				return
			}
		}
		err = smctest.Up("tun0")
	})
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// send sends a segment to port to of the machine. RFC 9293 §3.1, RFC 791 §3.1.
func (h *foreignHost) send(to uint16, seq, ack uint32, flags byte, options []byte) {
	h.t.Helper()
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	packet := segmentFrom(netip.AddrPortFrom(h.addr, h.port), netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), to), seq, ack, flags, options)
	if _, err := unix.Write(h.fd, packet); err != nil {
		h.t.Fatalf("tunnel: %v", err)
	}
}

// segmentFrom returns a packet of IPv4 with a segment. The length of options is a multiple of 4.
func segmentFrom(from, to netip.AddrPort, seq, ack uint32, flags byte, options []byte) []byte {
	tcp := make([]byte, 20, 60)
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = byte(5+len(options)/4)<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	tcp = append(tcp, options...)
	src, dst := from.Addr().As4(), to.Addr().As4()
	pseudo := append(append(append([]byte{}, src[:]...), dst[:]...), 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	ip := []byte{0x45, 0, 0, byte(20 + len(tcp)), 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}
	ip = append(append(ip, src[:]...), dst[:]...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return append(ip, tcp...)
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// receive waits for a segment to the host's port, and returns its sequence number too.
func (h *foreignHost) receive() (s segment, seq uint32) {
	h.t.Helper()
	b := make([]byte, 65536)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 1000); n == 0 || err == unix.EINTR {
			continue
		}
		n, err := unix.Read(h.fd, b)
		if err != nil {
			h.t.Fatalf("tunnel: %v", err)
		}
		if s, ok := parseSegment(b[:n]); ok && s.to == h.port {
			return s, binary.BigEndian.Uint32(b[int(b[0]&15)*4+4:])
		}
	}
	h.t.Fatal("no segment has come")
	return s, 0
}

const smcOption = "fe06e2d4c3d9"

// TestForeignSYN has a foreign host connect with SYNs of all kinds: those that have the option and
// none that excludes it are answered with it, and the server knows its answer.
func TestForeignSYN(t *testing.T) {
	p := newPlace(t)
	h := newForeignHost(t, p)
	const mss = "020405b4"
	for _, tt := range []struct {
		name, options string
		synack        bool
		reason        option.Reason
	}{
		{"as Linux has it", mss + "0402 080a0000000100000000 01 030307 0101" + smcOption, true, 0},
		{"first", smcOption + mss, true, 0},
		{"alone", smcOption, true, 0},
		{"longer", mss + "fe08e2d4c3d90000", true, 0},
		{"behind another experiment", mss + "fe04abcd" + smcOption, true, 0},
		{"odd length", mss + "fe07e2d4c3d900", false, option.PeerSilent},
		{"none", mss, false, option.PeerSilent},
		{"no options", "", false, option.PeerSilent},
		{"other experiment", mss + "fe06e2d4c3c4", false, option.PeerSilent},
		{"other kind", mss + "fd06e2d4c3d9", false, option.PeerSilent},
		{"cut off", "fe05e2d4c3", false, option.PeerSilent},
		{"behind the end", "00" + smcOption, false, option.PeerSilent},
		{"Fast Open cookie", mss + "220a0011223344556677" + smcOption, false, option.NotSent},
		{"Fast Open request", mss + "2202" + smcOption, false, option.NotSent},
		{"Fast Open experiment", mss + "fe04f989" + smcOption, false, option.NotSent},
		{"multipath TCP", mss + "1e0c00810011223344556677" + smcOption, false, option.NotSent},
		{"AO", mss + "1d10000000112233445566778899aabb" + smcOption, false, option.NotSent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := p.listen(t, "192.0.2.1:0", true)
			port := uint16(l.Addr().(*net.TCPAddr).Port)
			options, err := hex.DecodeString(strings.ReplaceAll(tt.options, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			h.port++
			h.send(port, 1000, 0, flagSYN, options)
			s, seq := h.receive()
			if s.flags != flagSYN|flagACK || s.smc() != tt.synack {
				t.Fatalf("SYN with %s: answered with flags %#x, options %x; want the option: %v", tt.options, s.flags, s.options, tt.synack)
			}
			h.send(port, 1001, seq+1, flagACK, nil)
			c, err := l.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			want := fate{option.Alone, tt.reason}
			if tt.synack {
				want = both
			}
			if got := fateOf(t, c); got != want {
				t.Errorf("server: %v %v, want %v %v", got.state, got.reason, want.state, want.reason)
			}
		})
	}
}

// TestSYNACKAgain has SYN-ACKs be lost: a SYN-ACK that is sent again has the option too, also after
// the programs were exchanged.
func TestSYNACKAgain(t *testing.T) {
	p := newPlace(t)
	h := newForeignHost(t, p)
	l := p.listen(t, "192.0.2.1:0", true)
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	options, _ := hex.DecodeString("020405b4" + smcOption)
	h.send(port, 1000, 0, flagSYN, options)
	s, seq := h.receive()
	for i := range 2 {
		if s.flags != flagSYN|flagACK || !s.smc() {
			t.Fatalf("SYN-ACK %d: flags %#x, options %x", i, s.flags, s.options)
		}
		p.attach(t)
		s, _ = h.receive() // after a second, two ...
	}
	if !s.smc() {
		t.Errorf("last SYN-ACK: options %x", s.options)
	}
	h.send(port, 1001, seq+1, flagACK, nil)
	c, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := fateOf(t, c); got != both {
		t.Errorf("server: %v", got)
	}
}
