package udp

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds every wait in the tests. It only passes when a test fails.
const patience = 20 * time.Second

// TestMain runs the tests and looks for goroutines that they leave.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// randomLoopback is any address of 127.0.0.0/8, port 0.
func randomLoopback() netip.AddrPort {
	ip := [4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))}
	return netip.AddrPortFrom(netip.AddrFrom4(ip), 0)
}

// families are the addresses that tests of both kinds bind.
func families(t testing.TB) map[string]netip.AddrPort {
	f := map[string]netip.AddrPort{"v4": randomLoopback()}
	six := netip.AddrPortFrom(netip.IPv6Loopback(), 0)
	if s, err := Listen(Config{Local: six}); err == nil {
		s.Close()
		f["v6"] = six
	} else {
		t.Logf("without IPv6: %v", err)
	}
	return f
}

// listen is Listen for a socket that the test's end closes and whose reads end in time.
func listen(t testing.TB, cfg Config) *Socket {
	t.Helper()
	s, err := Listen(cfg)
	if err != nil {
		t.Fatalf("Listen(%v): %v", cfg.Local, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return s
}

// listenHeaders is listen for HeadersAlways. It skips the test where that is not permitted.
func listenHeaders(t testing.TB, cfg Config) *Socket {
	t.Helper()
	cfg.Headers = HeadersAlways
	s, err := Listen(cfg)
	if err != nil {
		if os.Geteuid() == 0 && kernelAtLeast(6, 2) {
			t.Fatalf("Listen with HeadersAlways as root: %v", err)
		}
		t.Skipf("needs CAP_NET_RAW and Linux 6.2: %v", err)
	}
	s.Close()
	return listen(t, cfg)
}

// stamp is a Sealer that writes its arguments into the datagram: identification and tag in the
// first four bytes, as many as there are. It notes the identifications in order.
type stamp struct{ ids []uint16 }

func (s *stamp) Seal(tag int, id uint16, datagram []byte) {
	s.ids = append(s.ids, id)
	copy(datagram, stamped(tag, id))
}

func stamped(tag int, id uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, id)
	return binary.BigEndian.AppendUint16(b, uint16(tag))
}

// put adds a datagram of size bytes that says which it is, from the fifth byte on.
func put(t testing.TB, b *TxBatch, number, size int) {
	t.Helper()
	room := b.Next(size)
	if room == nil {
		t.Fatalf("Next(%d) = nil for datagram %d with %d bytes in the batch", size, number, b.Bytes())
	}
	for i := range room {
		room[i] = pattern(number, i)
	}
	b.Commit(size)
}

func pattern(number, i int) byte { return byte(number*31 + i + i>>8) }

// A received is a datagram and its known properties.
type received struct {
	data  []byte
	id    uint16
	hasID bool
	from  netip.AddrPort
}

// collect receives until n datagrams are there, and fails if that takes too long.
func collect(t testing.TB, s *Socket, b *RxBatch, n int) []received {
	t.Helper()
	var got []received
	for len(got) < n {
		if err := s.Recv(b); err != nil {
			t.Fatalf("Recv after %d of %d datagrams: %v; %+v", len(got), n, err, s.Stats())
		}
		got = append(got, datagrams(t, b)...)
	}
	if len(got) > n {
		t.Fatalf("received %d datagrams, want %d", len(got), n)
	}
	return got
}

// datagrams are those in b.
func datagrams(t testing.TB, b *RxBatch) (got []received) {
	t.Helper()
	for i := range b.Len() {
		m := b.Message(i)
		if m.SegmentSize < 1 || m.SegmentSize > max(len(m.Data), 1) || m.Truncated {
			t.Errorf("message of %d bytes: segment size %d, truncated %v", len(m.Data), m.SegmentSize, m.Truncated)
		}
		for k := range m.Segments() {
			data, id := m.Segment(k)
			got = append(got, received{slices.Clone(data), id, m.HasID, m.From})
		}
	}
	return got
}

// check compares the received datagrams with the datagrams of the given sizes that put has made and
// a stamp with the given tag has sealed with ids.
func check(t testing.TB, got []received, from netip.AddrPort, tag int, ids []uint16, sizes []int) {
	t.Helper()
	if len(got) != len(sizes) || len(ids) != len(sizes) {
		t.Fatalf("%d datagrams received, %d sealed, want %d", len(got), len(ids), len(sizes))
	}
	for i, g := range got {
		if len(g.data) != sizes[i] {
			t.Fatalf("datagram %d has %d bytes, want %d", i, len(g.data), sizes[i])
		}
		if g.from != from {
			t.Errorf("datagram %d is from %v, want %v", i, g.from, from)
		}
		if head := stamped(tag, ids[i]); string(g.data[:min(4, len(g.data))]) != string(head[:min(4, len(g.data))]) {
			t.Errorf("datagram %d begins with %x, want %x", i, g.data[:min(4, len(g.data))], head)
		}
		for k := 4; k < len(g.data); k++ {
			if g.data[k] != pattern(i, k) {
				t.Fatalf("datagram %d has %#x at %d, want %#x", i, g.data[k], k, pattern(i, k))
			}
		}
		if g.hasID && g.id != ids[i] {
			t.Errorf("datagram %d carries identification %d, Seal was told %d", i, g.id, ids[i])
		}
	}
}

// repeat is n times size.
func repeat(n, size int) []int { return slices.Repeat([]int{size}, n) }

func describe(sizes []int) string {
	if len(sizes) > 6 {
		return fmt.Sprintf("%d sizes from %v", len(sizes), sizes[:4])
	}
	return fmt.Sprint(sizes)
}
