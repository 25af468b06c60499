package rdma

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// shares makes n shares of an address's port. A classic filter steers them, for which no privilege is needed: it chooses
// the socket that was bound as the n-th by the upper byte of the destination queue pair, from 1.
func shares(t testing.TB, addr netip.Addr, n int) (list []*Share) {
	t.Helper()
	for i := range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "share")
		t.Cleanup(func() { f.Close() })
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.As4(), Port: roce.Port}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			filter := []unix.SockFilter{
				{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 5},
				{Code: unix.BPF_ALU | unix.BPF_SUB | unix.BPF_K, K: 1},
				{Code: unix.BPF_RET | unix.BPF_A},
			}
			err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
			if err != nil {
				t.Fatal(err)
			}
		}
		list = append(list, &Share{Socket: f, First: wire.QPN(i+1) << 16, Count: 1 << 16, Key: [16]byte{7, 7}})
	}
	return list
}

// TestShare has three devices share an address, and one elsewhere that talks to all of them at once.
func TestShare(t *testing.T) {
	addr := randomLoopback()
	peerDev, err := Open(randomLoopback(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peerDev.Close() })
	var ends [][2]*side
	for i, share := range shares(t, addr, 3) {
		s, peer := newSide(t, addr, &Config{Share: share}, nil), newSideOn(t, peerDev, nil)
		if n := s.qp.QPN(); int(n>>16) != i+1 {
			t.Errorf("queue pair %v of share %d", n, i)
		}
		if port := s.dev.sock.SourceAddr().Port(); port == roce.Port {
			t.Errorf("share %d sends from the shared port", i)
		}
		connect(t, s, peer, wire.MTU1024)
		for k := range s.mr.Bytes() {
			s.mr.Bytes()[k], peer.mr.Bytes()[k] = byte(i+k+k>>8), byte(i+5*k+k>>9)
		}
		ends = append(ends, [2]*side{s, peer})
	}
	const n = testRegion / 2
	for round := range 4 {
		for _, pair := range ends {
			for k, s := range pair {
				to := pair[1-k]
				if err := to.qp.PostRecv(RecvWR{ID: 1, Local: [2]SGE{{MR: to.mr, Addr: to.mr.Addr(), Len: 4}}}); err != nil {
					t.Fatal(err)
				}
				err := s.qp.PostSend(
					SendWR{Op: OpWrite, Remote: to.mr.Addr() + n, RKey: to.mr.RKey(), Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr() + uint64(k), Len: n - 8}}},
					SendWR{ID: 2, Op: OpSend, Signaled: true, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 4}}})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, pair := range ends {
			for k, s := range pair {
				for range 2 { // the receive and the send
					if c := s.await(t); c.Status != StatusOK {
						t.Fatalf("round %d, share %d: %+v", round, i, c)
					}
				}
				if from := pair[1-k].mr.Bytes(); !bytes.Equal(s.mr.Bytes()[n+8:2*n-8], from[8+1-k:][:n-16]) {
					t.Fatalf("round %d, share %d, end %d: what has arrived is different", round, i, k)
				}
			}
		}
	}
	for i, pair := range ends {
		st := pair[0].dev.Stats()
		if st.UnknownQP+st.BadICRC+st.Malformed+st.HandOnErrors+st.WrongPeer > 0 {
			t.Errorf("share %d: %+v", i, st)
		}
	}
}

