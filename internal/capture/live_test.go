package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/internal/smctest"
)

// patience is how long anything may take that happens at once on an idle machine.
const patience = 30 * time.Second

// A wire is two network namespaces with an interface called wire at either end of a cable. They are
// gone with the test.
type wire struct {
	run [2]func(func()) // calls a function on a thread that is in the namespace
}

// newWire makes one. The test is skipped where that is not permitted.
func newWire(t testing.TB) *wire {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("needs iproute2: %v", err)
	}
	w := &wire{}
	var names [2]string
	for i := range w.run {
		w.run[i], names[i] = smctest.EnterNamespace(t)
	}
	w.ip(t, 0, "link add wire type veth peer name peer")
	w.ip(t, 0, "link set peer netns "+names[1])
	w.ip(t, 1, "link set peer name wire")
	for i := range w.run {
		w.ip(t, i, "link set lo up")
		w.ip(t, i, "link set wire addrgenmode none mtu 9000 up") // it says nothing by itself
	}
	return w
}

func (w *wire) ip(t testing.TB, end int, args string) {
	t.Helper()
	w.run[end](func() {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Errorf("ip %s: %v: %s", args, err, out)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

// live is Live at one end.
func (w *wire) live(t testing.TB, end int, name string, opts LiveOptions) (s LiveSource) {
	t.Helper()
	var err error
	w.run[end](func() { s, err = Live(name, opts) })
	if err != nil {
		t.Fatalf("Live(%q): %v", name, err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// sender returns a function that sends frames on an interface.
func (w *wire) sender(t testing.TB, end int, name string) func(frames ...[]byte) {
	t.Helper()
	var fd, index int
	w.run[end](func() {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			t.Error(err)
			return
		}
		index = ifi.Index
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Error(err)
			return
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(frames ...[]byte) {
		t.Helper()
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: index}); err != nil {
				t.Fatalf("sending: %v", err)
			}
		}
	}
}

// next is Next, of which a packet is expected soon.
func next(t testing.TB, s LiveSource) *Packet {
	t.Helper()
	stop := time.AfterFunc(patience, func() { s.Close() })
	defer stop.Stop()
	p, err := s.Next()
	if err != nil {
		t.Fatalf("Next() = %v after %+v", err, s.Stats())
	}
	return p
}

// TestLive sends every packet of the tables over a cable: those come that both filters want, as they were.
func TestLive(t *testing.T) {
	w := newWire(t)
	send := w.sender(t, 0, "wire")
	there := w.live(t, 1, "wire", LiveOptions{})
	here := w.live(t, 0, "wire", LiveOptions{Promiscuous: true})
	begin := time.Now()
	var want [][]byte
	for i, p := range filterPackets {
		if len(p.tags) > 2 { // a receiving kernel takes one out before its filter runs
			continue
		}
		if p.protocol == tcp {
			p.source += uint16(i) // each is a connection of its own
		}
		frame := p.frame()
		send(frame)
		if p.kernel && p.user {
			want = append(want, frame)
		}
	}
	for _, s := range []LiveSource{there, here} {
		for i, wire := range want {
			p := next(t, s)
			if !bytes.Equal(p.Data, wire) || p.OrigLen != len(wire) || p.Link != frame.Ethernet || p.Number != i+1 {
				t.Fatalf("packet %d: %v, %d bytes of %d: %x\nwant %d of %x", p.Number, p.Link, len(p.Data), p.OrigLen, p.Data, i+1, wire)
			}
			if p.Time.Before(begin.Add(-time.Second)) || p.Time.After(time.Now().Add(time.Second)) {
				t.Errorf("packet %d at %v, and it is %v", p.Number, p.Time, time.Now())
			}
		}
		if got := s.Stats(); got.Dropped != 0 || got.Received < uint64(len(want)) || got.Unrelated > got.Received-uint64(len(want)) {
			t.Errorf("Stats() = %+v after %d packets", got, len(want))
		}
	}
	if err := here.Close(); err != nil {
		t.Fatal(err)
	}
	stats := here.Stats()
	if p, err := here.Next(); p != nil || err != io.EOF || stats.Received < uint64(len(want)) {
		t.Errorf("after Close: Next() = %v, %v, Stats() = %+v; want EOF and the counts of before", p, err, stats)
	}
}

// TestLiveAny captures on all interfaces: frames get a cooked header, those over loopback come once.
func TestLiveAny(t *testing.T) {
	w := newWire(t)
	s := w.live(t, 1, AnyInterface, LiveOptions{BufferBytes: 1})
	roce := filterPackets[0]
	_, ip := roce.build()
	w.sender(t, 0, "wire")(roce.frame())
	p := next(t, s)
	header := binary.BigEndian.AppendUint16(nil, frame.TypeIPv4)
	var index int
	w.run[1](func() {
		if ifi, err := net.InterfaceByName("wire"); err == nil {
			index = ifi.Index
		}
	})
	header = binary.BigEndian.AppendUint32(append(header, 0, 0), uint32(index))
	header = append(header, 0, unix.ARPHRD_ETHER, unix.PACKET_OTHERHOST, 6, 2, 0, 0, 0, 0, 1, 0, 0)
	if want := append(header, ip...); p.Link != frame.Cooked2 || !bytes.Equal(p.Data, want) || p.OrigLen != len(want) {
		t.Errorf("%v, %d bytes of %d: %x\nwant %x", p.Link, len(p.Data), p.OrigLen, p.Data, want)
	}

	tagged := roce
	tagged.tags = []uint16{frame.TypeVLAN}
	w.sender(t, 0, "wire")(tagged.frame())
	p = next(t, s)
	if want := append([]byte{0, 100, 8, 0}, ip...); !bytes.Equal(p.Data[:2], []byte{0x81, 0}) || !bytes.Equal(p.Data[20:], want) {
		t.Errorf("with a tag: %x\nwant the EtherType 8100, and %x behind 20 bytes", p.Data, want)
	}

	w.run[1](func() { // two datagrams over loopback
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:4791")))
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for _, text := range []string{"first", "second"} {
			// Nobody listens, which the second of them may be told; it is sent all the same.
			if _, err := conn.Write([]byte(text)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				t.Error(err)
			} else if err != nil {
				conn.Write([]byte(text))
			}
		}
	})
	for _, text := range []string{"first", "second"} {
		if p := next(t, s); !bytes.HasSuffix(p.Data, []byte(text)) {
			t.Errorf("over loopback: %q, want one with %q", p.Data, text)
		}
	}
}

// TestLiveLoopback captures a connection of TCP that has nothing to do with SMC, and one that has.
func TestLiveLoopback(t *testing.T) {
	w := newWire(t)
	s := w.live(t, 0, "lo", LiveOptions{SnapLen: MinSnapLen})
	exchange := func(first string) error {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		client, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			return err
		}
		defer client.Close()
		server, err := l.Accept()
		if err != nil {
			return err
		}
		defer server.Close()
		server.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(client, first); err != nil {
			return err
		}
		_, err = io.ReadFull(server, make([]byte, len(first)))
		return err
	}
	for _, first := range []string{"hello", string(message) + strings.Repeat("x", 500)} {
		var err error
		w.run[0](func() { err = exchange(first) })
		if err != nil {
			t.Fatal(err)
		}
	}
	p := next(t, s)
	if !bytes.Contains(p.Data, message[:8]) || len(p.Data) != MinSnapLen || p.OrigLen != 14+20+32+len(message)+500 {
		t.Errorf("the first packet has %d bytes of %d: %x", len(p.Data), p.OrigLen, p.Data)
	}
	if stats := s.Stats(); stats.Unrelated < 6 || stats.Dropped > 0 { // twice SYN, SYN-ACK, FIN or data
		t.Errorf("Stats() = %+v, want 6 unrelated at least", stats)
	}
}

// TestLiveTunnel captures on an interface without Ethernet headers.
func TestLiveTunnel(t *testing.T) {
	w := newWire(t)
	tun, err := openTunnel(w)
	if err != nil {
		t.Skipf("needs /dev/net/tun: %v", err)
	}
	defer tun.Close()
	w.ip(t, 0, "link set tunnel addrgenmode none up")
	s := w.live(t, 0, "tunnel", LiveOptions{})
	for _, six := range []bool{false, true} {
		roce := filterPackets[0]
		roce.six = six
		ether, ip := roce.build()
		if _, err := tun.Write(ip); err != nil {
			t.Fatal(err)
		}
		p := next(t, s)
		if p.Link != frame.Cooked2 || binary.BigEndian.Uint16(p.Data) != ether || !bytes.Equal(p.Data[20:], ip) {
			t.Errorf("%v, %x\nwant EtherType %#x and %x behind 20 bytes", p.Link, p.Data, ether, ip)
		}
	}
}

// openTunnel makes an interface called tunnel at end 0. Packets that are written to the file come
// out of the interface.
func openTunnel(w *wire) (f *os.File, err error) {
	w.run[0](func() {
		var request *unix.Ifreq
		if f, err = os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
			return
		}
		if request, err = unix.NewIfreq("tunnel"); err == nil {
			request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, request)
		}
		if err != nil {
			f.Close()
		}
	})
	return f, err
}

// TestLiveWake closes while Next waits, and takes an interface away.
func TestLiveWake(t *testing.T) {
	w := newWire(t)
	s := w.live(t, 0, "wire", LiveOptions{})
	done := make(chan error)
	go func() {
		_, err := s.Next()
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("Next() = %v, with nothing to tell", err)
	default:
	}
	w.ip(t, 0, "link set wire down")
	if err := <-done; !errors.Is(err, ErrDown) || strings.Contains(err.Error(), "offset") {
		t.Fatalf("Next() = %v, want %v, and no offset", err, ErrDown)
	}
	w.ip(t, 0, "link set wire up")
	numbers := make(chan int, 1)
	go func() {
		if p, err := s.Next(); err == nil {
			numbers <- p.Number
		}
		for {
			if _, err := s.Next(); err != nil {
				done <- err
				return
			}
		}
	}()
	send := w.sender(t, 1, "wire")
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	stop := time.AfterFunc(patience, func() { s.Close() })
	defer stop.Stop()
	for waiting := true; waiting; { // until the cable is connected again, frames are lost
		send(filterPackets[0].frame())
		select {
		case n := <-numbers:
			if n != 1 {
				t.Errorf("packet %d, want 1", n)
			}
			waiting = false
		case err := <-done:
			t.Fatalf("Next() = %v, and no packet has come", err)
		case <-again.C:
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != io.EOF {
		t.Fatalf("Next() while closed: %v, want EOF", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close() again = %v", err)
	}
}

// TestLiveGone takes the interface away, while it is up and while it is down: the captured packets
// can be read, and the capture ends.
func TestLiveGone(t *testing.T) {
	for _, down := range []bool{false, true} {
		w := newWire(t)
		s := w.live(t, 0, "wire", LiveOptions{})
		stop := time.AfterFunc(patience, func() { s.Close() })
		defer stop.Stop()
		send, again := w.sender(t, 1, "wire"), time.NewTicker(10*time.Millisecond)
		defer again.Stop()
		for !down && s.Stats().Received == 0 { // frames are lost until the cable is connected
			send(filterPackets[0].frame())
			<-again.C
		}
		if down {
			w.ip(t, 0, "link set wire down")
		} else {
			w.ip(t, 0, "link del wire")
		}
		var got []error
		packets := 0
		var deleting sync.WaitGroup
		for {
			p, err := s.Next()
			if err == io.EOF {
				break
			}
			if p != nil {
				packets++
				continue
			}
			got = append(got, err)
			if down && errors.Is(err, ErrDown) {
				deleting.Go(func() {
					w.run[0](func() { // mostly while Next waits
						if out, err := exec.Command("ip", "link", "del", "wire").CombinedOutput(); err != nil {
							t.Errorf("ip link del: %v: %s", err, out)
						}
					})
				})
			}
		}
		deleting.Wait()
		if (packets == 0) != down || len(got) == 0 || !errors.Is(got[len(got)-1], ErrGone) || len(got) > 2 || len(got) == 2 && !errors.Is(got[0], ErrDown) {
			t.Errorf("down first %v: %d packets and %v; want one at least if it was up, and at last %v", down, packets, got, ErrGone)
		}
		if _, err := s.Next(); err != io.EOF {
			t.Errorf("Next() after the end: %v", err)
		}
	}
}

// TestLiveDownAgain takes an interface down twice: each time is told.
func TestLiveDownAgain(t *testing.T) {
	w := newWire(t)
	s := w.live(t, 0, "wire", LiveOptions{})
	stop := time.AfterFunc(patience, func() { s.Close() })
	defer stop.Stop()
	for range 2 {
		w.ip(t, 0, "link set wire down")
		if _, err := s.Next(); !errors.Is(err, ErrDown) {
			t.Fatalf("Next() = %v, want %v", err, ErrDown)
		}
		w.ip(t, 0, "link set wire up")
	}
}

// TestLiveDrops sends more than the buffer has room for: the rest is counted, and the captured
// packets can be read.
func TestLiveDrops(t *testing.T) {
	w := newWire(t)
	s := w.live(t, 1, "wire", LiveOptions{BufferBytes: minBufferBytes})
	big := filterPackets[0]
	big.payload = counting(8000)
	send := w.sender(t, 0, "wire")
	frame := big.frame()
	const sent = 1000 // of 8 KB, for 2 MB
	for range sent {
		send(frame)
	}
	stats := s.Stats()
	for end := time.Now().Add(patience); stats.Received < sent && time.Now().Before(end); stats = s.Stats() {
		runtime.Gosched() // the kernel may deliver late
	}
	if stats.Received != sent || stats.Dropped == 0 || stats.Dropped >= sent {
		t.Fatalf("Stats() = %+v, want %d received and some of them dropped", stats, sent)
	}
	for range sent - stats.Dropped {
		if p := next(t, s); !bytes.Equal(p.Data, frame) {
			t.Fatalf("packet %d differs", p.Number)
		}
	}
}

// TestLiveErrors asks for impossible captures.
func TestLiveErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts LiveOptions
		want string
	}{
		{"none0", LiveOptions{}, "there is no interface none0, only "},
		{"lo", LiveOptions{SnapLen: MinSnapLen - 1}, "a snapshot length of 127 bytes"},
		{"lo", LiveOptions{SnapLen: MaxPacket + 1}, "a snapshot length of 1048577 bytes"},
		{"lo", LiveOptions{SnapLen: -1}, "a snapshot length of -1 bytes"},
	} {
		s, err := Live(tt.name, tt.opts)
		if s != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Live(%q, %+v) = %v, %v; want an error with %q", tt.name, tt.opts, s, err, tt.want)
		}
	}
}

// TestLivePrivilege captures on a thread without any capability.
func TestLivePrivilege(t *testing.T) {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			result <- err
			return
		}
		s, err := Live("lo", LiveOptions{})
		if s != nil {
			s.Close()
		}
		result <- err
	}()
	err := <-result
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_RAW") || !strings.Contains(err.Error(), "setcap") {
		t.Errorf("Live() = %v, want %v with the capability and the command", err, unix.EPERM)
	}
}

