package bench

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// within returns a value from c, and fails the test if that takes too long.
func within[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(child.Patience):
		t.Fatalf("%s: nothing within %v", what, child.Patience)
		panic("not reached")
	}
}

// loopbackPair makes the two meters, a listener and a dial function of the two workers of a workload.
func loopbackPair(t *testing.T, s workSettings) (server, client *meter, l net.Listener, dial dialFunc) {
	t.Helper()
	place := siteLoopback(t.Context(), errors.New("test"))
	endpoints := make([]*endpoint, 2)
	meters := make([]*meter, 2)
	for i, local := range []netip.Addr{place.server, place.client} {
		e, err := tcpEndpoint(workerSpec{Local: local})
		if err != nil {
			t.Fatal(err)
		}
		m := newMeter(s, nil)
		m.check = func(c net.Conn) error { return e.check(c, m) }
		endpoints[i], meters[i] = e, m
	}
	l, err := endpoints[0].listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return meters[0], meters[1], l, func() (net.Conn, error) { return endpoints[1].dial(l.Addr().String()) }
}

// Both sides of each workload, in one process: they come to an end when told to, without an error.
func TestPacketWorkloads(t *testing.T) {
	const want = 50 // operations
	for _, tt := range []struct {
		name string
		work *workload
		size int
	}{
		{"rdmaWrite", rdmaWrite(0), 64 << 10},
		{"rdmaWrite with losses", rdmaWrite(0.02), 64 << 10},
		{"rdmaMany", rdmaMany(20), 64 << 10},
		{"rdmaPingPong", rdmaPingPong, 64},
		{"udpWrite", udpWrite, 64 << 10},
		{"udpEcho", udpEcho, 64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server, client, l, dial := loopbackPair(t, workSettings{Size: tt.size, Packet: 1024})
			ended := [2]chan error{make(chan error, 1), make(chan error, 1)}
			go func() { ended[0] <- tt.work.server(server, l) }()
			go func() { ended[1] <- tt.work.client(client, dial) }()
			select {
			case <-client.working:
			case err := <-ended[1]:
				t.Fatalf("the client ended before it began: %v", err)
			case <-time.After(child.Patience):
				t.Fatal("the client does not begin")
			}
			server.beginInterval()
			client.beginInterval()
			counting := server
			if tt.work.clientCounts {
				counting = client
			}
			deadline := time.Now().Add(child.Patience)
			for tick := time.Tick(time.Millisecond); counting.ops.Load()-counting.base.Load() < want; <-tick {
				if time.Now().After(deadline) {
					t.Fatalf("%d operations within %v, want %d", counting.ops.Load()-counting.base.Load(), child.Patience, want)
				}
			}
			server.finish()
			client.finish()
			if err := within(t, "client", ended[1]); err != nil {
				t.Errorf("client = %v, want no error", err)
			}
			if err := within(t, "server", ended[0]); err != nil {
				t.Errorf("server = %v, want no error", err)
			}
			r := counting.report()
			if r.Ops == 0 || r.Bytes == 0 {
				t.Errorf("report = %+v, want operations and bytes", r)
			}
			if tt.work.clientCounts && client.latency.Quantile(0.5) <= 0 {
				t.Error("no round trip was timed")
			}
		})
	}
}

// ignoring is a handler that nothing interests.
func ignoring(*rdmaEnd) func([]rdma.Completion) error {
	return func([]rdma.Completion) error { return nil }
}

// rdmaPair joins two ends on two loopback addresses. handler makes the server's handler.
func rdmaPair(t *testing.T, size rdmaSizes, handler func(*rdmaEnd) func([]rdma.Completion) error) (server, client *rdmaEnd) {
	t.Helper()
	_, _, l, dial := loopbackPair(t, workSettings{})
	ends := make(chan *rdmaEnd, 1)
	errs := make(chan error, 1)
	open := func(c net.Conn, role string, handler func(*rdmaEnd) func([]rdma.Completion) error) (*rdmaEnd, error) {
		peer := newControl(c)
		defer peer.Close()
		ip, err := peer.localIP()
		if err != nil {
			return nil, err
		}
		e, err := openRDMA(ip, size, nil)
		if err != nil {
			return nil, err
		}
		t.Cleanup(e.close)
		e.handle = handler(e)
		return e, e.connect(peer, role, 1024)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			errs <- err
			return
		}
		e, err := open(c, roleServer, handler)
		if err != nil {
			errs <- err
			return
		}
		ends <- e
	}()
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	if client, err = open(c, roleClient, ignoring); err != nil {
		t.Fatal(err)
	}
	select {
	case server = <-ends:
	case err := <-errs:
		t.Fatal(err)
	case <-time.After(child.Patience):
		t.Fatal("the server does not connect")
	}
	return server, client
}