// TestShareApart puts packets of several queue pairs into one batch: those for different processes that share a port are
// not joined, and those for one process, or to a peer that does not share, are.
func TestShareApart(t *testing.T) {
	remote := netip.AddrPortFrom(randomLoopback(), roce.Port)
	rx, err := udp.Listen(udp.Config{Local: remote})
	if err != nil {
		t.Fatal(err)
	}
	defer rx.Close()
	rx.SetReadDeadline(time.Now().Add(patience))
	tx, err := udp.Listen(udp.Config{Local: netip.AddrPortFrom(randomLoopback(), 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	if !tx.Capabilities().Segmentation || !rx.Capabilities().Coalescing {
		t.Skip("the kernel does not join datagrams")
	}
	const shared, alone = 40000, roce.Port // ports that the peer sends from
	for _, tt := range []struct {
		name string
		port uint16
		qpns []wire.QPN
		want []int // packets of each message
	}{
		{"one process", shared, []wire.QPN{0x20011, 0x20012, 0x2ffff}, []int{3}},
		{"three", shared, []wire.QPN{0x20011, 0x30011, 0x40011}, []int{1, 1, 1}},
		{"in turn", shared, []wire.QPN{0x20011, 0x20012, 0x30011, 0x20011}, []int{2, 1, 1}},
		{"not shared", alone, []wire.QPN{0x20011, 0x30011, 0x40011}, []int{3}},
	} {
		snd := newSender()
		snd.begin()
		snd.to(&path{remote: remote})
		for _, n := range tt.qpns {
			snd.apart(&QP{remote: remote, rxPort: tt.port, c: &qpc{remoteQPN: n}})
			snd.batch.Next(60)
			snd.batch.Commit(60)
		}
		if err := tx.Send(snd.batch, nil); err != nil {
			t.Fatal(err)
		}
		var got []int
		for batch := udp.NewRxBatch(8); len(got) < len(tt.want); {
			if err := rx.Recv(batch); err != nil {
				t.Fatalf("%s: %v after %v", tt.name, err, got)
			}
			for i := range batch.Len() {
				got = append(got, batch.Message(i).Segments())
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: messages of %v packets, want %v", tt.name, got, tt.want)
		}
	}
}

// TestHandOn has a peer send a super-packet whose packets are for two devices that share an address.
func TestHandOn(t *testing.T) {
	addr, far := randomLoopback(), netip.AddrPortFrom(randomLoopback(), roce.Port)
	sock, err := udp.Listen(udp.Config{Local: far})
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	if !sock.Capabilities().Segmentation || !sock.Capabilities().Coalescing {
		t.Skip("the kernel does not join datagrams")
	}
	var ends []*side
	for _, share := range shares(t, addr, 2) {
		s := newSide(t, addr, &Config{Share: share}, nil)
		if err := s.qp.Init(LocalWrite | RemoteWrite); err != nil {
			t.Fatal(err)
		}
		if err := s.qp.ReadyToReceive(RTR{RemoteGID: wire.GIDFromAddr(far.Addr()), RemoteQPN: rawQPN, PathMTU: wire.MTU1024, RecvPSN: testRecvPSN, MinRNRTimer: 5}); err != nil {
			t.Fatal(err)
		}
		for range 8 {
			if err := s.qp.PostRecv(RecvWR{ID: 1, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 64}}}); err != nil {
				t.Fatal(err)
			}
		}
		ends = append(ends, s)
	}
	to := netip.AddrPortFrom(addr, roce.Port)
	seal := &rawPeer{t: t, flow: roce.NewFlow(far, to)}
	batch := udp.NewTxBatch(0)
	batch.To(to, 0)
	const each = 4
	for i := range 2 * each {
		p := roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly, PKey: roce.DefaultPKey, DestQPN: ends[i%2].qp.QPN(), PSN: testRecvPSN + wire.PSN(i/2)},
			Payload: []byte{byte(i), 1, 2, 3}}
		b := append(p.Append(nil), 0, 0, 0, 0)
		copy(batch.Next(len(b)), b)
		batch.Commit(len(b))
	}
	if err := sock.Send(batch, seal); err != nil {
		t.Fatal(err)
	}
	for range each {
		for _, s := range ends {
			if c := s.await(t); c.Status != StatusOK || c.Op != Received || c.Len != 4 {
				t.Fatalf("completion %+v", c)
			}
		}
	}
	first, second := ends[0].dev.Stats(), ends[1].dev.Stats()
	if first.HandedOn != each || second.HandedOver != each || first.HandOnErrors+second.HandOnErrors+second.HandedOn > 0 {
		t.Errorf("first %+v\nsecond %+v", first, second)
	}
}

// setOffload switches a feature of an interface: unix.ETHTOOL_SGRO, say.
func setOffload(name string, feature, on uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ cmd, on uint32 }{feature, on} // struct ethtool_value, Linux include/uapi/linux/ethtool.h
	r := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(r.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return errno
	}
	return nil
}

