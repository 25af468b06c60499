package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// A traffic makes up the packets of two hosts that use SMC-R, as a pcap file: handshakes, the first link
// of a link group, RKeys, and then data in both directions on many connections, with acknowledgements.
// The same seed makes the same file.
type traffic struct {
	w       *bufio.Writer
	rng     *rand.Rand
	now     time.Duration
	packets int
	bytes   int64 // of the file
	frame   []byte
	buf     []byte
	payload [4096]byte
	hosts   [2]trafficHost // client, server
	conns   []*trafficConn
}

type trafficHost struct {
	addr netip.Addr
	qpn  wire.QPN
	psn  wire.PSN // of its next request
	msn  uint32   // messages completed by it as a responder
	flow roce.Flow
}

type trafficConn struct {
	ports [2]uint16
	seq   [2]uint16
	rkey  [2]wire.RKey       // of the buffer that side i owns
	va    [2]uint64          // likewise
	prod  [2]cdc.Cursor      // of side i in the other's buffer
	cons  [2]cdc.Cursor      // of side i in its own buffer
	fill  [2]uint32          // bytes in the buffer that side i writes to
	token [2]wire.AlertToken // of side i's end
}

const (
	trafficRing  = 64 << 10
	trafficMTU   = 1024
	trafficConns = 32
	trafficStart = 1_700_000_000 * time.Second
)

// newTraffic begins a file with the handshakes.
func newTraffic(w io.Writer, seed uint64) *traffic { return newTrafficOf(w, seed, trafficConns) }

// newTrafficOf is newTraffic for some number of connections.
func newTrafficOf(w io.Writer, seed uint64, conns int) *traffic {
	t := &traffic{w: bufio.NewWriterSize(w, 1<<20), rng: rand.New(rand.NewPCG(seed, 1)), now: trafficStart}
	t.hosts[0] = trafficHost{addr: netip.MustParseAddr("10.1.0.1"), qpn: 0x101, psn: 0x1000}
	t.hosts[1] = trafficHost{addr: netip.MustParseAddr("10.1.0.2"), qpn: 0x202, psn: 0xfff000} // goes round soon
	for i := range t.hosts {
		t.hosts[i].flow = roce.NewFlow(netip.AddrPortFrom(t.hosts[i].addr, 49152), netip.AddrPortFrom(t.hosts[1-i].addr, roce.Port))
	}
	header := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	header = append(header, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	header = binary.LittleEndian.AppendUint32(header, 1<<18)
	header = binary.LittleEndian.AppendUint32(header, 1) // Ethernet
	t.write(header)
	for i := range t.payload {
		t.payload[i] = byte(t.rng.Uint32())
	}
	for i := range conns {
		t.connect(i)
	}
	return t
}

func (t *traffic) write(b []byte) {
	t.w.Write(b) // the error stays, and Flush returns it
	t.bytes += int64(len(b))
}

// packet writes a record: an Ethernet frame with an IPv4 packet of the given protocol, from side i.
func (t *traffic) packet(i int, proto byte, body []byte) {
	t.now += time.Duration(1+t.rng.IntN(5)) * time.Microsecond
	t.packets++
	length := 14 + 20 + len(body)
	f := binary.LittleEndian.AppendUint32(t.frame[:0], uint32(t.now/time.Second))
	f = binary.LittleEndian.AppendUint32(f, uint32(t.now%time.Second/time.Microsecond))
	f = binary.LittleEndian.AppendUint32(f, uint32(length))
	f = binary.LittleEndian.AppendUint32(f, uint32(length))
	f = append(f, 2, 0, 0, 0, 0, byte(2-i), 2, 0, 0, 0, 0, byte(1+i), 8, 0)
	f = append(f, 0x45, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(20+len(body)))
	f = append(f, 0, 0, 0x40, 0, 64, proto, 0, 0) // DF; nobody looks at the checksum
	src, dst := t.hosts[i].addr.As4(), t.hosts[1-i].addr.As4()
	f = append(append(f, src[:]...), dst[:]...)
	f = append(f, body...)
	t.frame = f
	t.write(f)
}

// tcp writes a segment of connection c from side i.
func (t *traffic) tcp(c *trafficConn, i int, flags byte, seq, ack uint32, options, payload []byte) {
	b := binary.BigEndian.AppendUint16(t.buf[:0], c.ports[i])
	b = binary.BigEndian.AppendUint16(b, c.ports[1-i])
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, ack)
	b = append(b, byte(5+len(options)/4)<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	b = append(append(b, options...), payload...)
	t.buf = b
	t.packet(i, 6, b)
}

// roce writes a RoCEv2 packet from side i. The PSN is filled in for requests.
func (t *traffic) roce(i int, p *roce.Packet) {
	h := &t.hosts[i]
	p.DestQPN, p.PKey = t.hosts[1-i].qpn, roce.DefaultPKey
	if p.Opcode.IsRequest() {
		p.PSN = h.psn
		h.psn = h.psn.Add(1)
	}
	b := append(t.buf[:0], 0xc0, 0, byte(roce.Port>>8), byte(roce.Port&0xff), 0, 0, 0, 0)
	b = p.Append(b)
	b = append(b, 0, 0, 0, 0)
	h.flow.Seal(0, b[8:])
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	t.buf = b
	t.packet(i, 17, b)
}

// send writes a SEND from side i, and its acknowledgement.
func (t *traffic) send(i int, message []byte) {
	p := roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly, Solicited: true, AckReq: true}, Payload: message}
	t.roce(i, &p)
	t.ack(1-i, p.PSN)
}

