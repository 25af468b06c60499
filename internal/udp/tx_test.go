package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

var (
	anyPeer4 = netip.MustParseAddrPort("192.0.2.1:4791")
	anyPeer6 = netip.MustParseAddrPort("[2001:db8::1]:4791")
)

// mixes are the sizes of datagrams that follow each other, and how many datagrams the messages have.
var mixes = []struct {
	name  string
	sizes []int
	want  []int
}{
	{"one", []int{1040}, []int{1}},
	{"equal", repeat(5, 1040), []int{5}},
	{"last shorter", []int{1040, 1040, 20}, []int{3}},
	{"shorter closes", []int{1040, 20, 1040, 20}, []int{2, 2}},
	{"two shorter", []int{1040, 20, 20}, []int{2, 1}},
	{"first longer, as an RDMA WRITE", []int{1056, 1040, 1040, 1040, 500}, []int{2, 3}},
	{"growing", []int{1, 2, 3, 4}, []int{1, 1, 1, 1}},
	{"shrinking", []int{4, 3, 2, 1}, []int{2, 2}},
	{"empty", []int{0}, []int{1}},
	{"empty ones", []int{0, 0, 1, 0, 1, 1}, []int{1, 1, 1, 1, 2}},
	{"64 segments", repeat(64, 20), []int{64}},
	{"65 segments", repeat(65, 20), []int{64, 1}},
	{"64 and a shorter one", append(repeat(64, 20), 19), []int{64, 1}},
	{"63 and a shorter one", append(repeat(63, 20), 19, 20), []int{64, 1}},
	{"200 segments", repeat(200, 1), []int{64, 64, 64, 8}},
	{"all bytes of a packet", repeat(7, 9358), []int{7}}, // 65,506
	{"one byte more than fits", repeat(4, 16377), []int{3, 1}},
	{"largest", []int{MaxPayload4}, []int{1}},
	{"largest, then small", []int{MaxPayload4, 1, 1}, []int{1, 2}},
	{"just fits", []int{65506, 1}, []int{2}},
	{"just does not", []int{65506, 2}, []int{1, 1}},
	{"4,096-byte path", append(repeat(15, 4112), 3000), []int{16}},
}

func TestTxBatchGrouping(t *testing.T) {
	for _, tt := range mixes {
		b := NewTxBatch(0)
		b.To(anyPeer4, 3)
		for i, size := range tt.sizes {
			put(t, b, i, size)
		}
		checkGroups(t, b, tt.want)
		total := 0
		for _, size := range tt.sizes {
			total += size
		}
		if b.Len() != len(tt.sizes) || b.Bytes() != total {
			t.Errorf("%s: Len, Bytes = %d, %d, want %d, %d", tt.name, b.Len(), b.Bytes(), len(tt.sizes), total)
		}
	}
}

func checkGroups(t testing.TB, b *TxBatch, want []int) {
	t.Helper()
	var got []int
	for i := range b.messages {
		got = append(got, b.messages[i].count)
	}
	if !slices.Equal(got, want) {
		t.Errorf("messages have %v datagrams, want %v", got, want)
	}
}

// TestTxBatchRules checks the rules for the messages of any datagrams to any destinations.
func TestTxBatchRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewTxBatch(rapid.IntRange(1, 300_000).Draw(t, "size"))
		type sent struct {
			dest netip.AddrPort
			tag  int
			size int
		}
		var want []sent
		dest, tag := anyPeer4, 0
		b.To(dest, tag)
		size := 100
		for range rapid.IntRange(0, 300).Draw(t, "datagrams") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				dest = rapid.SampledFrom([]netip.AddrPort{anyPeer4, anyPeer6}).Draw(t, "to")
				tag = rapid.IntRange(0, 2).Draw(t, "tag")
				b.To(dest, tag)
			case 1, 2:
				size = rapid.IntRange(0, 2000).Draw(t, "size")
			case 3:
				size = rapid.IntRange(60_000, 70_000).Draw(t, "large")
			}
			room := b.Next(size)
			if room == nil {
				continue
			}
			if len(room) != size || cap(room) != size {
				t.Fatalf("Next(%d) has %d of %d bytes", size, len(room), cap(room))
			}
			b.Commit(size)
			want = append(want, sent{dest, tag, size})
		}
		var got []sent
		at := 0
		for i := range b.messages {
			m := &b.messages[i]
			limit := MaxPayload6
			if b.dests[m.dest].addr.Addr().Is4() {
				limit = MaxPayload4
			}
			if m.off != at || m.bytes > limit || m.count < 1 || m.count > MaxSegments {
				t.Fatalf("message %+v at %d", *m, at)
			}
			at += m.bytes
			for k := range m.count {
				n := len(m.datagram(b.buf, k))
				if k < m.count-1 && n != m.segment || n > m.segment || n == 0 && m.count > 1 {
					t.Fatalf("datagram %d of %+v has %d bytes", k, *m, n)
				}
				got = append(got, sent{b.dests[m.dest].addr, b.dests[m.dest].tag, n})
			}
		}
		if !slices.Equal(got, want) || b.Len() != len(want) || b.Bytes() != at {
			t.Fatalf("batch has %v, want %v", got, want)
		}
	})
}