// TestHandOnMany has a peer send to two devices that share an address over a cable whose end joins
// packets, one by one as other stacks send them. A packet that is joined wrongly is handed on, and
// all packets arrive.
func TestHandOnMany(t *testing.T) {
	c := smctest.NewCables(t, 1)
	var err error
	// A veth joins the packets that it receives if the other end could not have sent it joined:
	// Linux drivers/net/veth.c.
	c.Run[0](func() { err = setOffload("cable0", unix.ETHTOOL_SGRO, 1) })
	if err == nil {
		c.Run[1](func() { err = setOffload("cable0", unix.ETHTOOL_STSO, 0) })
	}
	if err == nil {
		// Packets are held back for a moment, to be joined with the next ones.
		script := "mount -t sysfs sysfs /sys && cd /sys/class/net/cable0 && echo 200000 > gro_flush_timeout && echo 2 > napi_defer_hard_irqs"
		c.Run[0](func() { err = exec.Command("unshare", "-m", "sh", "-c", script).Run() })
	}
	if err != nil {
		t.Skipf("the cable does not join packets: %v", err)
	}
	var far *Device
	c.Run[1](func() { far, err = Open(c.Addr[0][1], &Config{NoSegmentation: true}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	var pairs [][2]*side
	c.Run[0](func() {
		for _, share := range shares(t, c.Addr[0][0], 2) {
			pairs = append(pairs, [2]*side{newSide(t, c.Addr[0][0], &Config{Share: share}, nil), nil})
		}
	})
	for i := range pairs {
		pairs[i][1] = newSideOn(t, far, nil)
		connect(t, pairs[i][0], pairs[i][1], wire.MTU1024)
	}
	var on, over, joined uint64
	count := func() {
		on, over, joined = 0, 0, 0
		for _, pair := range pairs {
			st := pair[0].dev.Stats()
			on, over = on+st.HandedOn, over+st.HandedOver
			joined += pair[0].dev.SocketStats().Received.SuperPackets
		}
	}
	const n = testRegion / 4
	// The kernel may join none that are for different shares in the first rounds.
	for round := 0; round < 8 || on == 0 && joined > 0 && round < 500; round++ {
		for i, pair := range pairs {
			from := pair[1].mr.Bytes()
			for k := range n {
				from[k] = byte(round + i*7 + k + k>>9)
			}
			for k := range uint64(8) { // in pieces, so that they take turns
				err := pair[1].qp.PostSend(SendWR{Op: OpWrite, Signaled: k == 7, Remote: pair[0].mr.Addr() + k*n/8, RKey: pair[0].mr.RKey(),
					Local: [2]SGE{{MR: pair[1].mr, Addr: pair[1].mr.Addr() + k*n/8, Len: n / 8}}})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, pair := range pairs {
			if got := pair[1].await(t); got.Status != StatusOK {
				t.Fatalf("round %d, share %d: %+v", round, i, got)
			}
			if !bytes.Equal(pair[0].mr.Bytes()[:n], pair[1].mr.Bytes()[:n]) {
				t.Fatalf("round %d, share %d: what has arrived is different", round, i)
			}
		}
		count()
	}
	for i, pair := range pairs {
		st := pair[0].dev.Stats()
		if st.UnknownQP+st.BadICRC+st.Malformed+st.WrongPeer > 0 {
			t.Errorf("share %d: %+v", i, st)
		}
	}
	if joined == 0 {
		t.Skip("the kernel has joined nothing")
	}
	if on == 0 || over == 0 || on < over {
		t.Errorf("%d packets were handed on, and %d taken", on, over)
	}
}

// TestHandOnLies has processes that do not share the port hand packets on, and some that share it
// lie.
func TestHandOnLies(t *testing.T) {
	addr := randomLoopback()
	s := newSide(t, addr, &Config{Share: shares(t, addr, 1)[0]}, nil)
	far := netip.AddrPortFrom(randomLoopback(), roce.Port)
	if err := s.qp.Init(LocalWrite | RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if err := s.qp.ReadyToReceive(RTR{RemoteGID: wire.GIDFromAddr(far.Addr()), RemoteQPN: rawQPN, PathMTU: wire.MTU1024, RecvPSN: testRecvPSN, MinRNRTimer: 5}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := s.qp.PostRecv(RecvWR{ID: 1, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 64}}}); err != nil {
			t.Fatal(err)
		}
	}
	to := netip.AddrPortFrom(addr, roce.Port)
	flow := roce.NewFlow(far, to)
	packet := func(qpn wire.QPN, psn wire.PSN) []byte {
		p := roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly, PKey: roce.DefaultPKey, DestQPN: qpn, PSN: psn}, Payload: []byte{1, 2, 3, 4}}
		b := append(p.Append(nil), 0, 0, 0, 0)
		flow.Seal(0, b)
		return b
	}
	wrap := func(key byte, inner []byte) []byte {
		b := append([]byte{handedOn, handedOnVersion}, inner[2:8]...)
		b = append(b, key, key)
		b = append(b, make([]byte, 14)...)
		from := far.Addr().As16()
		b = append(b, from[:]...)
		b = binary.BigEndian.AppendUint16(b, far.Port())
		return append(append(b, 0, 0), inner...)
	}
	send := func(from netip.Addr, b []byte) {
		t.Helper()
		c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	mine := packet(s.qp.QPN(), testRecvPSN)
	for _, tt := range []struct {
		name string
		from netip.Addr
		b    []byte
	}{
		{"another key", addr, wrap(8, mine)},
		{"another address", randomLoopback(), wrap(7, mine)},
		{"twice", addr, wrap(7, wrap(7, mine))},
		{"twice, from here", addr, func() []byte {
			b, here := wrap(7, wrap(7, mine)), addr.As16()
			copy(b[24:], here[:])
			return b
		}()},
		{"for another one", addr, append(wrap(7, mine)[:handedOnLen], packet(0x50012, testRecvPSN)...)},
		{"for nobody", addr, append(wrap(7, mine)[:handedOnLen], packet(s.qp.QPN()^1, testRecvPSN)...)},
		{"too short", addr, wrap(7, mine)[:handedOnLen+roce.MinPacketLen-1]},
		{"no packet", addr, append(wrap(7, mine)[:handedOnLen], make([]byte, 64)...)},
		{"another version", addr, func() []byte { b := wrap(7, mine); b[1] = 2; return b }()},
	} {
		send(tt.from, tt.b)
	}
	send(addr, wrap(7, mine)) // and a good one, which comes behind all others
	if c := s.await(t); c.Status != StatusOK || c.Op != Received {
		t.Fatalf("completion %+v", c)
	}
	st := s.dev.Stats()
	if got := s.qp.Stats().RcvdMessages; got != 1 || st.HandedOn != 0 || st.HandOnErrors != 4 {
		t.Errorf("%d messages, %+v", got, st)
	}
}

// TestShareErrors opens devices with shares that are none.
func TestShareErrors(t *testing.T) {
	addr := randomLoopback()
	before := smctest.CountDescriptors()
	for name, change := range map[string]func(*Share){
		"no numbers":      func(s *Share) { s.Count = 0 },
		"few numbers":     func(s *Share) { s.Count = minShare - 1 },
		"management":      func(s *Share) { s.First = 1 },
		"multicast":       func(s *Share) { s.First = 0xff0000; s.Count = 1 << 16 },
		"beyond 24 bits":  func(s *Share) { s.First = 1 << 24 },
		"no socket":       func(s *Share) { s.Socket.Close(); s.Socket = nil },
		"a file":          func(s *Share) { s.Socket.Close(); s.Socket, _ = os.Open("/dev/null") },
		"a closed socket": func(s *Share) { s.Socket.Close() },
		"another address": func(s *Share) { s.Socket.Close(); s.Socket = shares(t, randomLoopback(), 1)[0].Socket },
	} {
		share := shares(t, addr, 1)[0]
		change(share)
		if d, err := Open(addr, &Config{Share: share}); err == nil {
			d.Close()
			t.Errorf("%s: opened", name)
		}
	}
	share := shares(t, addr, 1)[0]
	if d, err := Open(addr, &Config{Share: share, Headers: udp.HeadersAlways}); err == nil {
		d.Close()
		t.Error("a packet socket sees what is for others")
	}
	if d, err := Open(netip.MustParseAddr("192.0.2.77"), &Config{Share: shares(t, addr, 1)[0]}); err == nil {
		d.Close()
		t.Error("opened on an address that is not here")
	}
	if after := smctest.CountDescriptors(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// TestOwnNumbers has no number that soft-RoCE gives first.
func TestOwnNumbers(t *testing.T) {
	first, count := (*Share)(nil).numbers()
	if first < 1<<16 || uint64(first)+uint64(count) > uint64(wire.MaxQPN) {
		t.Errorf("numbers from %#x, %#x of them", first, count)
	}
}