// ack acknowledges from side i all up to psn, with which a message ends.
func (t *traffic) ack(i int, psn wire.PSN) {
	t.hosts[i].msn = (t.hosts[i].msn + 1) & 0xffffff
	p := roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: psn}, AETH: roce.AETH{Syndrome: roce.AckUnlimited, MSN: t.hosts[i].msn}}
	t.roce(i, &p)
}

// connect writes a handshake; the first one makes the link.
func (t *traffic) connect(n int) {
	c := &trafficConn{ports: [2]uint16{uint16(40000 + n), 5001}}
	for i := range c.rkey {
		c.rkey[i], c.va[i] = wire.RKey(0x1000*(i+1)+n), uint64(i+1)<<40+uint64(n)<<20
		c.token[i] = wire.AlertToken(100*(i+1) + n)
	}
	option := clc.AppendOptionPadded(nil)
	eid, err := wire.ParseEID("BENCH-UEID")
	if err != nil {
		panic(err)
	}
	params := func(i int) *clc.ParamsR {
		return &clc.ParamsR{
			PeerID: wire.PeerID{0, 1, 2, 0, 0, 0, 0, byte(1 + i)}, GID: wire.GIDFromAddr(t.hosts[i].addr), MAC: wire.MAC{2, 0, 0, 0, 0, byte(1 + i)},
			QPN: t.hosts[i].qpn, RKey: c.rkey[i], RMBEIndex: 1, AlertToken: c.token[i], RMBESize: wire.SizeCodeFor(trafficRing),
			MTU: wire.MTU1024, RMBAddr: c.va[i], PSN: t.hosts[i].psn,
		}
	}
	var fce *clc.FCE
	var gids []wire.GID
	if n == 0 {
		fce = &clc.FCE{Direct: true, OS: clc.OSLinux, Release: clc.Release1, HostName: "bench", MaxConns: 255, MaxLinks: 1}
		gids = []wire.GID{wire.GIDFromAddr(t.hosts[0].addr)}
	}
	proposal := clc.Proposal{
		Version: clc.V2, V1: clc.TypesNone, V2: clc.TypesR, PeerID: wire.PeerID{0, 1, 2, 0, 0, 0, 0, 1},
		Ext: &clc.ProposalV2{Release: clc.Release1, UEIDs: []wire.EID{eid}, GID: wire.GIDFromAddr(t.hosts[0].addr), MaxConns: 255, MaxLinks: 1},
	}.Append(nil)
	accept := clc.Accept{Version: clc.V2, FirstContact: n == 0, R: params(1), EID: eid, FCE: fce}.Append(nil)
	confirm := clc.Confirm{Version: clc.V2, FirstContact: n == 0, R: params(0), EID: eid, FCE: fce, ClientGIDs: gids}.Append(nil)

	t.tcp(c, 0, 0x02, 999, 0, option, nil)
	t.tcp(c, 1, 0x12, 4999, 1000, option, nil)
	t.tcp(c, 0, 0x10, 1000, 5000, nil, nil)
	t.tcp(c, 0, 0x18, 1000, 5000, nil, proposal)
	if n > 0 {
		t.confirmRKey(1, c)
	}
	t.tcp(c, 1, 0x18, 5000, 1000+uint32(len(proposal)), nil, accept)
	if n > 0 {
		t.confirmRKey(0, c)
	}
	t.tcp(c, 0, 0x18, 1000+uint32(len(proposal)), 5000+uint32(len(accept)), nil, confirm)
	if n == 0 {
		for _, i := range []int{1, 0} {
			t.send(i, llc.ConfirmLink{
				Header: llc.Header{Form: llc.V2Little, Reply: i == 0}, CacheSize: llc.NoEyecatcher, MAC: wire.MAC{2, 0, 0, 0, 0, byte(1 + i)},
				GID: wire.GIDFromAddr(t.hosts[i].addr), QPN: t.hosts[i].qpn, Link: 1, MaxLinks: 1, MaxConns: 255,
			}.Append(nil))
		}
	}
	t.conns = append(t.conns, c)
}

