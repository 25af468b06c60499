package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// send sends datagrams of the given sizes from a to b and returns the identifications that Seal was
// given.
func send(t testing.TB, a, b *Socket, sizes ...int) []uint16 {
	t.Helper()
	tx := NewTxBatch(256 << 10)
	tx.To(b.LocalAddr(), 0)
	for i, size := range sizes {
		put(t, tx, i, size)
	}
	var seal stamp
	if err := a.Send(tx, &seal); err != nil {
		t.Fatalf("Send: %v", err)
	}
	return seal.ids
}

func TestTryRecv(t *testing.T) {
	addr := randomLoopback()
	a, b := listen(t, Config{Local: addr}), listen(t, Config{Local: addr})
	rx := NewRxBatch(2)
	if ok, err := b.TryRecv(rx); ok || err != nil || rx.Len() != 0 {
		t.Errorf("TryRecv of nothing = %v, %v with %d messages", ok, err, rx.Len())
	}
	for _, size := range []int{3, 5, 8} { // growing: a message each
		send(t, a, b, size)
	}
	for _, want := range []int{2, 1} {
		if ok, err := b.TryRecv(rx); !ok || err != nil || rx.Len() != want {
			t.Errorf("TryRecv = %v, %v with %d messages, want %d", ok, err, rx.Len(), want)
		}
	}
	if ok, err := b.TryRecv(rx); ok || err != nil || rx.Len() != 0 {
		t.Errorf("TryRecv of nothing = %v, %v with %d messages", ok, err, rx.Len())
	}
}

func TestNewRxBatchBounds(t *testing.T) {
	for messages, want := range map[int]int{-1: 1, 0: 1, 1: 1, 7: 7} {
		if got := cap(NewRxBatch(messages).messages); got != want {
			t.Errorf("NewRxBatch(%d) takes %d messages, want %d", messages, got, want)
		}
	}
}

// TestEmptyDatagrams checks that a datagram of no bytes is one, and has a positive segment size.
func TestEmptyDatagrams(t *testing.T) {
	for family, addr := range families(t) {
		a, b := listen(t, Config{Local: addr}), listen(t, Config{Local: addr})
		send(t, a, b, 0, 0, 0)
		got := collect(t, b, NewRxBatch(4), 3)
		for _, g := range got {
			if len(g.data) != 0 || g.from != a.LocalAddr() {
				t.Errorf("%s: received %d bytes from %v", family, len(g.data), g.from)
			}
		}
	}
}

// TestTruncated receives into rooms that are too small.
func TestTruncated(t *testing.T) {
	addr := randomLoopback()
	a := listen(t, Config{Local: addr})
	for name, b := range map[string]*Socket{"udp": listen(t, Config{Local: addr}), "packets": maybeHeaders(t, addr)} {
		if b == nil {
			continue
		}
		for _, tt := range []struct {
			sizes   []int
			want    int // segments
			message int // bytes, of a room of 1,000
		}{
			{[]int{1001}, 1, 1000},
			{[]int{300, 300, 300, 300}, 4, 1000},
			{[]int{1000}, 1, 1000},
		} {
			small := newRxBatch(2, rxHeadroom+1000)
			send(t, a, b, tt.sizes...)
			if err := b.Recv(small); err != nil {
				t.Fatal(err)
			}
			m := small.Message(0)
			if small.Len() != 1 || len(m.Data) != tt.message || m.Segments() != tt.want ||
				m.Truncated != (tt.sizes[0] != 1000) || m.From != a.LocalAddr() {
				t.Errorf("%s: %v: %d messages, the first %d bytes in %d segments, truncated %v", name, tt.sizes,
					small.Len(), len(m.Data), m.Segments(), m.Truncated)
			}
		}
		if n := b.Stats().Truncated; n != 2 {
			t.Errorf("%s: Stats().Truncated = %d, want 2", name, n)
		}
	}
}