// A receiver that finds something other than it should says so.
func TestWriteReceiver(t *testing.T) {
	const size = 4096
	for _, tt := range []struct {
		name    string
		numbers []uint64 // of the messages, in order
		skip    uint64   // no write is done for this message
		want    string   // empty: no error
	}{
		{"in order", []uint64{1, 2, 3, lastMessage}, 0, ""},
		{"nothing", []uint64{lastMessage}, 0, ""},
		{"one is missing", []uint64{1, 3}, 0, "message 3 came after 1"},
		{"one comes twice", []uint64{1, 1}, 0, "message 1 came after 1"},
		{"not written", []uint64{1, 2}, 2, "begins with write 0 and ends with 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &writeReceiver{meter: newMeter(workSettings{}, nil), size: size}
			receive := func(server *rdmaEnd) func([]rdma.Completion) error {
				r.rdmaEnd = server
				return r.takeMessages
			}
			server, client := rdmaPair(t, rdmaSizes{source: rdmaRing, target: rdmaRing, sends: 16, outbox: 8, inbox: 8}, receive)
			for i, number := range tt.numbers {
				wrs := client.appendWrite(nil, number, max(int(number), 1)-1, size, i, true)
				if number == lastMessage || number == tt.skip {
					wrs = wrs[1:]
				}
				if err := client.qp.PostSend(wrs...); err != nil {
					t.Fatal(err)
				}
			}
			err := within(t, "server", server.result)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("receiver of %v = %v, want %q", tt.numbers, err, tt.want)
			}
			if tt.want == "" && r.count != uint64(len(tt.numbers)-1) {
				t.Errorf("%d writes counted of %v", r.count, tt.numbers)
			}
		})
	}
}

// An end that cannot be opened gives everything back.
func TestOpenRDMAFails(t *testing.T) {
	local := randomLoopback()
	size := rdmaSizes{source: 4096, target: 4096, sends: 2, outbox: 1, inbox: 1}
	for _, bad := range []rdmaSizes{{}, {source: 1, target: 1, outbox: 1}, {source: 1, target: 1, outbox: 1, inbox: 1, sends: -1}} {
		if e, err := openRDMA(local, bad, nil); err == nil {
			e.close()
			t.Errorf("openRDMA with %+v: no error", bad)
		}
	}
	e, err := openRDMA(local, size, nil)
	if err != nil {
		t.Fatalf("openRDMA after failures = %v, want no error", err)
	}
	defer e.close()
	if again, err := openRDMA(local, size, nil); !errors.Is(err, unix.EADDRINUSE) {
		if err == nil {
			again.close()
		}
		t.Errorf("openRDMA of an address in use = %v, want %v", err, unix.EADDRINUSE)
	}
}

// If its peer has no queue pair any more, a worker learns that, and does not wait for ever.
func TestRDMAPeerGone(t *testing.T) {
	server, client := rdmaPair(t, rdmaSizes{source: 4096, target: 4096, sends: 2, outbox: 1, inbox: 1}, ignoring)
	server.close()
	if err := client.qp.PostSend(client.appendWrite(nil, 1, 0, 4096, 0, true)...); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "client", client.result); err == nil || !strings.Contains(err.Error(), rdma.StatusRetryExceeded.String()) {
		t.Errorf("client without a peer = %v, want %v", err, rdma.StatusRetryExceeded)
	}
}

func TestCheckRing(t *testing.T) {
	const size, places = 64, 8
	// written is the ring after count writes, written one after the other.
	written := func(count uint64) []byte {
		source, b := make([]byte, size*places), make([]byte, size*places)
		fillPattern(source)
		for n := range count {
			place := source[n%places*size:][:size]
			stamp(place, n+1)
			copy(b[n%places*size:], place)
		}
		return b
	}
	for count := range uint64(3*places + 1) {
		b := written(count)
		if err := checkRing(b, size, count); err != nil {
			t.Errorf("checkRing after %d writes = %v, want no error", count, err)
		}
		if err := checkRing(b, size, count+1); err == nil {
			t.Errorf("checkRing of %d writes for %d: no error", count, count+1)
		}
		for i := range b {
			b[i] ^= 0x10
			if err := checkRing(b, size, count); err == nil {
				t.Errorf("checkRing after %d writes with byte %d changed: no error", count, i)
			}
			b[i] ^= 0x10
		}
	}
}

