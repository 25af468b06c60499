// Package dissecttest has packets for the tests of their readers: written by a [Script], or
// captured.
package dissecttest

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// A Direction is that in which an end of a Script sends. It is the end's index in arrays that have both.
type Direction int

// Both directions.
const (
	ToServer Direction = iota
	ToClient
)

// Reverse returns the other direction.
func (d Direction) Reverse() Direction { return 1 - d }

// Flags of TCP segments, and the numbers of the protocols.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	ACK = 0x10

	TCP = 6
	UDP = 17
)

// A Script writes packets by hand: a client and a server with an SMC-R connection, over IPv4 and
// Ethernet. Its methods append packets, one millisecond apart.
type Script struct {
	Now     time.Time
	Packets []frame.Packet
	Ends    [2]End // by index of the direction in which the end sends
	Links   [2]LinkEnds
	Seq     [2]uint32 // next TCP sequence number of each
	CDCs    [2]cdc.Message
}

// An End is a host: its TCP address, and its RMB with one element.
type End struct {
	Addr  netip.AddrPort // TCP
	RKey  wire.RKey
	VA    uint64
	Token wire.AlertToken
}

// A LinkEnds has the ends of a link; index 1 is the second link.
type LinkEnds struct {
	Addr [2]netip.Addr
	QPN  [2]wire.QPN
	PSN  [2]wire.PSN // of the next request
}

// EID is that which both hosts have.
var EID, _ = wire.ParseEID("LAB.EID")

// NewScript returns a Script without packets.
func NewScript() *Script {
	return &Script{
		Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Ends: [2]End{
			{netip.MustParseAddrPort("10.0.0.2:40000"), 0x201, 0x2000_0000, 0x22},
			{netip.MustParseAddrPort("10.0.0.1:5000"), 0x101, 0x1000_0000, 0x11},
		},
		Links: [2]LinkEnds{
			{[2]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")},
				[2]wire.QPN{0x21, 0x11}, [2]wire.PSN{0xfffffe, 100}},
			{[2]netip.Addr{netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.0.1.1")},
				[2]wire.QPN{0x22, 0x12}, [2]wire.PSN{500, 600}},
		},
		Seq: [2]uint32{0xfffffff0, 1000},
	}
}

// Add appends a packet with an IPv4 packet as its content.
func (s *Script) Add(ip []byte) {
	b := append([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x08, 0}, ip...)
	s.Now = s.Now.Add(time.Millisecond)
	s.Packets = append(s.Packets, frame.Packet{
		Number: len(s.Packets) + 1, Time: s.Now, Link: frame.Ethernet, Data: b, OrigLen: len(b),
	})
}

// IPv4 returns an IPv4 packet with DF set and no identification.
func IPv4(proto byte, src, dst netip.Addr, body []byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(body)))
	b = append(b, src.AsSlice()...)
	b = append(b, dst.AsSlice()...)
	return append(b, body...)
}

// Segment appends a TCP segment in direction d.
func (s *Script) Segment(d Direction, flags byte, options, payload []byte) {
	i, j := d, d.Reverse()
	s.SegmentAt(d, flags, s.Seq[i], s.Seq[j], options, payload)
	s.Seq[i] += uint32(len(payload))
	if flags&(SYN|FIN) != 0 {
		s.Seq[i]++
	}
}

// SegmentAt appends a TCP segment with these numbers.
func (s *Script) SegmentAt(d Direction, flags byte, seq, ack uint32, options, payload []byte) {
	src, dst := s.Ends[d].Addr, s.Ends[d.Reverse()].Addr
	b := binary.BigEndian.AppendUint16(nil, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, ack)
	b = append(b, byte(5+len(options)/4)<<4, flags, 1, 0, 0, 0, 0, 0)
	b = append(append(b, options...), payload...)
	s.Add(IPv4(TCP, src.Addr(), dst.Addr(), b))
}