// maybeHeaders is a socket with HeadersAlways, nil where that is not permitted.
func maybeHeaders(t testing.TB, addr netip.AddrPort) *Socket {
	t.Helper()
	s, err := Listen(Config{Local: addr, Headers: HeadersAlways})
	if err != nil {
		t.Logf("without a packet socket: %v", err)
		return nil
	}
	t.Cleanup(func() { s.Close() })
	if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDrop checks, for all ways to lose some of six datagrams, that exactly the others are delivered,
// with their identifications.
func TestDrop(t *testing.T) {
	addr := randomLoopback()
	a := listen(t, Config{Local: addr})
	var mask byte
	var asked int
	drop := func(datagram []byte) bool {
		asked++
		return mask&(1<<datagram[len(datagram)-1]) != 0
	}
	sockets := map[string]Config{"udp": {}, "plain": {NoCoalescing: true}, "packets": {Headers: HeadersAlways}}
	for name, cfg := range sockets {
		cfg.Local, cfg.Drop = addr, drop
		b, err := Listen(cfg)
		if err != nil {
			t.Logf("without %s: %v", name, err)
			continue
		}
		rx := NewRxBatch(3)
		asked = 0
		for m := range 63 { // not all six: Recv would wait
			mask = byte(m)
			tx := NewTxBatch(0)
			tx.To(b.LocalAddr(), 0)
			for i := range 6 {
				size := 20
				if i == 5 {
					size = 10
				}
				room := tx.Next(size)
				room[size-1] = byte(i)
				tx.Commit(size)
			}
			if err := a.Send(tx, nil); err != nil {
				t.Fatal(err)
			}
			var got, want []int
			for i := range 6 {
				if mask&(1<<i) == 0 {
					want = append(want, i)
				}
			}
			for len(got) < len(want) {
				if err := b.Recv(rx); err != nil {
					t.Fatal(err)
				}
				for _, g := range datagrams(t, rx) {
					i := int(g.data[len(g.data)-1])
					if len(g.data) != 20 && (len(g.data) != 10 || i != 5) || g.hasID && g.id != uint16(i) {
						t.Errorf("%s: datagram %d has %d bytes, identification %d", name, i, len(g.data), g.id)
					}
					got = append(got, i)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: without %06b: received %v, want %v", name, mask, got, want)
			}
			// Drop has been asked about the losses at the end by now, or is asked with the next
			// call.
			if ok, err := b.TryRecv(rx); ok || err != nil {
				t.Errorf("%s: TryRecv = %v, %v, want nothing", name, ok, err)
			}
		}
		if n := b.Stats().Dropped; n != 6*31 || asked != 6*63 {
			t.Errorf("%s: dropped %d of %d, want %d of %d", name, n, asked, 6*31, 6*63)
		}
		b.Close()
	}
}

// TestFlood sends far more than the receiver holds: it gets the datagrams that fit, the kernel
// counts those that it has dropped, and the receiver works on.
func TestFlood(t *testing.T) {
	addr := randomLoopback()
	a := listen(t, Config{Local: addr})
	for name, cfg := range map[string]Config{"udp": {}, "packets": {Headers: HeadersAlways}} {
		cfg.Local, cfg.ReadBuffer = addr, 8192
		b, err := Listen(cfg)
		if err != nil {
			t.Logf("without %s: %v", name, err)
			continue
		}
		const n = 1000
		for range n / 50 {
			send(t, a, b, slices.Repeat([]int{100, 200}, 25)...)
		}
		rx := NewRxBatch(8)
		got := 0
		for {
			ok, err := b.TryRecv(rx)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			got += len(datagrams(t, rx))
		}
		if got == 0 || got == n || b.Stats().KernelDrops == 0 {
			t.Errorf("%s: received %d of %d, Stats().KernelDrops = %d", name, got, n, b.Stats().KernelDrops)
		}
		send(t, a, b, 77)
		if g := collect(t, b, rx, 1); len(g[0].data) != 77 {
			t.Errorf("%s: after the flood: %d bytes, want 77", name, len(g[0].data))
		}
		b.Close()
	}
}

func TestReadDeadline(t *testing.T) {
	for _, b := range []*Socket{listen(t, Config{Local: randomLoopback()}), maybeHeaders(t, randomLoopback())} {
		if b == nil {
			continue
		}
		done := make(chan error)
		if err := b.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go func() { done <- b.Recv(NewRxBatch(1)) }()
		if err := b.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Recv after the deadline: %v", err)
		}
		if ok, err := b.TryRecv(NewRxBatch(1)); ok || err != nil {
			t.Errorf("TryRecv after the deadline = %v, %v: it does not wait", ok, err)
		}
	}
}

func TestCloseWakesRecv(t *testing.T) {
	for range 20 {
		for _, cfg := range []Config{{}, {Headers: HeadersAlways}} {
			cfg.Local = randomLoopback()
			b, err := Listen(cfg)
			if err != nil {
				t.Logf("without packets: %v", err)
				continue
			}
			const receivers = 3
			done := make(chan error, receivers)
			started := make(chan bool, receivers)
			for range receivers {
				go func() {
					started <- true
					done <- b.Recv(NewRxBatch(1))
				}()
			}
			for range receivers {
				<-started
			}
			b.Close()
			for range receivers {
				select {
				case err := <-done:
					if !errors.Is(err, net.ErrClosed) {
						t.Errorf("Recv of a closed socket: %v, want net.ErrClosed", err)
					}
				case <-time.After(patience):
					t.Fatal("Close does not wake Recv")
				}
			}
		}
	}
}

// FuzzControl checks that no control messages lead out of the buffer, and which are accepted.
func FuzzControl(f *testing.F) {
	var good control
	length := good.setSegment(1040)
	(*unix.Cmsghdr)(unsafe.Pointer(&good)).Type = unix.UDP_GRO
	(*unix.Cmsghdr)(unsafe.Pointer(&good)).SetLen(unix.CmsgLen(4))
	f.Add(good.bytes(), length)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, b []byte, length int) {
		var c control
		copy(c.bytes(), b)
		c.segment(length)
	})
}

