package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// TestSMCRv1Option has a host ask for TCP option 254 if it can do SMC with another machine at all: with a UEID, or in version 1.
func TestSMCRv1Option(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want bool
	}{
		{Config{}, false},
		{Config{UEIDs: []string{"GOSMC.TEST"}}, true},
		{Config{SMCRv1: true}, true},
		{Config{SMCRv1: true, Disabled: true}, false},
	} {
		if got := newTestHost(t, tt.cfg).wantsOption(); got != tt.want {
			t.Errorf("UEIDs %v, version 1 %v, disabled %v: wants the option %v, want %v", tt.cfg.UEIDs, tt.cfg.SMCRv1, tt.cfg.Disabled, got, tt.want)
		}
	}
}

// newV1Rig is newTwinRig for version 1 alone. The interfaces of its hosts have link-local addresses.
func newV1Rig(t testing.TB, change func(c, s *Config)) (*smcrRig, *smctest.Cables, [2][2]netip.Addr) {
	t.Helper()
	r, cables := newTwinRig(t, func(c, s *Config) {
		for _, x := range []*Config{c, s} {
			x.SMCRv1, x.UEIDs, x.SMCRDevices = true, nil, nil
		}
		if change != nil {
			change(c, s)
		}
	})
	var local [2][2]netip.Addr // by cable and end
	for i := range local {
		for end := range local[i] {
			name := fmt.Sprintf("cable%d", i)
			smctest.Eventually(t, patience, "a link-local address of "+name, func() (ok bool) {
				cables.Visit(end, func() {
					iface, err := net.InterfaceByName(name)
					if err != nil {
						return
					}
					local[i][end] = rnic.LinkLocalOf(iface)
					fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // package net remembers zones of other namespaces
					if err != nil || !local[i][end].IsValid() {
						return
					}
					defer unix.Close(fd)
					ok = unix.Bind(fd, &unix.SockaddrInet6{Addr: local[i][end].As16(), ZoneId: uint32(iface.Index)}) == nil // not tentative any more
				})
				return ok
			})
		}
	}
	return r, cables, local
}

// TestSMCRv1LinkLocal has two hosts in version 1. Their links are between link-local addresses, as
// the links of all RNICs of version 1 are, on both cables. A link that is lost costs nothing, and
// comes back.
func TestSMCRv1LinkLocal(t *testing.T) {
	for _, six := range []bool{false, true} {
		r, cables, local := newV1Rig(t, func(c, s *Config) {
			if !six {
				c.UEIDs, s.UEIDs = []string{"CLIENT"}, []string{"SERVER"} // both versions are offered, and version 1 is left
			}
		})
		if six {
			r.local = cables.Six[0][0]
			cables.Run[1](func() { r.l = mustListen(t, r.server, netip.AddrPortFrom(cables.Six[0][1], 0).String()) })
		}
		c, s := r.connect()
		checkSMCR(t, c, s)
		if c.Agreed().Version != "1.0" {
			t.Fatalf("version %s", c.Agreed().Version)
		}
		r.awaitRedundancy("symmetric")
		check := func() {
			t.Helper()
			for end, h := range []*Host{r.client, r.server} {
				for _, l := range groupsOf(h)[0].Links {
					addr := netip.MustParseAddr(l.Device)
					if addr != local[0][end] && addr != local[1][end] || l.LocalGID != wire.GIDFromAddr(addr.WithZone("")).String() {
						t.Errorf("end %d: link %d is on %v with GID %s, want one of %v", end, l.Number, addr, l.LocalGID, local)
					}
				}
			}
		}
		check()
		checkExchange(t, c, s)
		cables.IP(0, "link set cable1 down")
		smctest.Eventually(t, patience, "both ends have lost the link", func() bool { return r.failovers() == 2 })
		checkExchange(t, c, s)
		cables.IP(0, "link set cable1 up")
		r.awaitRedundancy("symmetric")
		check()
		checkTransfer(t, c, s, 1<<20)
		c.Close()
		s.Close()
		checkGone(t, r.client, r.server)
	}
}

// A kernelV1 plays Linux 5.10 in version 1 of SMC-R, which no kernel offers over software RDMA: its
// messages are laid out by hand. It has an RNIC with a link-local GID on each of two cables. The
// link package moves the data.
type kernelV1 struct {
	t      *testing.T
	client bool
	devs   [2]*rdma.Device
	group  *link.Group
	links  [2]*link.Link
	rmb    *link.RMB
	data   *link.Carrier
	conn   *stream.Conn
	ready  atomic.Bool
	tcp    *net.TCPConn

	peerRKey   [2]link.RMBToken // of their RMB, by link
	remaining  int              // RKeys that we have to tell
	ends       chan error       // the second link is there, or will not be
	over       chan struct{}    // closed by close
	failedOver atomic.Bool      // the connection has moved

	mu   sync.Mutex
	lost [2]bool
}

