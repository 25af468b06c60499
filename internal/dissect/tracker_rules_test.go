package dissect

import (
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

var (
	request = llc.Header{Form: llc.V2}
	reply   = llc.Header{Form: llc.V2, Reply: true}
)

// rules has a sequence of packets for every rule, after a first contact that breaks none, and the problems
// that it has.
var rules = []struct {
	name string
	play func(s *script)
	want []string
}{
	{"nothing wrong", func(s *script) {
		s.write(c2s, 0, 3000)
		s.cdc(c2s, produce(0, 3000))
		s.cdc(s2c, consume(0, 3000))
		s.write(c2s, 3000, 16384-3000)
		s.write(c2s, 0, 3000)
		s.cdc(c2s, produce(1, 3000))
		s.cdc(s2c, func(m *cdc.Message) { m.Consumer, m.ConnFlags = cdc.Cursor{Wrap: 1, Count: 3000}, cdc.Closed })
		s.cdc(c2s, set(cdc.Closed))
		s.segment(c2s, tcpFIN|tcpACK, nil, nil)
		s.segment(s2c, tcpFIN|tcpACK, nil, nil)
	}, nil},
	{"cursor outside the buffer", func(s *script) {
		s.cdc(c2s, produce(0, 16384))
	}, []string{"violation: the producer cursor 0000:00004000 is outside the buffer of 16384 bytes (RFC 7609 p.127)"}},
	{"consumer cursor outside the buffer", func(s *script) {
		s.cdc(c2s, consume(0, 20000))
	}, []string{"violation: the consumer cursor 0000:00004e20 is outside the buffer of 16384 bytes (RFC 7609 p.128)"}},
	{"producer goes back", func(s *script) {
		s.cdc(c2s, produce(0, 300))
		s.cdc(c2s, produce(0, 200))
	}, []string{"violation: the producer cursor goes from 0000:0000012c to 0000:000000c8 (RFC 7609 p.127)"}},
	{"consumer goes back", func(s *script) {
		s.cdc(s2c, produce(0, 300))
		s.cdc(c2s, consume(0, 300))
		s.cdc(c2s, consume(0, 200))
	}, []string{"violation: the consumer cursor goes from 0000:0000012c to 0000:000000c8 (RFC 7609 p.128)"}},
	{"producer beyond the window", func(s *script) {
		s.cdc(c2s, produce(0, 16000))
		s.cdc(c2s, produce(1, 16000))
		s.cdc(c2s, produce(2, 100)) // already told
		s.cdc(s2c, produce(0, 0))
	}, []string{"packet 10: the producer cursor 0001:00003e80 is beyond what the reader has freed (RFC 7609 p.127)"}},
	{"producer beyond a window that opens late in the capture", func(s *script) {
		s.cdc(c2s, produce(0, 16000))
		s.cdc(c2s, produce(1, 16000-1))
		s.cdc(s2c, consume(0, 16000))
	}, nil},
	{"consumer beyond what was written", func(s *script) {
		s.cdc(c2s, consume(0, 10))
		s.cdc(s2c, produce(0, 9))
	}, []string{"packet 9: the consumer cursor 0000:0000000a is beyond what was written (RFC 7609 p.128)"}},
	{"write beyond the window", func(s *script) {
		s.write(c2s, 0, 1024)
		s.cdc(c2s, produce(0, 16000))
		s.write(c2s, 16000, 384)
		s.write(c2s, 0, 1000)
		s.cdc(s2c, produce(0, 0))
	}, []string{"packet 12: a write into bytes that the reader has not freed (RFC 7609 p.61)"}},
	{"write beyond the element", func(s *script) {
		s.write(c2s, 16000, 385)
	}, []string{"violation: a write beyond the end of the RMB element (RFC 7609 p.60)"}},
	{"write outside the RMB", func(s *script) {
		s.write(c2s, -1024, 512)
	}, []string{"violation: a write outside the RMB (RFC 7609 p.60)"}},
	{"write over the eyecatcher", func(s *script) {
		l := s.links[0]
		s.llc(s2c, 0, llc.ConfirmLink{Header: llc.Header{Form: llc.V1}, GID: wire.GIDFromAddr(l.addr[1]), QPN: l.qpn[1], Link: 1})
		s.llc(c2s, 0, llc.ConfirmLink{Header: llc.Header{Form: llc.V1, Reply: true}, GID: wire.GIDFromAddr(l.addr[0]), QPN: l.qpn[0], Link: 1})
		s.write(c2s, 4, 100)
		s.cdc(c2s, func(m *cdc.Message) { m.Producer.Count, m.Consumer.Count = 104, 4 })
		s.write(c2s, 2, 100)
		s.cdc(c2s, produce(0, 2))
	}, []string{
		"violation: a write over the eyecatcher of the RMB element (RFC 7609 p.60)",
		"violation: the producer cursor 0000:00000002 is outside the buffer",
	}},
	{"write after done writing", func(s *script) {
		s.cdc(c2s, set(cdc.DoneWriting))
		s.write(c2s, 0, 10)
		s.cdc(c2s, produce(0, 10))
		s.cdc(s2c, consume(0, 10))
	}, []string{
		"violation: new data of a sender that has said to be done (RFC 7609 p.129)",
		"packet 10: a write by a sender that has said to be done (RFC 7609 p.129)",
	}},
	{"message after both closed", func(s *script) {
		s.cdc(c2s, set(cdc.Closed))
		s.cdc(s2c, set(cdc.Abort))
		s.cdc(c2s, set(cdc.Closed))
	}, []string{"violation: a CDC message after both sides were done (RFC 7609 p.129)"}},
	{"flag gone", func(s *script) {
		s.cdc(c2s, set(cdc.DoneWriting))
		s.cdc(c2s, set(0))
	}, []string{"violation: connection flags are gone that were set: DoneWriting (RFC 7609 p.129)"}},
	{"sequence numbers skip", func(s *script) {
		s.cdc(c2s, func(m *cdc.Message) { m.Seq = 2 })
	}, []string{"violation: CDC sequence number 2 after 0, and no packet is missing (RFC 7609 p.126)"}},
	{"sequence numbers go back", func(s *script) {
		s.cdc(c2s, produce(0, 0))
		s.cdc(c2s, produce(0, 0))
		s.cdc(c2s, func(m *cdc.Message) { m.Seq = 1 })
	}, []string{"violation: CDC sequence number 1 after 2 (RFC 7609 p.127)"}},
	{"broken CDC", func(s *script) {
		b := cdc.Message{Seq: 1}.Append(nil)
		b[1] = 43
		s.send(c2s, 0, b)
	}, []string{"malformed: cdc.Message"}},
	{"broken LLC", func(s *script) {
		s.send(c2s, 0, make([]byte, 44))
	}, []string{"malformed: llc"}},
	{"short LLC", func(s *script) {
		s.send(c2s, 0, llc.TestLink{Header: request}.Append(nil)[:40])
	}, []string{"malformed: llc"}},
	{"optional LLC", func(s *script) {
		b := make([]byte, 44)
		b[0], b[1] = 0x81, 44
		s.send(c2s, 0, b)
	}, nil},
	{"reply without request", func(s *script) {
		s.llc(c2s, 0, llc.TestLink{Header: reply})
		s.cdc(s2c, produce(0, 0))
	}, []string{"packet 9: the reply to a request that there was not, TEST LINK (RFC 7609 p.28)"}},
	{"reply on another link", func(s *script) {
		s.secondLink()
		s.llc(c2s, 0, llc.TestLink{Header: request})
		s.llc(s2c, 1, llc.TestLink{Header: reply})
		s.llc(s2c, 0, llc.TestLink{Header: reply})
		s.cdcOver(c2s, 1, produce(0, 0))
	}, []string{"packet 14: the reply to a request that there was not, TEST LINK (RFC 7609 p.28)"}},
	{"TEST LINK with other data", func(s *script) {
		s.llc(c2s, 0, llc.TestLink{Header: request, UserData: [16]byte{1}})
		s.llc(s2c, 0, llc.TestLink{Header: reply, UserData: [16]byte{2}})
	}, []string{"violation: the user data is not that of the request (RFC 7609 p.142)"}},
	{"no reply", func(s *script) {
		s.llc(c2s, 0, llc.TestLink{Header: request})
		s.llc(s2c, 0, llc.TestLink{Header: request})
		s.llc(c2s, 0, llc.TestLink{Header: reply})
		s.now = s.now.Add(11 * time.Second)
		s.cdc(s2c, produce(0, 0))
	}, []string{"timeout: no reply to the TEST LINK of packet 9 (RFC 7609 C.7)"}},
	{"no reply that the capture has", func(s *script) {
		s.llc(c2s, 0, llc.TestLink{Header: request})
		s.links[0].psn[s2c.index()]++ // lost
		s.cdc(s2c, produce(0, 0))
		s.now = s.now.Add(11 * time.Second)
		s.cdc(s2c, produce(0, 0))
	}, nil},
	{"no reply to DELETE LINK for all", func(s *script) {
		s.llc(c2s, 0, llc.DeleteLink{Header: request, All: true, Reason: llc.DeleteProgram})
		s.llc(s2c, 0, llc.DeleteLink{Header: request, All: true, Orderly: true, Reason: llc.DeleteProgram})
		s.now = s.now.Add(11 * time.Second)
		s.cdc(s2c, set(cdc.Abort))
	}, nil},
	{"CONFIRM LINK of another queue pair", func(s *script) {
		l := s.links[0]
		s.llc(s2c, 0, llc.ConfirmLink{Header: request, CacheSize: llc.NoEyecatcher, GID: wire.GIDFromAddr(l.addr[1]), QPN: 0x99, Link: 1})
		s.llc(c2s, 0, llc.ConfirmLink{Header: reply, CacheSize: llc.NoEyecatcher, GID: wire.GIDFromAddr(l.addr[0]), QPN: l.qpn[0], Link: 3})
	}, []string{
		"violation: it names queue pair 0x99 of 10.0.0.1, and the link has 0x11 of 10.0.0.1 (RFC 7609 p.140)",
		"violation: it has link number 3, and the link is 1 (RFC 7609 p.140)",
	}},
	{"CONFIRM LINK by the client", func(s *script) {
		l := s.links[0]
		s.llc(c2s, 0, llc.ConfirmLink{Header: request, CacheSize: llc.NoEyecatcher, GID: wire.GIDFromAddr(l.addr[0]), QPN: l.qpn[0], Link: 1})
	}, []string{"violation: the server sends the request, the client the reply (RFC 7609 p.27)"}},
	{"ADD LINK with a reserved MTU", func(s *script) {
		s.llc(s2c, 0, llc.AddLink{Header: request, GID: wire.GIDFromAddr(s.links[1].addr[1]), QPN: 1, Link: 2, MTU: 6, RKeys: []llc.RKeyPair{{}}})
		s.llc(c2s, 0, llc.AddLink{Header: reply, Rejected: true, Reason: llc.RejectMTU})
	}, []string{"violation: a reserved MTU: reserved(6) (RFC 7609 p.141)"}},
	{"message on a deleted link", func(s *script) {
		s.secondLink()
		s.llc(s2c, 1, llc.DeleteLink{Header: request, Link: 1, Reason: llc.DeleteLostPath})
		s.llc(c2s, 1, llc.DeleteLink{Header: reply, Link: 1})
		s.cdc(c2s, produce(0, 0))
	}, []string{"violation: a message on a link that was deleted (RFC 7609 p.46)"}},
	{"RMB refused", func(s *script) {
		token := llc.RToken{RKey: 0x777, VA: 0x7000}
		s.llc(c2s, 0, llc.ConfirmRKey{Header: request, RToken: token})
		s.llc(s2c, 0, llc.ConfirmRKey{Header: reply, RToken: token, Negative: true})
	}, []string{"declined: the receiver did not take the RMB (RFC 7609 p.118)"}},
	{"RKey not known to the receiver", func(s *script) {
		s.llc(c2s, 0, llc.DeleteRKey{Header: request, RKeys: []wire.RKey{5}})
		s.llc(s2c, 0, llc.DeleteRKey{Header: reply, Negative: true, Count: 1, Invalid: 1})
	}, []string{"declined: the receiver does not know an RKey that was to be deleted (RFC 7609 p.122)"}},
	{"write to a deleted RMB", func(s *script) {
		s.llc(s2c, 0, llc.DeleteRKey{Header: request, RKeys: []wire.RKey{0x101}})
		s.llc(c2s, 0, llc.DeleteRKey{Header: reply, Count: 1})
		s.write(c2s, 0, 10)
		token := llc.RToken{RKey: 0x101, VA: 0x1000_0000} // it comes back, and that is normal
		s.llc(s2c, 0, llc.ConfirmRKey{Header: request, RToken: token})
		s.llc(c2s, 0, llc.ConfirmRKey{Header: reply, RToken: token})
		s.write(c2s, 0, 10)
	}, []string{"packet 11: a write to an RMB that was deleted (RFC 7609 p.122)"}},
	{"failover", func(s *script) {
		s.secondLink()
		s.cdc(c2s, produce(0, 5000))
		s.send(c2s, 1, cdc.NewFailoverValidation(1, 0x11).Append(nil))
		s.writeOver(c2s, 1, 3000, 2000)
		s.cdcOver(c2s, 1, produce(0, 3000)) // again what was not acknowledged
		s.cdcOver(s2c, 1, consume(0, 3000))
		s.cdcOver(c2s, 1, produce(0, 6000))
	}, nil},
	{"NAKs", func(s *script) {
		nak := func(v roce.Syndrome) {
			s.roce(s2c, 0, roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: 1}, AETH: roce.AETH{Syndrome: v}})
		}
		for _, v := range []roce.Syndrome{roce.Ack(3), roce.AckUnlimited, roce.NakSequence, roce.NakInvalidRequest,
			roce.NakRemoteAccess, roce.NakRemoteOperation, roce.RNRNak(5), 0x40} {
			nak(v)
		}
	}, []string{
		"NAK: NAK PSN sequence error (IBTA 9.7.5)", "NAK: NAK invalid request", "NAK: NAK remote access error",
		"NAK: NAK remote operation", "NAK: the receiver has no buffer for a message: RNR NAK", "NAK: ",
	}},
	{"no acknowledgement", func(s *script) {
		s.roce(s2c, 0, roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: s.links[0].psn[0].Add(-1)}, AETH: roce.AETH{Syndrome: roce.AckUnlimited}})
		for range 4 {
			psn := s.links[0].psn
			s.cdc(c2s, func(m *cdc.Message) { m.Seq = 1 })
			s.now = s.now.Add(4 * time.Second)
			s.links[0].psn = psn
		}
	}, []string{"timeout: sent again and again without an acknowledgement for 10s"}},
	{"bad ICRC", func(s *script) {
		s.cdc(c2s, produce(0, 100))
		data := s.packets[len(s.packets)-1].Data
		data[len(data)-20] ^= 1
	}, []string{"bad ICRC: the ICRC is wrong (IBTA A17.3.3)"}},
	{"write with a wrong length", func(s *script) {
		s.roce(c2s, 0, roce.Packet{BTH: roce.BTH{Opcode: roce.WriteOnly}, RETH: roce.RETH{VA: 0x1000_0000, RKey: 0x101, Length: 9}, Payload: make([]byte, 10)})
	}, []string{"malformed: the RDMA WRITE does not have the length that its first packet tells (IBTA 9.3)"}},
	{"reset", func(s *script) {
		s.cdc(c2s, produce(0, 0))
		s.segment(s2c, tcpRST, nil, nil)
	}, []string{"reset: the TCP connection of an SMC connection was reset (RFC 7609 p.62)"}},
	{"data on TCP", func(s *script) {
		s.segment(c2s, tcpACK, nil, []byte("hello"))
		s.segment(c2s, tcpACK, nil, []byte("hello"))
	}, []string{"violation: data on the TCP connection of an SMC connection (RFC 7609 p.66)"}},
	{"late Decline", func(s *script) {
		s.clc(s2c, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagTimeoutConfirmLink, OS: clc.OSLinux})
		s.segment(c2s, tcpACK, nil, []byte("hello"))
	}, []string{"declined: "}},
}

func TestRules(t *testing.T) {
	for _, tt := range rules {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript()
			s.handshake()
			wantProblems(t, s.packets)
			tt.play(s)
			wantProblems(t, s.packets, tt.want...)
		})
	}
}