// TestLiveAlloc captures without allocating.
func TestLiveAlloc(t *testing.T) {
	w := newWire(t)
	s := w.live(t, 1, "wire", LiveOptions{})
	send := w.sender(t, 0, "wire")
	frame := filterPackets[0].frame()
	const packets = 500
	for range packets + 2 {
		send(frame)
	}
	next(t, s)
	stop := time.AfterFunc(patience, func() { s.Close() })
	defer stop.Stop()
	if n := testing.AllocsPerRun(packets, func() {
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a packet, want 0", n)
	}
}

// BenchmarkLive captures RoCEv2 packets from a cable, which are sent by the same thread.
func BenchmarkLive(b *testing.B) {
	w := newWire(b)
	s := w.live(b, 1, "wire", LiveOptions{})
	send := w.sender(b, 0, "wire")
	p := filterPackets[0]
	p.payload = counting(1024)
	frame := p.frame()
	stop := time.AfterFunc(10*patience, func() { s.Close() })
	defer stop.Stop()
	// Full blocks come at once; the last ones are kept back for a while and not timed.
	const sent, timed = 10_000, 8_000
	var spent time.Duration
	packets := 0
	for b.Loop() {
		for range sent {
			send(frame)
		}
		if stats := s.Stats(); stats.Dropped > 0 {
			b.Fatalf("Stats() = %+v, want none dropped", stats)
		}
		begin := time.Now()
		for i := range sent {
			if i == timed {
				spent += time.Since(begin)
			}
			if _, err := s.Next(); err != nil {
				b.Fatal(err)
			}
		}
		packets += timed
	}
	b.ReportMetric(float64(packets)/spent.Seconds(), "packets/s")
}