var ebcdic = []byte{0xe2, 0xd4, 0xc3, 0xd9}

func newKernelV1(t *testing.T, client bool, visit func(func()), local [2]netip.Addr) *kernelV1 {
	t.Helper()
	k := &kernelV1{t: t, client: client, group: link.NewGroup(), ends: make(chan error, 1), over: make(chan struct{})}
	for i, addr := range local {
		var err error
		visit(func() { k.devs[i], err = rdma.Open(addr, nil) })
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if k.links[0], err = k.group.NewLink(rdma.Verbs(k.devs[0])); err != nil {
		t.Fatal(err)
	}
	if k.rmb, err = k.group.NewRMB(2); err != nil {
		t.Fatal(err)
	}
	wake := func() {
		if k.ready.Load() {
			k.conn.Wake()
		}
	}
	if k.data, err = k.group.NewCarrier(link.CarrierConfig{RMB: k.rmb, Wake: wake}); err != nil {
		t.Fatal(err)
	}
	return k
}

// close ends everything without another word.
func (k *kernelV1) close() {
	if k.conn != nil {
		k.conn.Close()
		k.conn.SendLast(cdc.Closed)
	}
	k.data.Detach()
	select {
	case <-k.data.Sent():
	case <-time.After(patience):
		k.t.Error("the last word does not arrive")
	}
	k.data.Release()
	close(k.over)
	k.rmb.Free()
	k.group.Close()
	for _, d := range k.devs {
		d.Close()
	}
	k.tcp.Close()
}

func (k *kernelV1) peerID() []byte { return []byte{0x12, 0x34, 2, 0, 0, 0, 0, 0x77} }
func (k *kernelV1) mac(i int) []byte {
	m := k.devs[i].MAC()
	return m[:]
}
func (k *kernelV1) gid(i int) []byte {
	g := k.devs[i].GID()
	return g[:]
}

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }
func get24(b []byte) uint32    { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// proposal has 92 bytes: header version 2, though version 1 alone is offered, and the growth area of version 2.
func (k *kernelV1) proposal(network netip.Prefix) []byte {
	b := make([]byte, 92)
	copy(b, ebcdic)
	b[4], b[6], b[7] = 1, 92, 0x28
	copy(b[8:], k.peerID())
	copy(b[16:], k.gid(0))
	copy(b[32:], k.mac(0))
	b[39] = 40
	copy(b[80:], network.Masked().Addr().AsSlice())
	b[84] = byte(network.Bits())
	copy(b[88:], ebcdic)
	return b
}

// params is an Accept or Confirm, 68 bytes.
func (k *kernelV1) params(kind, flags byte) []byte {
	b := make([]byte, 68)
	copy(b, ebcdic)
	b[4], b[6], b[7] = kind, 68, 0x10|flags
	copy(b[8:], k.peerID())
	copy(b[16:], k.gid(0))
	copy(b[32:], k.mac(0))
	token, _ := k.rmb.Token(k.links[0])
	put24(b[38:], uint32(k.links[0].QPN()))
	binary.BigEndian.PutUint32(b[41:], uint32(token.RKey))
	b[45] = 1
	binary.BigEndian.PutUint32(b[46:], uint32(k.data.AlertToken()))
	b[50] = byte(k.rmb.Size())<<4 | byte(k.links[0].MTU())
	binary.BigEndian.PutUint64(b[52:], token.Addr)
	put24(b[61:], uint32(k.links[0].PSN()))
	copy(b[64:], ebcdic)
	return b
}

// meet takes the other side's Accept or Confirm, and joins the first link.
func (k *kernelV1) meet(b []byte) {
	k.t.Helper()
	if len(b) != 68 || !bytes.Equal(b[:4], ebcdic) || b[7]>>4 != 1 || b[16] != 0xfe || b[17] != 0x80 {
		k.t.Fatalf("the other side sent %x, want an Accept or Confirm of version 1 with a link-local GID", b)
	}
	p := link.Peer{
		GID: wire.GID(b[16:32]), QPN: wire.QPN(get24(b[38:])), PSN: wire.PSN(get24(b[61:])), MTU: wire.MTU(b[50] & 15),
	}
	k.peerRKey[0] = link.RMBToken{RKey: wire.RKey(binary.BigEndian.Uint32(b[41:])), Addr: binary.BigEndian.Uint64(b[52:])}
	if err := k.links[0].ReadyToReceive(p); err != nil {
		k.t.Fatal(err)
	}
	if err := k.links[0].ReadyToSend(); err != nil {
		k.t.Fatal(err)
	}
	to := link.PeerRMBE{
		AlertToken: wire.AlertToken(binary.BigEndian.Uint32(b[46:])), RKey: k.peerRKey[0].RKey, Addr: k.peerRKey[0].Addr, Index: b[45], Size: wire.SizeCode(b[50] >> 4),
	}
	if err := k.data.Attach(k.links[0], to, false); err != nil {
		k.t.Fatal(err)
	}
	k.conn = stream.New(k.data.Stream())
	k.ready.Store(true)
	k.conn.Wake()
}

func (k *kernelV1) readCLC() []byte {
	k.t.Helper()
	k.tcp.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 8, 1024)
	if _, err := io.ReadFull(k.tcp, b); err != nil {
		k.t.Fatal(err)
	}
	b = b[:binary.BigEndian.Uint16(b[5:])]
	if _, err := io.ReadFull(k.tcp, b[8:]); err != nil {
		k.t.Fatal(err)
	}
	return b
}

