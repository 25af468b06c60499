package rdma

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// patience bounds every wait. It only passes when a test fails.
const patience = 20 * time.Second

// A rawPeer is a UDP socket that sends whatever it is told to a device.
type rawPeer struct {
	t     testing.TB
	sock  *udp.Socket
	batch *udp.TxBatch
	to    netip.AddrPort
	flow  roce.Flow
	spoil func(sealed []byte) // after the ICRC was written
}

func newRawPeer(t testing.TB, to *Device) *rawPeer {
	t.Helper()
	addr := netip.AddrPortFrom(randomLoopback(), roce.Port)
	sock, err := udp.Listen(udp.Config{Local: addr, NoSegmentation: true, NoCoalescing: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.Close() })
	sock.SetReadDeadline(time.Now().Add(patience))
	return &rawPeer{t: t, sock: sock, batch: udp.NewTxBatch(64 << 10), to: to.addr, flow: roce.NewFlow(addr, to.addr)}
}

// Seal writes the ICRC, if the datagram has room for one.
func (r *rawPeer) Seal(_ int, id uint16, b []byte) {
	if len(b) >= roce.MinPacketLen {
		r.flow.Seal(id, b)
	}
	if r.spoil != nil {
		r.spoil(b)
	}
}

// send sends a datagram whose last four bytes are for the ICRC.
func (r *rawPeer) send(b []byte) {
	r.t.Helper()
	r.batch.Reset()
	r.batch.To(r.to, 0)
	copy(r.batch.Next(len(b)), b)
	r.batch.Commit(len(b))
	if err := r.sock.Send(r.batch, r); err != nil {
		r.t.Fatal(err)
	}
}

// sendPacket sends a packet with an ICRC.
func (r *rawPeer) sendPacket(p *roce.Packet) {
	r.t.Helper()
	r.send(append(p.Append(nil), 0, 0, 0, 0))
}

// receive returns the next packet that the device sends.
func (r *rawPeer) receive() (p roce.Packet) {
	r.t.Helper()
	b := udp.NewRxBatch(1)
	if err := r.sock.Recv(b); err != nil {
		r.t.Fatal(err)
	}
	d, _ := b.Message(0).Segment(0)
	if err := p.Parse(bytes.Clone(d)); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// silence fails the test if the device has sent something.
func (r *rawPeer) silence(who string) {
	r.t.Helper()
	b := udp.NewRxBatch(1)
	r.sock.TryRecv(b)
	if b.Len() > 0 {
		r.t.Errorf("the device has answered %s: %x", who, b.Message(0).Data)
	}
}

const rawQPN wire.QPN = 0x4711

// victim is a device whose queue pair is connected to a rawPeer, with a receive posted.
func victim(t testing.TB) (*side, *rawPeer) {
	t.Helper()
	s := newSide(t, randomLoopback(), nil, nil)
	peer := newRawPeer(t, s.dev)
	if err := s.qp.Init(LocalWrite | RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if err := s.qp.ReadyToReceive(RTR{RemoteGID: wire.GIDFromAddr(peer.sock.LocalAddr().Addr()), RemoteQPN: rawQPN, PathMTU: wire.MTU1024, RecvPSN: testRecvPSN, MinRNRTimer: 5}); err != nil {
		t.Fatal(err)
	}
	if err := s.qp.ReadyToSend(RTS{SendPSN: s.psn, Timeout: 15, RetryCount: 7, RNRRetry: 7}); err != nil {
		t.Fatal(err)
	}
	if err := s.qp.PostRecv(RecvWR{ID: 1, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 64}}}); err != nil {
		t.Fatal(err)
	}
	return s, peer
}

// write is a packet that the queue pair would carry out.
func (s *side) write(payload []byte) roce.Packet {
	return roce.Packet{
		BTH:     roce.BTH{Opcode: roce.WriteOnly, PKey: roce.DefaultPKey, DestQPN: s.qp.QPN(), PSN: testRecvPSN, AckReq: true},
		RETH:    roce.RETH{VA: s.mr.Addr() + 512, RKey: s.mr.RKey(), Length: uint32(len(payload))},
		Payload: payload,
	}
}