// Open appends SYN, SYN-ACK and ACK, the first two with the option or not.
func (s *Script) Open(client, server bool) {
	option := func(has bool) []byte {
		if has {
			return clc.AppendOptionPadded(nil)
		}
		return []byte{1, 1, 1, 1}
	}
	s.Segment(ToServer, SYN, option(client), nil)
	s.Segment(ToClient, SYN|ACK, option(server), nil)
	s.Segment(ToServer, ACK, nil, nil)
}

// CLC appends a segment with a message.
func (s *Script) CLC(d Direction, m clc.Message) { s.Segment(d, ACK, nil, m.Append(nil)) }

// Proposal returns the Proposal of the client.
func (s *Script) Proposal() clc.Proposal {
	return clc.Proposal{
		Version: clc.V2, V1: clc.TypesNone, V2: clc.TypesR,
		Ext: &clc.ProposalV2{
			Release: clc.Release1, GID: wire.GIDFromAddr(s.Links[0].Addr[0]), MaxConns: 255, MaxLinks: 2,
			UEIDs: []wire.EID{EID},
		},
	}
}

// ParamsR returns the parameters that end i sends for the first link and its RMB.
func (s *Script) ParamsR(i int) *clc.ParamsR {
	e, l := s.Ends[i], s.Links[0]
	return &clc.ParamsR{
		GID: wire.GIDFromAddr(l.Addr[i]), QPN: l.QPN[i], PSN: l.PSN[i], RKey: e.RKey, RMBAddr: e.VA, RMBEIndex: 1,
		AlertToken: e.Token, MTU: wire.MTU1024, // the smallest element: 16 KiB
	}
}

// FCE returns the first contact extension of either end.
func (s *Script) FCE() *clc.FCE {
	return &clc.FCE{Direct: true, OS: clc.OSLinux, Release: clc.Release1, HostName: "lab", MaxConns: 255,
		MaxLinks: 2}
}

// Accept returns the Accept of the server, for a first contact.
func (s *Script) Accept() clc.Accept {
	return clc.Accept{Version: clc.V2, FirstContact: true, R: s.ParamsR(1), EID: EID, FCE: s.FCE()}
}

// Confirm returns the Confirm of the client, for a first contact.
func (s *Script) Confirm() clc.Confirm {
	return clc.Confirm{
		Version: clc.V2, FirstContact: true, R: s.ParamsR(0), EID: EID, FCE: s.FCE(),
		ClientGIDs: []wire.GID{wire.GIDFromAddr(s.Links[0].Addr[0])},
	}
}

// Handshake appends a whole first contact, with CONFIRM LINK.
func (s *Script) Handshake() {
	s.Open(true, true)
	s.CLC(ToServer, s.Proposal())
	s.CLC(ToClient, s.Accept())
	s.CLC(ToServer, s.Confirm())
	s.ConfirmLink(0)
}

func (s *Script) ConfirmLink(link int) {
	for _, d := range []Direction{ToClient, ToServer} {
		l := s.Links[link]
		s.LLC(d, link, llc.ConfirmLink{
			Header: llc.Header{Form: llc.V2, Reply: d == ToServer}, CacheSize: llc.NoEyecatcher,
			GID: wire.GIDFromAddr(l.Addr[d]), QPN: l.QPN[d], Link: llc.LinkNum(link + 1), MaxLinks: 2,
		})
	}
}

// SecondLink appends ADD LINK and CONFIRM LINK for the second link, on which each host's RMB has its
// RKey plus 0x1000.
func (s *Script) SecondLink() {
	for _, d := range []Direction{ToClient, ToServer} {
		i := d
		s.LLC(d, 0, llc.AddLink{
			Header: llc.Header{Form: llc.V2, Reply: d == ToServer}, GID: wire.GIDFromAddr(s.Links[1].Addr[i]),
			QPN: s.Links[1].QPN[i], Link: 2, MTU: wire.MTU1024, PSN: s.Links[1].PSN[i],
			RKeys: []llc.RKeyPair{{Reference: s.Ends[i].RKey, New: llc.RToken{RKey: s.Ends[i].RKey + 0x1000, VA: s.Ends[i].VA + 7}}},
		})
	}
	s.ConfirmLink(1)
}