func (k *kernelV1) writeCLC(b []byte) {
	k.t.Helper()
	if _, err := k.tcp.Write(b); err != nil {
		k.t.Fatal(err)
	}
}

// say sends an LLC message over a link.
func (k *kernelV1) say(i int, b []byte) { _ = k.links[i].SendLLC(b, 0) } // a link may be down

// message is an LLC message of version 1.
func message(kind, flags byte, fill func(b []byte)) []byte {
	b := make([]byte, 44)
	b[0], b[1], b[3] = kind, 44, flags
	fill(b)
	return b
}

// confirmLink says "no eyecatcher", as all kernels do.
func (k *kernelV1) confirmLink(i int, flags byte) []byte {
	return message(1, flags|3, func(b []byte) {
		copy(b[4:], k.mac(i))
		copy(b[10:], k.gid(i))
		put24(b[26:], uint32(k.links[i].QPN()))
		b[29], b[32], b[33], b[34] = byte(i+1), 7, byte(i+1), 2
	})
}

func (k *kernelV1) addLink(flags byte) []byte {
	return message(2, flags, func(b []byte) {
		copy(b[4:], k.mac(1))
		copy(b[12:], k.gid(1))
		put24(b[28:], uint32(k.links[1].QPN()))
		b[31], b[32] = 2, byte(k.links[1].MTU())
		put24(b[33:], uint32(k.links[1].PSN()))
	})
}

// cont tells where our RMB is on the second link.
func (k *kernelV1) cont(flags byte) []byte {
	return message(3, flags, func(b []byte) {
		b[4], b[5] = 2, byte(k.remaining)
		if k.remaining > 0 {
			first, _ := k.rmb.Token(k.links[0])
			second, _ := k.rmb.Token(k.links[1])
			binary.BigEndian.PutUint32(b[8:], uint32(first.RKey))
			binary.BigEndian.PutUint32(b[12:], uint32(second.RKey))
			binary.BigEndian.PutUint64(b[16:], second.Addr)
		}
		k.remaining = 0
	})
}

// openSecond makes our end of the second link.
func (k *kernelV1) openSecond() error {
	l, err := k.group.NewLink(rdma.Verbs(k.devs[1]))
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.links[1] = l
	k.mu.Unlock()
	k.remaining = 1
	return nil
}

// joinSecond joins it with the end that ADD LINK or its reply tells.
func (k *kernelV1) joinSecond(b []byte) error {
	p := link.Peer{GID: wire.GID(b[12:28]), QPN: wire.QPN(get24(b[28:])), PSN: wire.PSN(get24(b[33:])), MTU: wire.MTU(b[32] & 15)}
	if b[12] != 0xfe || b[13] != 0x80 {
		return fmt.Errorf("the GID of the second link is %v", p.GID)
	}
	if err := k.links[1].ReadyToReceive(p); err != nil {
		return err
	}
	return k.links[1].ReadyToSend()
}

// run answers on the links until close.
func (k *kernelV1) run() {
	for {
		for ev, ok := k.group.Poll(); ok; ev, ok = k.group.Poll() {
			i := 0
			if ev.Link == k.links[1] {
				i = 1
			}
			switch ev.Kind {
			case link.EventLLC:
				if err := k.hear(i, ev.Message); err != nil {
					select {
					case k.ends <- err:
					default:
						k.t.Error(err)
					}
				}
			case link.EventFailed:
				k.fail(i)
			}
		}
		select {
		case <-k.group.News():
		case <-k.over:
			return
		}
	}
}