// marker sends a SEND of a byte and waits until it has arrived: so has all that was sent before.
func (s *side) marker(t testing.TB, peer *rawPeer, psn wire.PSN) {
	t.Helper()
	peer.spoil = nil
	p := roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly, PKey: roce.DefaultPKey, DestQPN: s.qp.QPN(), PSN: psn, AckReq: true}, Payload: []byte{0xee}}
	peer.sendPacket(&p)
	if got := s.await(t); got.ID != 1 || got.Status != StatusOK || got.Len != 1 {
		t.Fatalf("completion %+v, want that of the marker", got)
	}
	if got := peer.receive(); got.Opcode != roce.Acknowledge || got.AETH.Syndrome != roce.AckUnlimited || got.PSN != psn {
		t.Fatalf("the answer to the marker is %v", &got)
	}
}

// TestDropped floods a device with packets that must vanish: without an answer, without a trace in
// the queue pair, and counted by their kind. IBTA 9.6.1.
func TestDropped(t *testing.T) {
	const flood = 50
	known := func(op byte) bool { return roce.Opcode(op).Known() }
	spoilAt := func(at int) func([]byte) { return func(b []byte) { b[at] ^= 0x55 } }
	for _, tt := range []struct {
		name    string
		counter func(s DeviceStats) uint64
		foreign bool // from an address that is not the peer's
		// packets returns datagrams, with room for the ICRC, made of a good one.
		packets func(s *side, good []byte) [][]byte
		spoil   func([]byte)
	}{
		{name: "shorter than a packet", counter: func(s DeviceStats) uint64 { return s.Truncated }, packets: func(_ *side, good []byte) (all [][]byte) {
			for n := 1; n < roce.MinPacketLen; n++ {
				all = append(all, good[:n])
			}
			return all
		}},
		{name: "shorter than headers and pad", counter: func(s DeviceStats) uint64 { return s.Malformed }, packets: func(_ *side, good []byte) (all [][]byte) {
			for op := range 256 {
				for pad := range byte(4) {
					for n := roce.MinPacketLen; n < 60; n += 4 {
						if known(byte(op)) && n-4-int(pad) < roce.Opcode(op).HeaderLen() {
							b := bytes.Clone(good[:n])
							b[0], b[1] = byte(op), pad<<4
							all = append(all, b)
						}
					}
				}
			}
			return all
		}},
		{name: "not a multiple of four", counter: func(s DeviceStats) uint64 { return s.Malformed }, packets: func(_ *side, good []byte) [][]byte {
			return [][]byte{good[:41], good[:42], good[:43], good[:17]}
		}},
		{name: "unknown opcode", counter: func(s DeviceStats) uint64 { return s.Malformed }, packets: func(_ *side, good []byte) (all [][]byte) {
			for op := range 256 {
				if !known(byte(op)) {
					b := bytes.Clone(good)
					b[0] = byte(op)
					all = append(all, b)
				}
			}
			return all
		}},
		{name: "version", counter: func(s DeviceStats) uint64 { return s.Malformed }, packets: func(_ *side, good []byte) (all [][]byte) {
			for v := byte(1); v < 16; v++ {
				b := bytes.Clone(good)
				b[1] |= v
				all = append(all, b)
			}
			return all
		}},
		{name: "queue pair", counter: func(s DeviceStats) uint64 { return s.UnknownQP }, packets: func(s *side, good []byte) (all [][]byte) {
			for _, n := range []wire.QPN{0, 1, 2, 0xffffff, s.qp.QPN() ^ 1, s.qp.QPN() ^ 0x800000} {
				b := bytes.Clone(good)
				binary.BigEndian.PutUint32(b[4:], uint32(n))
				all = append(all, b)
			}
			return all
		}},
		{name: "P_Key", counter: func(s DeviceStats) uint64 { return s.WrongPKey }, packets: func(_ *side, good []byte) (all [][]byte) {
			for _, key := range []uint16{0, 0x8000, 0xfffe, 0x7ffe, 0xbfff} {
				b := bytes.Clone(good)
				binary.BigEndian.PutUint16(b[2:], key)
				all = append(all, b)
			}
			return all
		}},
		{name: "not from the peer", counter: func(s DeviceStats) uint64 { return s.WrongPeer }, foreign: true, packets: func(_ *side, good []byte) [][]byte {
			return slices.Repeat([][]byte{good}, flood)
		}},
		{name: "damaged payload", counter: func(s DeviceStats) uint64 { return s.BadICRC }, spoil: spoilAt(40), packets: func(_ *side, good []byte) [][]byte {
			return slices.Repeat([][]byte{good}, flood)
		}},
		{name: "damaged address", counter: func(s DeviceStats) uint64 { return s.BadICRC }, spoil: spoilAt(19), packets: func(_ *side, good []byte) [][]byte {
			return slices.Repeat([][]byte{good}, flood)
		}},
		{name: "damaged ICRC", counter: func(s DeviceStats) uint64 { return s.BadICRC }, spoil: func(b []byte) { b[len(b)-2] ^= 0x18 }, packets: func(_ *side, good []byte) [][]byte {
			return slices.Repeat([][]byte{good}, flood)
		}},
		{name: "no ICRC", counter: func(s DeviceStats) uint64 { return s.BadICRC }, spoil: func(b []byte) { clear(b[len(b)-4:]) }, packets: func(_ *side, good []byte) [][]byte {
			return slices.Repeat([][]byte{good}, flood)
		}},
		{name: "congestion notes", counter: func(s DeviceStats) uint64 { return s.CongestionNote }, packets: func(s *side, _ []byte) [][]byte {
			p := roce.Packet{BTH: roce.BTH{Opcode: roce.CNP, PKey: roce.DefaultPKey, DestQPN: s.qp.QPN(), BECN: true}, Payload: make([]byte, 16)}
			return slices.Repeat([][]byte{append(p.Append(nil), 0, 0, 0, 0)}, flood)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, peer := victim(t)
			from := peer
			if tt.foreign {
				from = newRawPeer(t, s.dev)
			}
			good := s.write(make([]byte, 64))
			for i := range good.Payload {
				good.Payload[i] = 0xff
			}
			packets := tt.packets(s, append(good.Append(nil), 0, 0, 0, 0))
			from.spoil = tt.spoil
			before := s.qp.Stats()
			for _, b := range packets {
				from.send(b)
			}
			s.marker(t, peer, testRecvPSN)
			stats := s.dev.Stats()
			if got := tt.counter(stats); got != uint64(len(packets)) {
				t.Errorf("of %d packets %d are counted: %+v", len(packets), got, stats)
			}
			if sum := stats.Truncated + stats.Malformed + stats.UnknownQP + stats.WrongPeer + stats.WrongPKey + stats.BadICRC + stats.CongestionNote; sum != uint64(len(packets)) {
				t.Errorf("%d packets are counted %d times: %+v", len(packets), sum, stats)
			}
			if stats.RcvdPackets != uint64(len(packets))+1 {
				t.Errorf("%d packets received, want %d", stats.RcvdPackets, len(packets)+1)
			}
			after := s.qp.Stats()
			if after.RcvdPackets != before.RcvdPackets+1 || after.SentPackets != before.SentPackets+1 || after.Dropped != before.Dropped {
				t.Errorf("the queue pair's stats went from\n%+v to\n%+v", before, after)
			}
			peer.silence("the peer")
			from.silence("the sender")
			s.clean(t, 0xee)
		})
	}
}