func TestControl(t *testing.T) {
	var c control
	if got := c.segment(0); got != 0 {
		t.Errorf("segment of nothing = %d", got)
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c))
	b := c.bytes()
	set := func(level, typ int32, length int, value uint32) {
		h.Level, h.Type = level, typ
		h.SetLen(length)
		binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], value)
	}
	full := unix.CmsgLen(4)
	for _, tt := range []struct {
		name        string
		level, typ  int32
		length, all int
		value       uint32
		want        int
	}{
		{"one", unix.IPPROTO_UDP, unix.UDP_GRO, full, full, 1040, 1040},
		{"other level", unix.IPPROTO_IP, unix.UDP_GRO, full, full, 1040, 0},
		{"other type", unix.IPPROTO_UDP, unix.UDP_SEGMENT, full, full, 1040, 0},
		{"short", unix.IPPROTO_UDP, unix.UDP_GRO, full - 1, full, 1040, 0},
		{"shorter than its header", unix.IPPROTO_UDP, unix.UDP_GRO, 3, full, 1040, 0},
		{"longer than the buffer", unix.IPPROTO_UDP, unix.UDP_GRO, full + 1, full, 1040, 0},
		{"negative", unix.IPPROTO_UDP, unix.UDP_GRO, full, full, 1<<32 - 1, -1}, // refused by the caller
	} {
		set(tt.level, tt.typ, tt.length, tt.value)
		if got := c.segment(tt.all); got != tt.want {
			t.Errorf("%s: segment = %d, want %d", tt.name, got, tt.want)
		}
	}
	// Behind another message.
	var two control
	copy(two.bytes()[unix.CmsgSpace(4):], b[:])
	set(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, full, 9)
	copy(two.bytes(), b[:unix.CmsgSpace(4)])
	second := (*unix.Cmsghdr)(unsafe.Pointer(&two.bytes()[unix.CmsgSpace(4)]))
	second.Level, second.Type = unix.IPPROTO_UDP, unix.UDP_GRO
	second.SetLen(full)
	binary.NativeEndian.PutUint32(two.bytes()[unix.CmsgSpace(4)+unix.CmsgLen(0):], 4112)
	if got := two.segment(2 * unix.CmsgSpace(4)); got != 4112 {
		t.Errorf("segment behind another message = %d, want 4112", got)
	}
}

func TestSockaddr(t *testing.T) {
	for _, tt := range []struct {
		addr  string
		scope uint32
	}{{"192.0.2.7:4791", 0}, {"[2001:db8::7]:1", 0}, {"[fe80::1]:65535", 0x1020304}} {
		addr := netip.MustParseAddrPort(tt.addr)
		var sa sockaddr
		n := sa.setInet(addr, tt.scope)
		if got, scope := sa.inet(n); got != addr || scope != tt.scope {
			t.Errorf("inet(setInet(%v, %d)) = %v, %d", addr, tt.scope, got, scope)
		}
		for short := range n {
			if got, _ := sa.inet(short); got.IsValid() {
				t.Errorf("inet of %d bytes of %v = %v", short, addr, got)
			}
		}
	}
	var sa sockaddr
	n := sa.setInet(netip.MustParseAddrPort("[::ffff:192.0.2.7]:9"), 0)
	if got, _ := sa.inet(n); got != netip.MustParseAddrPort("192.0.2.7:9") {
		t.Errorf("inet of a mapped address = %v", got)
	}
	if _, _, err := sa.link(28); err == nil {
		t.Error("link takes an IPv6 address")
	}
}

// TestReceiveError has the socket report errors, as a network that goes down does: they are skipped.
func TestReceiveError(t *testing.T) {
	s := &Socket{}
	b := NewRxBatch(1)
	skipped := 0
	for i := range maxReceiveErrors {
		b.errno = unix.ENETDOWN
		if again, err := s.received(b, &skipped); !again || err != nil {
			t.Fatalf("error %d: again %v, %v", i, again, err)
		}
	}
	if again, err := s.received(b, &skipped); again || !errors.Is(err, unix.ENETDOWN) {
		t.Errorf("one error too many: again %v, %v", again, err)
	}
	b.errno = unix.EINTR
	if again, err := s.received(b, &skipped); !again || err != nil {
		t.Errorf("EINTR: again %v, %v", again, err)
	}
	if got := s.stats.receiveErrors.Load(); got != maxReceiveErrors+1 {
		t.Errorf("%d errors counted, want %d", got, maxReceiveErrors+1)
	}
}

func ExampleMessage_Segment() {
	m := Message{Data: []byte("firstagainlast"), SegmentSize: 5}
	for i := range m.Segments() {
		datagram, _ := m.Segment(i)
		fmt.Printf("%s\n", datagram)
	}
	// Output:
	// first
	// again
	// last
}