// hear takes an LLC message, as smc_llc.c does.
func (k *kernelV1) hear(i int, b []byte) error {
	if len(b) < 44 || b[0] > 9 || b[1] != 44 {
		return fmt.Errorf("message %x is not one of version 1", b)
	}
	reply := b[3]&0x80 != 0
	switch b[0] {
	case 1: // CONFIRM LINK
		if b[3]&3 == 0 {
			return errors.New("elements with an eyecatcher")
		}
		switch {
		case !reply: // of the server
			k.say(i, k.confirmLink(i, 0x80))
		case i == 0: // the kernel always asks for a second link
			if err := k.openSecond(); err != nil {
				return err
			}
			k.say(0, k.addLink(0))
			return nil
		}
		if i == 1 {
			k.ends <- nil
		}
	case 2: // ADD LINK
		switch {
		case b[3]&0x40 != 0:
			return errors.New("the second link was rejected")
		case reply:
			if err := k.joinSecond(b); err != nil {
				return err
			}
			k.say(0, k.cont(0))
		default:
			if err := k.openSecond(); err != nil {
				return err
			}
			if err := k.joinSecond(b); err != nil {
				return err
			}
			k.say(0, k.addLink(0x80))
		}
	case 3: // ADD LINK CONTINUATION
		if b[5] > 0 {
			if old := wire.RKey(binary.BigEndian.Uint32(b[8:])); old != k.peerRKey[0].RKey {
				return fmt.Errorf("RKey %v in place of %v", old, k.peerRKey[0].RKey)
			}
			k.peerRKey[1] = link.RMBToken{RKey: wire.RKey(binary.BigEndian.Uint32(b[12:])), Addr: binary.BigEndian.Uint64(b[16:])}
		}
		if reply {
			k.say(1, k.confirmLink(1, 0))
		} else {
			k.say(0, k.cont(0x80))
		}
	case 4: // DELETE LINK
		if reply || b[3]&0x40 != 0 {
			return nil
		}
		num := int(b[4]) - 1
		if num != 0 && num != 1 {
			return fmt.Errorf("DELETE LINK of link %d", b[4])
		}
		k.fail(num)
		if k.client {
			b[3] |= 0x80 // a client complies
		}
		k.say(i, b) // a server says the same
	case 6, 7, 9: // CONFIRM RKEY, TEST LINK, DELETE RKEY
		if !reply {
			b[3] |= 0x80
			k.say(i, b)
		}
	default:
		return fmt.Errorf("message of type %d", b[0])
	}
	return nil
}

// fail takes a link that does not work, moves the connection, and tells the other side of it.
func (k *kernelV1) fail(i int) {
	select {
	case <-k.over:
		return
	default:
	}
	k.mu.Lock()
	known := k.lost[i]
	k.lost[i] = true
	other := k.links[1-i]
	k.mu.Unlock()
	if known || other == nil {
		return
	}
	k.links[i].Fail(errors.New("the port is down"))
	if err := k.data.Move(other, k.peerRKey[1-i]); err != nil {
		k.t.Errorf("Move: %v", err)
	}
	k.failedOver.Store(true)
	flags := byte(0)
	if k.client {
		flags = 0x20 // orderly
	}
	k.say(1-i, message(4, flags, func(b []byte) { b[4], b[6] = byte(i+1), 1 })) // 0x00010000: lost path
}

// TestSMCRv1Linux has a kernel of version 1 at the other end, in either role: two links between link-local GIDs, and one of them is cut while data
// flows both ways.
func TestSMCRv1Linux(t *testing.T) {
	for _, tt := range []struct {
		name   string
		client bool // of the kernel
		cable  int
		end    int // where it is cut
	}{
		{"kernel client, our first interface down", true, 0, 1},
		{"kernel client, its second interface down", true, 1, 0},
		{"kernel server, our second interface down", false, 1, 0},
		{"kernel server, its first interface down", false, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, cables, local := newV1Rig(t, nil)
			end := 1
			if tt.client {
				end = 0
			}
			k := newKernelV1(t, tt.client, func(f func()) { cables.Visit(end, f) }, [2]netip.Addr{local[0][end], local[1][end]})
			ours := k.connect(r, cables)
			checkSMCR(t, ours)
			if ours.Agreed().Version != "1.0" {
				t.Fatalf("version %s", ours.Agreed().Version)
			}
			select {
			case err := <-k.ends:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(patience):
				t.Fatal("no second link")
			}
			h := r.server
			if !tt.client {
				h = r.client
			}
			smctest.Eventually(t, patience, "the second link is up", func() bool { return groupsOf(h)[0].Type == "SYMMETRIC" })
			k.exchange(ours, func() { cables.IP(tt.end, fmt.Sprintf("link set cable%d down", tt.cable)) })
			if n := groupsOf(h)[0].Failovers; n == 0 || !k.failedOver.Load() {
				t.Errorf("we have lost %d links, the kernel one: %v", n, k.failedOver.Load())
			}
			closed := make(chan bool)
			go func() { ours.Close(); close(closed) }()
			k.close()
			<-closed
		})
	}
}

