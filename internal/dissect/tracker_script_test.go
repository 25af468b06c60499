package dissect

import (
	"encoding/binary"
	"net/netip"

	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// A script writes packets by hand: a client and a server with an SMC-R connection, over IPv4 and
// Ethernet. Its methods append packets, one millisecond apart.
type script struct {
	now     time.Time
	packets []Packet
	ends    [2]scriptEnd // by index of the direction in which the end sends
	links   [2]scriptLink
	seq     [2]uint32 // next TCP sequence number of each
	cdcs    [2]cdc.Message
}

type scriptEnd struct {
	addr netip.AddrPort // TCP
	rkey wire.RKey
	va   uint64
	tok  wire.AlertToken
}

// A scriptLink has the ends of a link; index 1 is the second link.
type scriptLink struct {
	addr [2]netip.Addr
	qpn  [2]wire.QPN
	psn  [2]wire.PSN // of the next request
}

const (
	c2s = ClientToServer
	s2c = ServerToClient
)

var scriptEID, _ = wire.ParseEID("LAB.EID")

func newScript() *script {
	return &script{
		now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		ends: [2]scriptEnd{
			{netip.MustParseAddrPort("10.0.0.2:40000"), 0x201, 0x2000_0000, 0x22},
			{netip.MustParseAddrPort("10.0.0.1:5000"), 0x101, 0x1000_0000, 0x11},
		},
		links: [2]scriptLink{
			{[2]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")}, [2]wire.QPN{0x21, 0x11}, [2]wire.PSN{0xfffffe, 100}},
			{[2]netip.Addr{netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.0.1.1")}, [2]wire.QPN{0x22, 0x12}, [2]wire.PSN{500, 600}},
		},
		seq: [2]uint32{0xfffffff0, 1000},
	}
}

// add appends a packet with an IPv4 packet as its content.
func (s *script) add(ip []byte) {
	b := append([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x08, 0}, ip...)
	s.now = s.now.Add(time.Millisecond)
	s.packets = append(s.packets, Packet{
		Number: len(s.packets) + 1, Time: s.now, Link: frame.Ethernet, Data: b, OrigLen: len(b),
	})
}

// ipv4 returns an IPv4 packet with DF set and no identification.
func ipv4(proto byte, src, dst netip.Addr, body []byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(body)))
	b = append(b, src.AsSlice()...)
	b = append(b, dst.AsSlice()...)
	return append(b, body...)
}

// segment appends a TCP segment in direction d.
func (s *script) segment(d Direction, flags byte, options, payload []byte) {
	i, j := d.index(), d.Reverse().index()
	s.segmentAt(d, flags, s.seq[i], s.seq[j], options, payload)
	s.seq[i] += uint32(len(payload))
	if flags&(tcpSYN|tcpFIN) != 0 {
		s.seq[i]++
	}
}

func (s *script) segmentAt(d Direction, flags byte, seq, ack uint32, options, payload []byte) {
	src, dst := s.ends[d.index()].addr, s.ends[d.Reverse().index()].addr
	b := binary.BigEndian.AppendUint16(nil, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, ack)
	b = append(b, byte(5+len(options)/4)<<4, flags, 1, 0, 0, 0, 0, 0)
	b = append(append(b, options...), payload...)
	s.add(ipv4(protoTCP, src.Addr(), dst.Addr(), b))
}

// open appends SYN, SYN-ACK and ACK, the first two with the option or not.
func (s *script) open(client, server bool) {
	option := func(has bool) []byte {
		if has {
			return clc.AppendOptionPadded(nil)
		}
		return []byte{1, 1, 1, 1}
	}
	s.segment(c2s, tcpSYN, option(client), nil)
	s.segment(s2c, tcpSYN|tcpACK, option(server), nil)
	s.segment(c2s, tcpACK, nil, nil)
}

func (s *script) clc(d Direction, m clc.Message) { s.segment(d, tcpACK, nil, m.Append(nil)) }

func (s *script) proposal() clc.Proposal {
	return clc.Proposal{
		Version: clc.V2, V1: clc.TypesNone, V2: clc.TypesR,
		Ext: &clc.ProposalV2{
			Release: clc.Release1, GID: wire.GIDFromAddr(s.links[0].addr[0]), MaxConns: 255, MaxLinks: 2,
			UEIDs: []wire.EID{scriptEID},
		},
	}
}

func (s *script) paramsR(i int) *clc.ParamsR {
	e, l := s.ends[i], s.links[0]
	return &clc.ParamsR{
		GID: wire.GIDFromAddr(l.addr[i]), QPN: l.qpn[i], PSN: l.psn[i], RKey: e.rkey, RMBAddr: e.va, RMBEIndex: 1,
		AlertToken: e.tok, MTU: wire.MTU1024, // the smallest element: 16 KiB
	}
}

func (s *script) fce() *clc.FCE {
	return &clc.FCE{Direct: true, OS: clc.OSLinux, Release: clc.Release1, HostName: "lab", MaxConns: 255, MaxLinks: 2}
}

func (s *script) accept() clc.Accept {
	return clc.Accept{Version: clc.V2, FirstContact: true, R: s.paramsR(1), EID: scriptEID, FCE: s.fce()}
}

func (s *script) confirm() clc.Confirm {
	return clc.Confirm{
		Version: clc.V2, FirstContact: true, R: s.paramsR(0), EID: scriptEID, FCE: s.fce(),
		ClientGIDs: []wire.GID{wire.GIDFromAddr(s.links[0].addr[0])},
	}
}

// handshake appends a whole first contact, with CONFIRM LINK.
func (s *script) handshake() {
	s.open(true, true)
	s.clc(c2s, s.proposal())
	s.clc(s2c, s.accept())
	s.clc(c2s, s.confirm())
	s.confirmLink(0)
}

func (s *script) confirmLink(link int) {
	for _, d := range []Direction{s2c, c2s} {
		l := s.links[link]
		s.llc(d, link, llc.ConfirmLink{
			Header: llc.Header{Form: llc.V2, Reply: d == c2s}, CacheSize: llc.NoEyecatcher,
			GID: wire.GIDFromAddr(l.addr[d.index()]), QPN: l.qpn[d.index()], Link: llc.LinkNum(link + 1), MaxLinks: 2,
		})
	}
}

// secondLink appends ADD LINK and CONFIRM LINK for the second link, on which each host's RMB has its
// RKey plus 0x1000.
func (s *script) secondLink() {
	for _, d := range []Direction{s2c, c2s} {
		i := d.index()
		s.llc(d, 0, llc.AddLink{
			Header: llc.Header{Form: llc.V2, Reply: d == c2s}, GID: wire.GIDFromAddr(s.links[1].addr[i]),
			QPN: s.links[1].qpn[i], Link: 2, MTU: wire.MTU1024, PSN: s.links[1].psn[i],
			RKeys: []llc.RKeyPair{{Reference: s.ends[i].rkey, New: llc.RToken{RKey: s.ends[i].rkey + 0x1000, VA: s.ends[i].va + 7}}},
		})
	}
	s.confirmLink(1)
}

// roce appends a packet in direction d over a link, with the next number if it is a request.
func (s *script) roce(d Direction, link int, p roce.Packet) {
	l := &s.links[link]
	p.DestQPN, p.PKey = l.qpn[d.Reverse().index()], roce.DefaultPKey
	if p.Opcode.IsRequest() {
		p.PSN = l.psn[d.index()]
		l.psn[d.index()] = p.PSN.Add(1)
		p.AckReq = true
	}
	s.add(roceIP(l.addr[d.index()], l.addr[d.Reverse().index()], &p))
}

// roceIP returns an IP packet with a RoCEv2 packet.
func roceIP(src, dst netip.Addr, p *roce.Packet) []byte {
	from, to := netip.AddrPortFrom(src, 50000), netip.AddrPortFrom(dst, roce.Port)
	b := append(p.Append(nil), 0, 0, 0, 0)
	flow := roce.NewFlow(from, to)
	flow.Seal(0, b)
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(b)))
	udp = append(udp, 0, 0)
	return ipv4(protoUDP, src, dst, append(udp, b...))
}