func TestTxBatchBounds(t *testing.T) {
	b := NewTxBatch(100)
	if room := b.Next(1); room != nil {
		t.Errorf("Next(1) before To = %d bytes, want nil", len(room))
	}
	b.To(anyPeer4, 0)
	if b.Next(-1) != nil || b.Next(101) != nil {
		t.Error("Next gives room that is not there")
	}
	if room := b.Next(100); len(room) != 100 {
		t.Errorf("Next(100) of 100 bytes = %d bytes", len(room))
	}
	b.Next(60)
	b.Commit(40)
	if b.Next(61) != nil || len(b.Next(60)) != 60 {
		t.Error("Commit(40) of 100 bytes does not leave 60")
	}
	for _, n := range []int{-1, 61} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Commit(%d) of 60 bytes does not panic", n)
				}
			}()
			b.Commit(n)
		}()
	}
	b.Reset()
	if b.Len() != 0 || b.Bytes() != 0 || b.Next(1) != nil {
		t.Error("Reset leaves something")
	}

	large := NewTxBatch(200_000)
	large.To(anyPeer4, 0)
	if large.Next(MaxPayload4+1) != nil || large.Next(MaxPayload4) == nil {
		t.Error("Next does not know the largest IPv4 datagram")
	}
	large.To(netip.AddrPortFrom(netip.AddrFrom16(anyPeer4.Addr().As16()), 1), 0) // mapped
	if large.Next(MaxPayload4+1) != nil {
		t.Error("Next does not know the largest IPv4 datagram for a mapped address")
	}
	large.To(anyPeer6, 0)
	if large.Next(MaxPayload6+1) != nil || large.Next(MaxPayload6) == nil {
		t.Error("Next does not know the largest IPv6 datagram")
	}
	large.Reset()
	large.To(anyPeer4, 0)
	n := 0
	for ; large.Next(0) != nil; n++ {
		large.Commit(0)
	}
	if n != maxTxMessages {
		t.Errorf("%d empty datagrams fit, want %d", n, maxTxMessages)
	}
	large.Reset()
	large.To(anyPeer4, 0)
	for n = 0; large.Next(1) != nil; n++ {
		large.Commit(1)
	}
	if n != maxTxDatagrams {
		t.Errorf("%d datagrams of a byte fit, want %d", n, maxTxDatagrams)
	}
}

func TestTxBatchTo(t *testing.T) {
	b := NewTxBatch(0)
	b.To(anyPeer4, 1)
	b.To(anyPeer6, 1) // nothing was sent to the first
	put(t, b, 0, 10)
	b.To(anyPeer6, 1) // the same again
	put(t, b, 1, 10)
	b.To(anyPeer6, 2)
	put(t, b, 2, 10)
	b.To(anyPeer4, 2)
	b.To(anyPeer6, 2) // back, which still begins a message
	put(t, b, 3, 10)
	checkGroups(t, b, []int{2, 1, 1})
	if len(b.dests) != 3 {
		t.Errorf("%d destinations, want 3", len(b.dests))
	}
}

// combinations are the four of segmentation and coalescing.
func combinations(f func(name string, noSegmentation, noCoalescing bool)) {
	for i := range 4 {
		f(fmt.Sprintf("segmentation=%v,coalescing=%v", i&1 == 0, i&2 == 0), i&1 != 0, i&2 != 0)
	}
}