func (t *traffic) confirmRKey(i int, c *trafficConn) {
	m := llc.ConfirmRKey{Header: llc.Header{Form: llc.V2Little}, RToken: llc.RToken{RKey: c.rkey[i], VA: c.va[i]}}
	t.send(i, m.Append(nil))
	m.Reply = true
	t.send(1-i, m.Append(nil))
}

// data writes a WRITE of one to six packets with its CDC message, or, if the peer's buffer is
// full or now and then, has the peer consume and say so.
func (t *traffic) data() {
	c, i := t.conns[t.rng.IntN(len(t.conns))], t.rng.IntN(2)
	// Half of the messages are small, as requests are.
	n := uint32(1 + t.rng.IntN(512))
	if t.rng.IntN(2) == 0 {
		n = uint32(1 + t.rng.IntN(4*trafficMTU))
	}
	room := uint32(trafficRing) - c.fill[i]
	if n = min(n, room); n == 0 {
		c.cons[1-i] = c.cons[1-i].Advance(c.fill[i], trafficRing)
		c.fill[i] = 0
		t.cdc(c, 1-i)
		return
	}
	last := t.writeRange(c, i, min(n, trafficRing-c.prod[i].Count))
	if rest := n - min(n, trafficRing-c.prod[i].Count); rest > 0 {
		c.prod[i] = c.prod[i].Advance(n-rest, trafficRing)
		last = t.writeRange(c, i, rest)
		c.prod[i] = c.prod[i].Advance(rest, trafficRing)
	} else {
		c.prod[i] = c.prod[i].Advance(n, trafficRing)
	}
	t.ack(1-i, last)
	c.fill[i] += n
	t.cdc(c, i)
}

// writeRange writes n bytes at the producer cursor, which do not wrap, and returns the last PSN.
func (t *traffic) writeRange(c *trafficConn, i int, n uint32) wire.PSN {
	p := roce.Packet{RETH: roce.RETH{VA: c.va[1-i] + uint64(c.prod[i].Count), RKey: c.rkey[1-i], Length: n}}
	for sent := uint32(0); sent < n; {
		size := min(n-sent, trafficMTU)
		first, last := sent == 0, sent+size == n
		switch {
		case first && last:
			p.Opcode = roce.WriteOnly
		case first:
			p.Opcode = roce.WriteFirst
		case last:
			p.Opcode = roce.WriteLast
		default:
			p.Opcode = roce.WriteMiddle
		}
		p.AckReq = last
		p.Payload = t.payload[sent%2048 : sent%2048+size]
		t.roce(i, &p)
		sent += size
	}
	return p.PSN
}

func (t *traffic) cdc(c *trafficConn, i int) {
	c.seq[i]++
	t.send(i, cdc.Message{Seq: c.seq[i], AlertToken: c.token[1-i], Producer: c.prod[i], Consumer: c.cons[i]}.Append(nil))
}

// fill writes data until the file has at least size bytes, and returns the packets and bytes that
// it has.
func (t *traffic) until(size int64) (packets int, bytes int64, err error) {
	for t.bytes < size {
		t.data()
	}
	return t.packets, t.bytes, t.w.Flush()
}

// The generator makes up traffic without a fault: a problem would be the generator's, or a false
// one.
func TestTraffic(t *testing.T) {
	name, packets, _ := writeTraffic(t, 1<<20)
	got := gosmc(t, "", "dump", "--problems", name)
	if got.code != exitOK || got.stdout != "" || got.stderr != "" {
		t.Fatalf("gosmc dump --problems = %d, %.2000q, %q, want 0 and nothing", got.code, got.stdout, got.stderr)
	}
	var r struct {
		Packets, Connections uint64
		Roce                 uint64 `json:"roce_packets"`
		Gaps                 uint64 `json:"psn_gaps"`
		Retransmissions      uint64
	}
	unmarshal(t, gosmc(t, "", "dump", "--stats", "--json", name).stdout, &r)
	if int(r.Packets) != packets || r.Connections != trafficConns || r.Gaps != 0 || r.Retransmissions != 0 || r.Roce < r.Packets*9/10 {
		t.Errorf("gosmc dump --stats = %+v of %d packets", r, packets)
	}
}
