package udp

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestListenErrors(t *testing.T) {
	addr := randomLoopback()
	owner := listen(t, Config{Local: addr})
	for _, tt := range []struct {
		name  string
		local netip.AddrPort
		errno unix.Errno
		text  string
	}{
		{"nothing", netip.AddrPort{}, unix.EINVAL, "no address"},
		{"busy", owner.LocalAddr(), unix.EADDRINUSE,
			fmt.Sprintf("port %d of %v is in use: another RoCEv2 stack", owner.LocalAddr().Port(), addr.Addr())},
		{"not ours", netip.MustParseAddrPort("192.0.2.1:4791"), unix.EADDRNOTAVAIL, "192.0.2.1 is not an address of this machine"},
	} {
		s, err := Listen(Config{Local: tt.local})
		if !errors.Is(err, tt.errno) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: Listen(%v) = %v, want %v and %q", tt.name, tt.local, err, tt.errno, tt.text)
		}
		if s != nil {
			t.Errorf("%s: a socket besides the error", tt.name)
		}
	}
	if _, err := Listen(Config{Local: netip.MustParseAddrPort("[fe80::1%no-such-if]:9")}); err == nil {
		t.Error("Listen in the zone of no interface succeeds")
	}
	for _, errno := range []unix.Errno{unix.EACCES, unix.ENODEV, unix.EIO} {
		if err := bindError(addr, errno); !errors.Is(err, errno) || !strings.Contains(err.Error(), addr.Addr().String()) {
			t.Errorf("bindError(%v) = %v", errno, err)
		}
	}
}

// TestListenMapped checks that an IPv4 address is one in either form.
func TestListenMapped(t *testing.T) {
	addr := randomLoopback()
	mapped := netip.AddrPortFrom(netip.AddrFrom16(addr.Addr().As16()), 0)
	s := listen(t, Config{Local: mapped})
	if got := s.LocalAddr(); got.Addr() != addr.Addr() || got.Port() == 0 {
		t.Errorf("LocalAddr() = %v, want %v with a port", got, addr.Addr())
	}
	// A mapped destination is one of the socket's family.
	tx := NewTxBatch(0)
	tx.To(netip.AddrPortFrom(mapped.Addr(), s.LocalAddr().Port()), 0)
	put(t, tx, 0, 40)
	if err := s.Send(tx, nil); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, s, NewRxBatch(1), 1); got[0].from != s.LocalAddr() {
		t.Errorf("received from %v, want %v", got[0].from, s.LocalAddr())
	}
}

func TestCapabilities(t *testing.T) {
	for family, addr := range families(t) {
		combinations(func(name string, noSegmentation, noCoalescing bool) {
			s := listen(t, Config{Local: addr, NoSegmentation: noSegmentation, NoCoalescing: noCoalescing,
				ReadBuffer: 100_000, WriteBuffer: 50_000})
			c := s.Capabilities()
			if kernelAtLeast(5, 12) && (c.Segmentation == noSegmentation || c.Coalescing == noCoalescing) || c.Headers {
				t.Errorf("%s: Capabilities() with %s = %+v", family, name, c)
			}
			if c.ReadBuffer < 100_000 || c.WriteBuffer < 50_000 {
				t.Errorf("%s: buffers of %d and %d bytes", family, c.ReadBuffer, c.WriteBuffer)
			}
		})
	}
	if s := maybeHeaders(t, randomLoopback()); s != nil && !s.Capabilities().Headers {
		t.Error("HeadersAlways gives no headers and no error")
	}
}