// TestTransfer sends all mixes of sizes with and without segmentation, coalescing and headers, and
// checks every byte, the sender, and the identification where it can be seen.
func TestTransfer(t *testing.T) {
	for family, addr := range families(t) {
		combinations(func(name string, noSegmentation, noCoalescing bool) {
			t.Run(family+"/"+name, func(t *testing.T) {
				a := listen(t, Config{Local: addr, NoSegmentation: noSegmentation})
				b := listen(t, Config{Local: addr, NoCoalescing: noCoalescing})
				transfer(t, a, b)
				if got, want := a.Stats().Sent.SuperPackets > 0, !noSegmentation && a.Capabilities().Segmentation; got != want {
					t.Errorf("super-packets sent: %v, want %v", got, want)
				}
				if got, want := b.Stats().Received.SuperPackets > 0, !noSegmentation && b.Capabilities().Coalescing; got != want {
					t.Errorf("super-packets received: %v, want %v", got, want)
				}
			})
		})
	}
	for _, noSegmentation := range []bool{false, true} {
		t.Run(fmt.Sprintf("headers/segmentation=%v", !noSegmentation), func(t *testing.T) {
			addr := randomLoopback()
			a := listen(t, Config{Local: addr, NoSegmentation: noSegmentation})
			transfer(t, a, listenHeaders(t, Config{Local: addr}))
		})
	}
}

// transfer sends every mix from a to b.
func transfer(t *testing.T, a, b *Socket) {
	tx := NewTxBatch(256 << 10)
	rx := NewRxBatch(32)
	var datagrams, bytes uint64
	for tag, tt := range mixes {
		tx.Reset()
		tx.To(b.LocalAddr(), tag)
		if b.LocalAddr().Addr().Is6() && slices.Max(tt.sizes) > 60_000 {
			continue // a plain datagram must fit into the MTU of lo, 65,536: here less is usual
		}
		for i, size := range tt.sizes {
			put(t, tx, i, size)
		}
		var seal stamp
		if err := a.Send(tx, &seal); err != nil {
			t.Fatalf("Send of %s: %v", tt.name, err)
		}
		got := collect(t, b, rx, len(tt.sizes))
		check(t, got, a.LocalAddr(), tag, seal.ids, tt.sizes)
		if t.Failed() {
			t.Fatalf("in %s: %s", tt.name, describe(tt.sizes))
		}
		for _, g := range got {
			if g.hasID != b.Capabilities().Headers {
				t.Fatalf("%s: HasID = %v", tt.name, g.hasID)
			}
		}
		datagrams += uint64(tx.Len())
		bytes += uint64(tx.Bytes())
	}
	for who, c := range map[string]Traffic{"sent": a.Stats().Sent, "received": b.Stats().Received} {
		if c.Datagrams != datagrams || c.Bytes != bytes || c.Calls == 0 {
			t.Errorf("%s: %+v, want %d datagrams of %d bytes", who, c, datagrams, bytes)
		}
	}
	if st := a.Stats(); st.SendErrors != (SendErrors{}) || st.SegmentationRefused != 0 || st.Full != 0 {
		t.Errorf("sender's Stats() = %+v", st)
	}
	if st := b.Stats(); st.Malformed+st.Options+st.Truncated+st.ReceiveErrors+uint64(st.KernelDrops) != 0 {
		t.Errorf("receiver's Stats() = %+v", st)
	}
}

// TestSealIdentifications checks the id that Seal is given: k for segment k of a super-packet, 0
// for others.
func TestSealIdentifications(t *testing.T) {
	addr := randomLoopback()
	peer := listen(t, Config{Local: addr})
	for _, noSegmentation := range []bool{false, true} {
		s := listen(t, Config{Local: addr, NoSegmentation: noSegmentation})
		if s.Capabilities().Segmentation == noSegmentation {
			t.Skip("needs UDP_SEGMENT")
		}
		b := NewTxBatch(0)
		b.To(peer.LocalAddr(), 0)
		for i, size := range []int{1056, 1040, 1040, 1040, 20, 7, 7, 0} {
			put(t, b, i, size)
		}
		var seal stamp
		if err := s.Send(b, &seal); err != nil {
			t.Fatal(err)
		}
		want := []uint16{0, 1, 0, 1, 2, 0, 1, 0}
		if noSegmentation {
			want = make([]uint16, 8)
		}
		if !slices.Equal(seal.ids, want) {
			t.Errorf("segmentation %v: Seal was told %v, want %v", !noSegmentation, seal.ids, want)
		}
	}
}

