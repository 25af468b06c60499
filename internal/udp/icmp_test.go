package udp

import (
	"encoding/binary"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forgeTooBig has end 1 send a router's message that the path from from, at end 0, to to is
// narrower than the cable, and waits until the routing table of end 0 has believed it.
func (v *veth) forgeTooBig(t *testing.T, from, to netip.AddrPort, mtu uint16) {
	t.Helper()
	var message []byte
	var dst unix.Sockaddr
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if src := from.Addr(); src.Is4() {
		// Type, code, checksum, 0, MTU; then the headers of the packet that did not fit.
		message = []byte{3, 4, 0, 0, 0, 0}
		message = binary.BigEndian.AppendUint16(message, mtu)
		message = append(message, 0x45, 0, 4, 0, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
		dst = &unix.SockaddrInet4{Addr: src.As4()}
	} else {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
		message = []byte{2, 0, 0, 0, 0, 0}
		message = binary.BigEndian.AppendUint16(message, mtu)
		message = append(message, 0x60, 0, 0, 0, 4, 0, unix.IPPROTO_UDP, 64)
		index, err := v.zone(1)
		if err != nil {
			t.Fatal(err)
		}
		dst = &unix.SockaddrInet6{Addr: src.As16(), ZoneId: index}
	}
	message = append(message, from.Addr().AsSlice()...)
	message = append(message, to.Addr().AsSlice()...)
	message = binary.BigEndian.AppendUint16(message, from.Port())
	message = binary.BigEndian.AppendUint16(message, to.Port())
	message = append(message, 4, 0, 0, 0) // length, checksum
	if family == unix.AF_INET {           // for IPv6 the kernel does it
		binary.BigEndian.PutUint16(message[2:], ^fold(sum(0, message)))
	}
	v.run[1](func() {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			t.Errorf("raw socket: %v", err)
			return
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, message, 0, dst); err != nil {
			t.Errorf("sending ICMP: %v", err)
		}
	})
	for end := time.Now().Add(patience); ; {
		var out []byte
		v.run[0](func() {
			out, _ = exec.Command("ip", "route", "get", to.Addr().WithZone("").String(), "oif", "veth").CombinedOutput()
		})
		if strings.Contains(string(out), "mtu ") {
			return
		}
		if t.Failed() || time.Now().After(end) {
			t.Fatalf("the routing table does not believe the forged message: %s", out)
		}
	}
}

// zone is the index of the cable's interface at an end.
func (v *veth) zone(end int) (index uint32, err error) {
	v.run[end](func() { index, err = new(zones).index("veth") })
	return index, err
}

// TestForgedTooBig has ICMP messages tell of a narrow path, which everybody that knows the ports
// can send. They have no effect: datagrams are sent, and with the identifications that the ICRC
// has.
func TestForgedTooBig(t *testing.T) {
	v := newVeth(t, 1)
	for _, noSegmentation := range []bool{false, true} {
		a := v.listen(t, 0, Config{Local: netip.AddrPortFrom(v.addr[0], 0), NoSegmentation: noSegmentation})
		b := v.listen(t, 1, Config{Local: netip.AddrPortFrom(v.addr[1], 0)})
		v.forgeTooBig(t, a.LocalAddr(), b.LocalAddr(), 600)
		v.identifications(t, a, b, noSegmentation)
	}
	t.Run("IPv6", func(t *testing.T) {
		a := v.listen(t, 0, Config{Local: netip.AddrPortFrom(v.six[0], 0)})
		b := v.listen(t, 1, Config{Local: netip.AddrPortFrom(v.six[1], 0)})
		v.forgeTooBig(t, a.LocalAddr(), b.LocalAddr(), 1280)
		sizes := append(repeat(50, 1400), 17)
		tx := NewTxBatch(0)
		tx.To(b.LocalAddr(), 9)
		for i, size := range sizes {
			put(t, tx, i, size)
		}
		var seal stamp
		if err := a.Send(tx, &seal); err != nil {
			t.Fatal(err)
		}
		if got := a.Stats().SendErrors; got != (SendErrors{}) {
			t.Fatalf("refused: %+v", got)
		}
		check(t, collect(t, b, NewRxBatch(4), len(sizes)), a.LocalAddr(), 9, seal.ids, sizes)
	})
}