func TestPathMTU(t *testing.T) {
	for packet, want := range map[int]wire.MTU{256: wire.MTU256, 1024: wire.MTU1024, 4096: wire.MTU4096} {
		if got, err := pathMTU(packet); err != nil || got != want {
			t.Errorf("pathMTU(%d) = %v, %v, want %v", packet, got, err, want)
		}
	}
	for _, packet := range []int{0, 1, 1023, 1500, 8192} {
		if got, err := pathMTU(packet); err == nil {
			t.Errorf("pathMTU(%d) = %v, want an error", packet, got)
		}
	}
}

// The share that is lost is that which is asked for, and which ones are lost depends on the seed alone.
func TestLoss(t *testing.T) {
	const packets = 200_000
	lost := func(share float64, seed uint64) (list []int) {
		m := newMeter(workSettings{}, nil)
		l := newLoss(m, share, seed)
		for i := range packets {
			if l.drop(nil) {
				list = append(list, i)
			}
		}
		if m.packets.Load() != packets || m.lost.Load() != uint64(len(list)) {
			t.Errorf("counted %d packets and %d lost, want %d and %d", m.packets.Load(), m.lost.Load(), packets, len(list))
		}
		return list
	}
	for _, share := range []float64{0, 0.001, 0.01, 0.5} {
		list := lost(share, 1)
		// Five standard deviations.
		mean, deviation := share*packets, math.Sqrt(share*(1-share)*packets)
		if n := float64(len(list)); math.Abs(n-mean) > 5*deviation {
			t.Errorf("share %g lost %g of %d packets, want %g ± %.0f", share, n, packets, mean, 5*deviation)
		}
		if !slices.Equal(list, lost(share, 1)) {
			t.Errorf("share %g lost other packets with the same seed", share)
		}
	}
	if slices.Equal(lost(0.01, 1), lost(0.01, 2)) {
		t.Error("two seeds lost the same packets")
	}
}

func TestDatagrams(t *testing.T) {
	const packet = 100
	var s datagramSealer
	for number := range uint64(3) {
		d := make([]byte, udpHeader+packet+udpTrailer)
		fillPattern(d[udpHeader:])
		s.Seal(0, 0, d)
		if got, ok := openDatagram(d, packet); !ok || got != number {
			t.Errorf("openDatagram of datagram %d = %d, %v", number, got, ok)
		}
		for n := range d {
			if _, ok := openDatagram(d[:n], packet); ok {
				t.Errorf("openDatagram of %d bytes: whole", n)
			}
			d[n] ^= 1
			if _, ok := openDatagram(d, packet); ok {
				t.Errorf("openDatagram with byte %d changed: whole", n)
			}
			d[n] ^= 1
		}
	}
}