// TestSegmentationRefused has the kernel refuse super-packets, as it does where checksums are off,
// and checks that nothing is lost and that Send learns from it.
func TestSegmentationRefused(t *testing.T) {
	addr := randomLoopback()
	a, b := listen(t, Config{Local: addr}), listen(t, Config{Local: addr})
	if !a.Capabilities().Segmentation {
		t.Skip("needs UDP_SEGMENT")
	}
	setNoCheck(t, a, 1)
	rx := NewRxBatch(64)
	sizes := append(repeat(130, 500), 100, 2000, 1000)
	for round := range 3 {
		tx := NewTxBatch(0)
		tx.To(b.LocalAddr(), 7)
		for i, size := range sizes {
			put(t, tx, i, size)
		}
		var seal stamp
		if err := a.Send(tx, &seal); err != nil {
			t.Fatal(err)
		}
		check(t, collect(t, b, rx, len(sizes)), a.LocalAddr(), 7, make([]uint16, len(sizes)), sizes)
		st := a.Stats()
		if st.SegmentationRefused != 1 || a.Capabilities().Segmentation || st.SendErrors != (SendErrors{}) {
			t.Errorf("after round %d: segmentation %v, %+v", round, a.Capabilities().Segmentation, st)
		}
		if calls := uint64((round + 1) * 5); st.Sent.Calls > calls {
			t.Errorf("%d system calls, want at most %d", st.Sent.Calls, calls)
		}
	}
}

func setNoCheck(t *testing.T, s *Socket, value int) {
	t.Helper()
	err := s.writer.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, value); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSendErrors mixes destinations that cannot be reached with one that can: that one gets all.
func TestSendErrors(t *testing.T) {
	addr := randomLoopback()
	a, b := listen(t, Config{Local: addr}), listen(t, Config{Local: addr})
	var none netip.AddrPort
	for _, tt := range []struct {
		name string
		to   netip.AddrPort
		size int
		get  func(*SendErrors) *uint64
	}{
		{"no address", none, 10, func(e *SendErrors) *uint64 { return &e.Destination }},
		{"other family", anyPeer6, 10, func(e *SendErrors) *uint64 { return &e.Destination }},
		{"port 0", netip.AddrPortFrom(addr.Addr(), 0), 10, func(e *SendErrors) *uint64 { return &e.Destination }},
		{"broadcast", netip.MustParseAddrPort("255.255.255.255:9"), 10, nil}, // EACCES or ENETUNREACH
		{"not from 127.0.0.0/8", anyPeer4, 10, nil},                          // EINVAL or ENETUNREACH
		{"class E", netip.MustParseAddrPort("240.0.0.1:9"), 10, nil},
	} {
		before := a.Stats()
		tx := NewTxBatch(0)
		want := repeat(0, 0)
		for i := range 9 {
			if i%3 == 1 {
				tx.To(tt.to, 1)
				put(t, tx, 0, tt.size)
				put(t, tx, 0, tt.size)
				continue
			}
			tx.To(b.LocalAddr(), 2)
			put(t, tx, len(want), 20+i)
			want = append(want, 20+i)
		}
		if err := a.Send(tx, nil); err != nil {
			t.Fatalf("%s: Send: %v", tt.name, err)
		}
		for i, g := range collect(t, b, NewRxBatch(3), len(want)) {
			if len(g.data) != want[i] {
				t.Errorf("%s: datagram %d has %d bytes, want %d", tt.name, i, len(g.data), want[i])
			}
		}
		got := a.Stats().SendErrors
		sum := func(e SendErrors) uint64 {
			return e.Unreachable + e.Forbidden + e.NoMemory + e.TooBig + e.Refused + e.Destination + e.Overdue + e.Other
		}
		if n := sum(got) - sum(before.SendErrors); n != 6 {
			t.Errorf("%s: %d send errors counted, want 6", tt.name, n)
		}
		if tt.get != nil {
			if n := *tt.get(&got) - *tt.get(&before.SendErrors); n != 6 {
				t.Errorf("%s: not counted as what it is: %+v", tt.name, got)
			}
		}
		if !a.Capabilities().Segmentation && before.SegmentationRefused == 0 && kernelAtLeast(4, 18) {
			t.Fatalf("%s: a bad destination has ended segmentation", tt.name)
		}
	}
}

func TestSendErrorOf(t *testing.T) {
	for errno, want := range map[unix.Errno]int{
		unix.ENETUNREACH: unreachable, unix.EHOSTUNREACH: unreachable, unix.ENETDOWN: unreachable,
		unix.EPERM: forbidden, unix.EACCES: forbidden, unix.ENOBUFS: noMemory, unix.EMSGSIZE: tooBig,
		unix.ECONNREFUSED: refusedByPeer, unix.EINVAL: badDestination, unix.ENOTCONN: otherError,
	} {
		if got := sendErrorOf(errno); got != want {
			t.Errorf("sendErrorOf(%v) = %d, want %d", errno, got, want)
		}
	}
}