// clean fails the test if anything but the first byte of the region was written.
func (s *side) clean(t testing.TB, first byte) {
	t.Helper()
	for i, b := range s.mr.Bytes() {
		if want := byte(0); b != want && (i > 0 || b != first) {
			t.Fatalf("byte %d of the region is %#x", i, b)
		}
	}
}

// TestTaken has packets that look odd, and have to be taken.
func TestTaken(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *roce.Packet)
	}{
		{"as it should be", func(p *roce.Packet) {}},
		{"limited member of the partition", func(p *roce.Packet) { p.PKey = 0x7fff }},
		{"congestion bits", func(p *roce.Packet) { p.FECN, p.BECN = true, true }},
		{"migration bit", func(p *roce.Packet) { p.MigReq = true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, peer := victim(t)
			p := s.write([]byte{1, 2, 3})
			tt.change(&p)
			peer.sendPacket(&p)
			if got := peer.receive(); got.AETH.Syndrome != roce.AckUnlimited || got.PSN != testRecvPSN {
				t.Errorf("the answer is %v", &got)
			}
			if got := s.mr.Bytes()[511:516]; string(got) != "\x00\x01\x02\x03\x00" {
				t.Errorf("memory %x", got)
			}
		})
	}
}

// TestRefused has one request of each kind that ends a queue pair, through a device: the peer gets
// the NAK, the receive is flushed, and nothing more is answered.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(s *side, p *roce.Packet)
		want   roce.Syndrome
	}{
		{"READ", func(_ *side, p *roce.Packet) { p.Opcode, p.Payload = roce.ReadRequest, nil }, roce.NakInvalidRequest},
		{"FETCH ADD", func(_ *side, p *roce.Packet) { p.Opcode, p.Payload = roce.FetchAdd, nil }, roce.NakInvalidRequest},
		{"SEND with invalidate", func(s *side, p *roce.Packet) { p.Opcode, p.InvalidateRKey = roce.SendOnlyInvalidate, s.mr.RKey() }, roce.NakInvalidRequest},
		{"MIDDLE without FIRST", func(_ *side, p *roce.Packet) { p.Opcode, p.Payload = roce.WriteMiddle, make([]byte, 1024) }, roce.NakInvalidRequest},
		{"longer than announced", func(_ *side, p *roce.Packet) { p.RETH.Length-- }, roce.NakInvalidRequest},
		{"address that wraps", func(_ *side, p *roce.Packet) { p.RETH.VA = ^uint64(0) - 7 }, roce.NakRemoteAccess},
		{"before the region", func(s *side, p *roce.Packet) { p.RETH.VA = s.mr.Addr() - 1 }, roce.NakRemoteAccess},
		{"beyond the region", func(s *side, p *roce.Packet) { p.RETH.VA = s.mr.Addr() + testRegion - 63 }, roce.NakRemoteAccess},
		{"guessed key", func(_ *side, p *roce.Packet) { p.RETH.RKey ^= 0x100 }, roce.NakRemoteAccess},
		{"SEND longer than the receive", func(_ *side, p *roce.Packet) { p.Opcode, p.Payload = roce.SendOnly, make([]byte, 65) }, roce.NakInvalidRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, peer := victim(t)
			p := s.write(bytes.Repeat([]byte{0xff}, 64))
			tt.change(s, &p)
			peer.sendPacket(&p)
			if got := peer.receive(); got.Opcode != roce.Acknowledge || got.AETH.Syndrome != tt.want || got.PSN != testRecvPSN || got.DestQPN != rawQPN {
				t.Errorf("the answer is %v, want %v", &got, tt.want)
			}
			if got := s.await(t); got.ID != 1 || got.Status != StatusFlushed && got.Status != StatusLocalLength {
				t.Errorf("completion %+v", got)
			}
			if got := s.qp.State(); got != StateError {
				t.Errorf("state %v", got)
			}
			again := s.write([]byte{1})
			peer.sendPacket(&again)
			for end := time.Now().Add(patience); s.qp.Stats().Dropped == 0; {
				if time.Now().After(end) {
					t.Fatal("a packet for a queue pair in ERR is not counted")
				}
			}
			peer.silence("the peer, in ERR")
			s.clean(t, 0)
		})
	}
}