// RoCE appends a packet in direction d over a link, with the next number if it is a request.
func (s *Script) RoCE(d Direction, link int, p roce.Packet) {
	l := &s.Links[link]
	p.DestQPN, p.PKey = l.QPN[d.Reverse()], roce.DefaultPKey
	if p.Opcode.IsRequest() {
		p.PSN = l.PSN[d]
		l.PSN[d] = p.PSN.Add(1)
		p.AckReq = true
	}
	s.Add(RoCEPacket(l.Addr[d], l.Addr[d.Reverse()], &p))
}

// RoCEPacket returns an IP packet with a RoCEv2 packet.
func RoCEPacket(src, dst netip.Addr, p *roce.Packet) []byte {
	from, to := netip.AddrPortFrom(src, 50000), netip.AddrPortFrom(dst, roce.Port)
	b := append(p.Append(nil), 0, 0, 0, 0)
	flow := roce.NewFlow(from, to)
	flow.Seal(0, b)
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(b)))
	udp = append(udp, 0, 0)
	return IPv4(UDP, src, dst, append(udp, b...))
}

// Send appends a SEND with b over a link.
func (s *Script) Send(d Direction, link int, b []byte) {
	s.RoCE(d, link, roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly}, Payload: b})
}

// LLC appends a SEND with a message over a link.
func (s *Script) LLC(d Direction, link int, m llc.Message) { s.Send(d, link, m.Append(nil)) }

// Write appends an RDMA WRITE of n bytes to the element's offset.
func (s *Script) Write(d Direction, offset, n int) { s.WriteOver(d, 0, offset, n) }

// WriteOver is Write over any link.
func (s *Script) WriteOver(d Direction, link, offset, n int) {
	owner := s.Ends[d.Reverse()]
	h := roce.RETH{VA: owner.VA + uint64(offset), RKey: owner.RKey, Length: uint32(n)}
	if link == 1 {
		h.VA, h.RKey = h.VA+7, h.RKey+0x1000
	}
	data := make([]byte, n)
	if n <= 1024 {
		s.RoCE(d, link, roce.Packet{BTH: roce.BTH{Opcode: roce.WriteOnly}, RETH: h, Payload: data})
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
		s.RoCE(d, link, roce.Packet{BTH: roce.BTH{Opcode: op}, RETH: h, Payload: data[i:min(n, i+1024)]})
	}
}

// CDC appends the next CDC message of a direction, which change alters first.
func (s *Script) CDC(d Direction, change func(*cdc.Message)) { s.CDCOver(d, 0, change) }

// CDCOver is CDC over any link.
func (s *Script) CDCOver(d Direction, link int, change func(*cdc.Message)) {
	m := &s.CDCs[d]
	m.Seq++
	m.AlertToken = s.Ends[d.Reverse()].Token
	change(m)
	s.Send(d, link, m.Append(nil))
}

// Produce returns a change that sets the producer cursor.
func Produce(wrap uint16, count uint32) func(*cdc.Message) {
	return func(m *cdc.Message) { m.Producer = cdc.Cursor{Wrap: wrap, Count: count} }
}

// Consume returns a change that sets the consumer cursor.
func Consume(wrap uint16, count uint32) func(*cdc.Message) {
	return func(m *cdc.Message) { m.Consumer = cdc.Cursor{Wrap: wrap, Count: count} }
}

// Set returns a change that sets the flags of the connection.
func Set(f cdc.ConnFlags) func(*cdc.Message) {
	return func(m *cdc.Message) { m.ConnFlags = f }
}