// Data that is put in place counts, a damaged datagram ends the benchmark, and lost ones are known
// until they turn up.
func TestDatagramReceiver(t *testing.T) {
	const packet, places = 64, 4
	sock, err := udp.Listen(udp.Config{Local: netip.AddrPortFrom(randomLoopback(), 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	if err := sock.SetReadDeadline(time.Now().Add(child.Patience)); err != nil {
		t.Fatal(err)
	}
	r := &datagramReceiver{packet: packet, ring: make([]byte, places*packet)}
	rx, tx := udp.NewRxBatch(4), udp.NewTxBatch(0)
	send := func(number uint64, damage byte) (int, error) {
		tx.Reset()
		tx.To(sock.LocalAddr(), 0)
		d := tx.Next(udpHeader + packet + udpTrailer)
		fillPattern(d[udpHeader:])
		d[udpHeader] = byte(number)
		(&datagramSealer{next: number}).Seal(0, 0, d)
		d[len(d)-1] ^= damage
		tx.Commit(len(d))
		if err := sock.Send(tx, nil); err != nil {
			t.Fatal(err)
		}
		if err := sock.Recv(rx); err != nil {
			t.Fatal(err)
		}
		return r.take(rx)
	}
	for _, tt := range []struct{ number, next uint64 }{{0, 1}, {1, 2}, {4, 5}, {3, 5}} {
		if n, err := send(tt.number, 0); err != nil || n != 1 || r.next != tt.next {
			t.Errorf("take(datagram %d) = %d, %v, and %d is next, want %d", tt.number, n, err, r.next, tt.next)
		}
	}
	for place, number := range []byte{4, 1, 0, 3} {
		if got := r.ring[place*packet]; got != number {
			t.Errorf("place %d has datagram %d, want %d", place, got, number)
		}
	}
	if _, err := send(5, 1); err == nil {
		t.Error("take(damaged datagram): no error")
	}
}

// Credits that get lost do not stop the sender.
func TestDatagramWindow(t *testing.T) {
	var socks [2]*udp.Socket
	for i := range socks {
		s, err := udp.Listen(udp.Config{Local: netip.AddrPortFrom(randomLoopback(), 0)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		socks[i] = s
	}
	w := datagramWindow{socket: socks[0], rx: udp.NewRxBatch(4), size: 10}
	if err := w.await(4, 6); err != nil || w.acked != 0 {
		t.Errorf("await with room = %v, acked %d, want none and 0", err, w.acked)
	}
	if err := w.await(8, 6); err != nil || w.acked != 8 {
		t.Errorf("await without credits = %v, acked %d, want none and 8", err, w.acked)
	}
	tx := udp.NewTxBatch(0)
	tx.To(socks[0].LocalAddr(), 0)
	for _, credit := range []uint64{12, 11} {
		binary.LittleEndian.PutUint64(tx.Next(udpCredit), credit)
		tx.Commit(udpCredit)
	}
	tx.Commit(copy(tx.Next(3), "abc"))
	if err := socks[1].Send(tx, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.await(15, 6); err != nil || w.acked < 12 {
		t.Errorf("await with credits = %v, acked %d, want none and 12 or more", err, w.acked)
	}
	socks[0].Close()
	if err := w.await(100, 6); !errors.Is(err, net.ErrClosed) {
		t.Errorf("await on a closed socket = %v, want %v", err, net.ErrClosed)
	}
}

// Objects arrive whole; a peer that ends is an error, and one that says nothing is one in time.
func TestControl(t *testing.T) {
	_, _, l, dial := loopbackPair(t, workSettings{})
	a, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	left, right := newControl(a), newControl(b)
	want := rdmaHello{QPN: 0x11, PSN: 0x22, Addr: 1 << 47, RKey: 0x33}
	if err := left.tell(want); err != nil {
		t.Errorf("tell = %v", err)
	}
	var got rdmaHello
	if err := right.hear(&got); err != nil || got != want {
		t.Errorf("hear = %+v, %v, want %+v", got, err, want)
	}
	if err := right.hearWithin(time.Nanosecond, &got); err == nil {
		t.Error("hear of a silent peer: no error")
	}
	for _, ip := range []func() (netip.Addr, error){left.localIP, right.remoteIP} {
		if got, err := ip(); err != nil || !got.IsLoopback() || got != a.LocalAddr().(*net.TCPAddr).AddrPort().Addr() {
			t.Errorf("address of the client = %v, %v, want %v", got, err, a.LocalAddr())
		}
	}
	if got, err := ipOf(&net.UnixAddr{Name: "x"}); err == nil {
		t.Errorf("ipOf(Unix address) = %v, want an error", got)
	}
	a.Close()
	if err := newControl(b).hear(&got); !errors.Is(err, io.EOF) {
		t.Errorf("hear of a peer that has ended = %v, want %v", err, io.EOF)
	}
}

func TestMessagePlaces(t *testing.T) {
	_, client := rdmaPair(t, rdmaSizes{source: 4096, target: 4096, sends: 2, outbox: 3, inbox: 3}, ignoring)
	for i := range 3 {
		wr := client.receiveInto(i)
		if offset := wr.Local[0].Addr - client.inbox.Addr(); wr.ID != uint64(i) || offset != uint64(i*cdc.MessageLen) || wr.Local[0].Len != cdc.MessageLen {
			t.Errorf("receiveInto(%d) = %+v, want place %d of the inbox", i, wr, i)
		}
	}
	if _, err := client.received(&rdma.Completion{Len: 8}); err == nil {
		t.Error("a message of 8 bytes: no error")
	}
}