func (s *script) send(d Direction, link int, b []byte) {
	s.roce(d, link, roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly}, Payload: b})
}

func (s *script) llc(d Direction, link int, m llc.Message) { s.send(d, link, m.Append(nil)) }

// write appends an RDMA WRITE of n bytes to the element's offset.
func (s *script) write(d Direction, offset, n int) { s.writeOver(d, 0, offset, n) }

func (s *script) writeOver(d Direction, link, offset, n int) {
	owner := s.ends[d.Reverse().index()]
	h := roce.RETH{VA: owner.va + uint64(offset), RKey: owner.rkey, Length: uint32(n)}
	if link == 1 {
		h.VA, h.RKey = h.VA+7, h.RKey+0x1000
	}
	data := make([]byte, n)
	if n <= 1024 {
		s.roce(d, link, roce.Packet{BTH: roce.BTH{Opcode: roce.WriteOnly}, RETH: h, Payload: data})
		return
	}
	for i := 0; i < n; i += 1024 {
		op := roce.WriteMiddle
		switch {
		case i == 0:
			op = roce.WriteFirst
		case i+1024 >= n:
			op = roce.WriteLast
		}
		s.roce(d, link, roce.Packet{BTH: roce.BTH{Opcode: op}, RETH: h, Payload: data[i:min(n, i+1024)]})
	}
}

// cdc appends the next CDC message of a direction, which change alters first.
func (s *script) cdc(d Direction, change func(*cdc.Message)) { s.cdcOver(d, 0, change) }

func (s *script) cdcOver(d Direction, link int, change func(*cdc.Message)) {
	m := &s.cdcs[d.index()]
	m.Seq++
	m.AlertToken = s.ends[d.Reverse().index()].tok
	change(m)
	s.send(d, link, m.Append(nil))
}

// produce returns a change that sets the producer cursor.
func produce(wrap uint16, count uint32) func(*cdc.Message) {
	return func(m *cdc.Message) { m.Producer = cdc.Cursor{Wrap: wrap, Count: count} }
}

func consume(wrap uint16, count uint32) func(*cdc.Message) {
	return func(m *cdc.Message) { m.Consumer = cdc.Cursor{Wrap: wrap, Count: count} }
}

func set(f cdc.ConnFlags) func(*cdc.Message) {
	return func(m *cdc.Message) { m.ConnFlags = f }
}

// problemsOf returns the problems in packets, each with the number of the packet.
func problemsOf(t *testing.T, packets []Packet) []string {
	t.Helper()
	var found []string
	lines, _ := track(packets, Options{})
	for _, line := range lines {
		number, _, _ := strings.Cut(line, " ")
		for rest := line; ; {
			_, after, ok := strings.Cut(rest, " [")
			if !ok {
				break
			}
			problem, tail, _ := strings.Cut(after, "]")
			found = append(found, number+" "+problem)
			rest = tail
		}
	}
	return found
}

// wantProblems checks that packets have the given problems, by parts of their texts, and no others.
func wantProblems(t *testing.T, packets []Packet, want ...string) {
	t.Helper()
	got := problemsOf(t, packets)
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && strings.Contains(got[i], want[i])
	}
	if !ok {
		lines, _ := track(packets, Options{})
		t.Errorf("problems:\n got %q\nwant %q\nevents:\n%s", got, want, strings.Join(lines, "\n"))
	}
}