// fullSocket is a Socket over a Unix socket, which lets itself be filled: on the loopback interface
// nothing stays in a UDP socket. A SOCK_SEQPACKET socket takes the same calls and ignores addresses.
func fullSocket(t *testing.T) (s *Socket, drain func()) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s = &Socket{local: netip.MustParseAddrPort("127.0.0.1:1")}
	if s.writer, err = newDescriptor(fds[0]); err != nil {
		t.Fatal(err)
	}
	s.reader = s.writer
	other := os.NewFile(uintptr(fds[1]), "other")
	t.Cleanup(func() { other.Close(); s.Close() })
	return s, func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := unix.Read(fds[1], buf)
			if err != nil || n == 0 {
				return
			}
		}
	}
}

func fullBatch(t *testing.T) *TxBatch {
	b := NewTxBatch(4 << 20)
	b.To(anyPeer4, 0)
	for b.Next(60_000) != nil {
		put(t, b, 0, 60_000)
	}
	return b
}

// TestSendFull checks that a full socket is waited for no longer than Send says.
func TestSendFull(t *testing.T) {
	s, _ := fullSocket(t)
	b := fullBatch(t)
	start := time.Now()
	if err := s.Send(b, nil); err != nil {
		t.Fatalf("Send into a full socket: %v", err)
	}
	if took := time.Since(start); took < sendPatience || took > patience {
		t.Errorf("Send into a full socket took %v, want %v", took, sendPatience)
	}
	st := s.Stats()
	if st.Full == 0 || st.SendErrors.Overdue == 0 || st.Sent.Datagrams+st.SendErrors.Overdue != uint64(b.Len()) {
		t.Errorf("Stats() = %+v for %d datagrams", st, b.Len())
	}
}

// TestSendWaits fills a socket and makes room once a sender waits for it: everything is sent. Where the
// test did not run for as long as the sender is patient it is tried again.
func TestSendWaits(t *testing.T) {
	for end := time.Now().Add(patience); ; {
		s, drain := fullSocket(t)
		b := fullBatch(t)
		done := make(chan error, 1)
		go func() { done <- s.Send(b, nil) }()
		for s.stats.full.Load() == 0 { // nobody reads, so it gets full
			runtime.Gosched()
		}
		if err := drainUntil(done, drain); err != nil {
			t.Fatal(err)
		}
		st := s.Stats()
		if st.Sent.Datagrams == uint64(b.Len()) && st.SendErrors == (SendErrors{}) {
			return
		}
		if st.SendErrors.Overdue == 0 || time.Now().After(end) {
			t.Fatalf("Stats() = %+v for %d datagrams", st, b.Len())
		}
	}
}

// TestCloseWakesSend has several senders wait for room, and closes the socket.
func TestCloseWakesSend(t *testing.T) {
	for range 10 {
		s, _ := fullSocket(t)
		const senders = 4
		done := make(chan error, senders)
		for range senders {
			b := fullBatch(t)
			go func() { done <- s.Send(b, nil) }()
		}
		for s.stats.full.Load() == 0 {
			runtime.Gosched()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for range senders {
			select {
			case err := <-done:
				if err != nil && !errors.Is(err, net.ErrClosed) {
					t.Errorf("Send after Close: %v, want net.ErrClosed", err)
				}
			case <-time.After(patience):
				t.Fatal("Close does not wake Send")
			}
		}
	}
}

// TestConcurrentSend has goroutines send at once, each its own batch, and checks that no datagram is
// torn or lost.
func TestConcurrentSend(t *testing.T) {
	addr := randomLoopback()
	a, b := listen(t, Config{Local: addr}), listen(t, Config{Local: addr})
	const senders, rounds, each = 4, 8, 20
	for range rounds {
		done := make(chan error, senders)
		for tag := range senders {
			tx := NewTxBatch(0)
			tx.To(b.LocalAddr(), tag)
			for i := range each {
				put(t, tx, i, 100+tag+rand.IntN(2))
			}
			go func() { done <- a.Send(tx, new(stamp)) }()
		}
		for range senders {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		next := [senders]int{}
		for _, g := range collect(t, b, NewRxBatch(5), senders*each) {
			tag := int(g.data[3])
			if tag >= senders || g.data[50] != pattern(next[tag], 50) {
				t.Fatalf("datagram %d of %d is %x", next[tag], tag, g.data)
			}
			next[tag]++
		}
	}
}