// connect makes the first contact, in the kernel's role, and returns our end.
func (k *kernelV1) connect(r *smcrRig, cables *smctest.Cables) conn.Conn {
	t := k.t
	t.Helper()
	network := netip.PrefixFrom(cables.Addr[0][0], 24)
	if k.client {
		cables.Run[0](func() {
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(cables.Addr[0][0], 0))}
			c, err := d.Dial("tcp", r.l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			k.tcp = c.(*net.TCPConn)
		})
		if k.tcp == nil {
			t.FailNow()
		}
		k.writeCLC(k.proposal(network))
		b := k.readCLC()
		if b[4] != 2 || b[7]&8 == 0 {
			t.Fatalf("the server sent %x, want an Accept of a first contact", b)
		}
		k.meet(b)
		go k.run()
		k.writeCLC(k.params(3, 0))
		return mustAccept(t, r.l)
	}
	var l *net.TCPListener
	cables.Run[1](func() {
		var err error
		if l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(cables.Addr[0][1], 0))); err != nil {
			t.Error(err)
		}
	})
	if l == nil {
		t.FailNow()
	}
	defer l.Close()
	result := make(chan dialed, 1)
	go func() {
		var res dialed
		o := DialOptions{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(cables.Addr[0][0], 0))}
		r.in(func() { res.conn, res.err = r.client.Dial(boundedContext(t), "tcp", l.Addr().String(), o) })
		result <- res
	}()
	l.SetDeadline(time.Now().Add(patience))
	var err error
	if k.tcp, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	b := k.readCLC()
	want := k.proposal(network)
	if len(b) != 92 || b[4] != 1 || b[7] != 0x28 || b[16] != 0xfe || b[17] != 0x80 || !bytes.Equal(b[38:40], want[38:40]) || !bytes.Equal(b[80:], want[80:]) {
		t.Fatalf("the client sent %x, want a Proposal such as %x", b, want)
	}
	k.writeCLC(k.params(2, 8))
	if b = k.readCLC(); b[4] != 3 {
		t.Fatalf("the client sent %x, want a Confirm", b)
	}
	k.meet(b)
	go k.run()
	k.say(0, k.confirmLink(0, 0))
	res := <-result
	if res.err != nil {
		t.Fatal(res.err)
	}
	return res.conn
}

// exchange sends both ways, and calls cut when some has arrived.
func (k *kernelV1) exchange(ours conn.Conn, cut func()) {
	const size = 12 << 20
	t := k.t
	t.Helper()
	ours.SetDeadline(time.Now().Add(patience))
	type readWriter interface {
		Read(b []byte) (int, error)
		Write(b []byte) (int, error)
	}
	var arrived atomic.Int64
	var all sync.WaitGroup
	for _, end := range []readWriter{ours, k.conn} {
		all.Go(func() {
			buf := make([]byte, 100<<10)
			for at := 0; at < size; at += len(buf) {
				buf = buf[:min(len(buf), size-at)]
				smctest.Pattern(buf, uint64(at))
				if _, err := end.Write(buf); err != nil {
					t.Errorf("after %d bytes: %v", at, err)
					return
				}
			}
		})
		all.Go(func() {
			buf := make([]byte, 64<<10)
			for at := 0; at < size; {
				n, err := end.Read(buf)
				if err == nil {
					err = smctest.CheckPattern(buf[:n], uint64(at))
				}
				if err != nil {
					t.Errorf("after %d bytes: %v", at, err)
					return
				}
				at += n
				arrived.Add(int64(n))
			}
		})
	}
	smctest.Eventually(t, patience, "some data", func() bool { return arrived.Load() > size/8 || t.Failed() })
	cut()
	all.Wait()
}