func TestOptions(t *testing.T) {
	for family, addr := range families(t) {
		s := listen(t, Config{Local: addr})
		level, option, want := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
		if family == "v6" {
			level, option, want = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
		}
		err := s.writer.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), level, option); err != nil || got != want {
				t.Errorf("%s: MTU discovery is %d, %v, want %d", family, got, err, want)
			}
			if got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR); err != nil || got != 0 {
				t.Errorf("%s: SO_REUSEADDR is %d, %v", family, got, err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestClosed(t *testing.T) {
	for _, cfg := range []Config{{}, {Headers: HeadersAlways}} {
		cfg.Local = randomLoopback()
		s, err := Listen(cfg)
		if err != nil {
			t.Logf("without packets: %v", err)
			continue
		}
		tx, rx := NewTxBatch(0), NewRxBatch(1)
		tx.To(s.LocalAddr(), 0)
		put(t, tx, 0, 10)
		for range 2 {
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		_, tryErr := s.TryRecv(rx)
		for name, err := range map[string]error{"Send": s.Send(tx, nil), "Recv": s.Recv(rx), "TryRecv": tryErr,
			"SetReadDeadline": s.SetReadDeadline(time.Time{})} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s after Close = %v, want net.ErrClosed", name, err)
			}
		}
		if st := s.Stats(); st.Sent.Datagrams != 0 || st.KernelDrops != 0 {
			t.Errorf("Stats() after Close = %+v", st)
		}
		// The port is free again.
		cfg.Local = s.LocalAddr()
		listen(t, cfg)
	}
}

// TestDescriptors checks that neither success nor failure leaves a descriptor.
func TestDescriptors(t *testing.T) {
	addr := randomLoopback()
	owner := listen(t, Config{Local: addr})
	before := descriptors(t)
	for range 20 {
		for _, mode := range []HeaderMode{HeadersNever, HeadersAlways} {
			if s, err := Listen(Config{Local: addr, Headers: mode}); err == nil {
				s.Close()
			}
			if _, err := Listen(Config{Local: owner.LocalAddr(), Headers: mode}); err == nil {
				t.Fatal("Listen on a busy port succeeds")
			}
		}
	}
	if after := descriptors(t); !slices.Equal(after, before) {
		t.Errorf("descriptors before: %v\nafter: %v", before, after)
	}
}

func descriptors(t *testing.T) (open []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			open = append(open, target)
		}
	}
	return open
}

func TestParseRelease(t *testing.T) {
	for release, want := range map[string][2]int{
		"6.18.44": {6, 18}, "5.4-generic": {5, 4}, "7": {7, 0}, "": {0, 0}, "x.y": {0, 0}, "6.x": {6, 0}, "6..1": {6, 0},
		"99999999999999999999.1": {math.MaxInt, 1},
	} {
		if got := parseRelease(release); got != want {
			t.Errorf("parseRelease(%q) = %v, want %v", release, got, want)
		}
	}
	if !kernelAtLeast(2, 6) || kernelAtLeast(1000, 0) {
		t.Errorf("kernelAtLeast does not know %v", kernel())
	}
}

func TestZones(t *testing.T) {
	var z zones
	if index, err := z.index(""); index != 0 || err != nil {
		t.Errorf("index of no zone = %d, %v", index, err)
	}
	if index, err := z.index("4711"); index != 4711 || err != nil {
		t.Errorf(`index("4711") = %d, %v`, index, err)
	}
	for _, name := range []string{"no-such-if", "0", "-1", "99999999999999999999"} {
		if index, err := z.index(name); err == nil {
			t.Errorf("index(%q) = %d, want an error", name, index)
		}
	}
	ip := netip.MustParseAddr("fe80::1")
	if got := z.with(ip, 0); got != ip {
		t.Errorf("with(%v, 0) = %v", ip, got)
	}
	if got := z.with(ip, 4712); got != ip.WithZone("4712") { // no such interface
		t.Errorf("with(%v, 4712) = %v", ip, got)
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skipf("needs lo: %v", err)
	}
	for range 2 {
		if got := z.with(ip, uint32(lo.Index)); got != ip.WithZone("lo") {
			t.Errorf("with(%v, %d) = %v, want zone lo", ip, lo.Index, got)
		}
		if index, err := z.index("lo"); index != uint32(lo.Index) || err != nil {
			t.Errorf(`index("lo") = %d, %v, want %d`, index, err, lo.Index)
		}
	}
	z.forget(ip.WithZone("lo"))
	if known := *z.known.Load(); len(known) == 0 || known[0].name != "lo" {
		t.Errorf("forget leaves %v, want lo", known)
	}
	for i := range uint32(3 * maxZones) {
		z.prefer(i+1, fmt.Sprint("if", i))
		if n := len(*z.known.Load()); n > maxZones {
			t.Fatalf("%d zones are kept, want at most %d", n, maxZones)
		}
	}
}