// TestForgedAcks sends acknowledgements for packets that were never sent, before and after there is
// work, and responses that nobody asked for.
func TestForgedAcks(t *testing.T) {
	s, peer := victim(t)
	forged := 0
	forge := func(from, to int) {
		for _, op := range []roce.Opcode{roce.Acknowledge, roce.ReadResponseOnly, roce.AtomicAcknowledge} {
			for _, syndrome := range []roce.Syndrome{roce.AckUnlimited, 0x25, roce.NakSequence, roce.NakInvalidRequest, roce.NakRemoteAccess, roce.NakRemoteOperation, 0x40, 0xff} {
				for _, d := range []int{-1 << 22, -1000, from, to, to + 1, 1 << 22} {
					peer.sendPacket(&roce.Packet{
						BTH:  roce.BTH{Opcode: op, PKey: roce.DefaultPKey, DestQPN: s.qp.QPN(), PSN: s.psn.Add(d)},
						AETH: roce.AETH{Syndrome: syndrome, MSN: 1},
					})
					forged++
				}
			}
		}
	}
	forge(-1, 0)
	s.marker(t, peer, testRecvPSN)
	if err := s.qp.PostSend(SendWR{ID: 5, Op: OpWrite, Signaled: true, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 2000}}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := peer.receive(); !got.Opcode.IsWrite() {
			t.Fatalf("the device sends %v", &got)
		}
	}
	forge(-1, 2)
	peer.sendPacket(&roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PKey: roce.DefaultPKey, DestQPN: s.qp.QPN(), PSN: s.psn.Add(1)}, AETH: roce.AETH{Syndrome: roce.AckUnlimited}})
	if got := s.await(t); got.ID != 5 || got.Status != StatusOK {
		t.Errorf("completion %+v", got)
	}
	stats := s.qp.Stats()
	if got := stats.AckUnexpected + stats.Dropped; got != uint64(forged) || stats.Rewinds != 0 {
		t.Errorf("of %d forged packets %d are counted: %+v", forged, got, stats)
	}
}

// TestDeregisterUnderFire deregisters memory while a peer writes to it: once Deregister has returned
// nothing changes any more.
func TestDeregisterUnderFire(t *testing.T) {
	a, b := newSide(t, randomLoopback(), nil, nil), newSide(t, randomLoopback(), nil, nil)
	connect(t, a, b, wire.MTU1024)
	mem := make([]byte, 256<<10)
	region, err := b.pd.RegisterMR(mem, LocalWrite|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	for i := range a.mr.Bytes() {
		a.mr.Bytes()[i] = byte(i>>8) + 1
	}
	for i := range 200 {
		err := a.qp.PostSend(SendWR{ID: uint64(i), Op: OpWrite, Signaled: true, Remote: region.Addr(), RKey: region.RKey(),
			Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr() + uint64(i*1024), Len: uint32(len(mem))}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	a.await(t) // some of it has arrived
	if err := region.Deregister(); err != nil {
		t.Fatal(err)
	}
	was := bytes.Clone(mem)
	err = a.qp.PostSend(SendWR{ID: 200, Op: OpWrite, Signaled: true, Remote: region.Addr(), RKey: region.RKey(), Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr(), Len: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	last := Completion{}
	for i := 1; i < 201; i++ {
		if last = a.await(t); last.Status != StatusOK {
			break
		}
	}
	if last.Status != StatusRemoteAccess {
		t.Errorf("completion %+v, want a remote access error", last)
	}
	if !bytes.Equal(mem, was) {
		t.Error("memory was written to after Deregister had returned")
	}
	if got := b.qp.State(); got != StateError {
		t.Errorf("the responder is in %v", got)
	}
}
