package dissect

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
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
	play func(s *dissecttest.Script)
	want []string
}{
	{"nothing wrong", func(s *dissecttest.Script) {
		s.Write(c2s, 0, 3000)
		s.CDC(c2s, dissecttest.Produce(0, 3000))
		s.CDC(s2c, dissecttest.Consume(0, 3000))
		s.Write(c2s, 3000, 16384-3000)
		s.Write(c2s, 0, 3000)
		s.CDC(c2s, dissecttest.Produce(1, 3000))
		s.CDC(s2c, func(m *cdc.Message) { m.Consumer, m.ConnFlags = cdc.Cursor{Wrap: 1, Count: 3000}, cdc.Closed })
		s.CDC(c2s, dissecttest.Set(cdc.Closed))
		s.Segment(c2s, tcpFIN|tcpACK, nil, nil)
		s.Segment(s2c, tcpFIN|tcpACK, nil, nil)
	}, nil},
	{"cursor outside the buffer", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Produce(0, 16384))
	}, []string{"violation: the producer cursor 0000:00004000 is outside the buffer of 16384 bytes (RFC 7609 p.127)"}},
	{"consumer cursor outside the buffer", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Consume(0, 20000))
	}, []string{"violation: the consumer cursor 0000:00004e20 is outside the buffer of 16384 bytes (RFC 7609 p.128)"}},
	{"producer goes back", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Produce(0, 300))
		s.CDC(c2s, dissecttest.Produce(0, 200))
	}, []string{"violation: the producer cursor goes from 0000:0000012c to 0000:000000c8 (RFC 7609 p.127)"}},
	{"consumer goes back", func(s *dissecttest.Script) {
		s.CDC(s2c, dissecttest.Produce(0, 300))
		s.CDC(c2s, dissecttest.Consume(0, 300))
		s.CDC(c2s, dissecttest.Consume(0, 200))
	}, []string{"violation: the consumer cursor goes from 0000:0000012c to 0000:000000c8 (RFC 7609 p.128)"}},
	{"producer beyond the window", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Produce(0, 16000))
		s.CDC(c2s, dissecttest.Produce(1, 16000))
		s.CDC(c2s, dissecttest.Produce(2, 100)) // already told
		s.CDC(s2c, dissecttest.Produce(0, 0))
	}, []string{"packet 10: the producer cursor 0001:00003e80 is beyond what the reader has freed (RFC 7609 p.127)"}},
	{"producer beyond a window that opens late in the capture", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Produce(0, 16000))
		s.CDC(c2s, dissecttest.Produce(1, 16000-1))
		s.CDC(s2c, dissecttest.Consume(0, 16000))
	}, nil},
	{"consumer beyond what was written", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Consume(0, 10))
		s.CDC(s2c, dissecttest.Produce(0, 9))
	}, []string{"packet 9: the consumer cursor 0000:0000000a is beyond what was written (RFC 7609 p.128)"}},
	{"write beyond the window", func(s *dissecttest.Script) {
		s.Write(c2s, 0, 1024)
		s.CDC(c2s, dissecttest.Produce(0, 16000))
		s.Write(c2s, 16000, 384)
		s.Write(c2s, 0, 1000)
		s.CDC(s2c, dissecttest.Produce(0, 0))
	}, []string{"packet 12: a write into bytes that the reader has not freed (RFC 7609 p.61)"}},
	{"write beyond the element", func(s *dissecttest.Script) {
		s.Write(c2s, 16000, 385)
	}, []string{"violation: a write beyond the end of the RMB element (RFC 7609 p.60)"}},
	{"write outside the RMB", func(s *dissecttest.Script) {
		s.Write(c2s, -1024, 512)
	}, []string{"violation: a write outside the RMB (RFC 7609 p.60)"}},
	{"write over the eyecatcher", func(s *dissecttest.Script) {
		l := s.Links[0]
		s.LLC(s2c, 0, llc.ConfirmLink{Header: llc.Header{Form: llc.V1}, GID: wire.GIDFromAddr(l.Addr[1]), QPN: l.QPN[1], Link: 1})
		s.LLC(c2s, 0, llc.ConfirmLink{Header: llc.Header{Form: llc.V1, Reply: true}, GID: wire.GIDFromAddr(l.Addr[0]), QPN: l.QPN[0], Link: 1})
		s.Write(c2s, 4, 100)
		s.CDC(c2s, func(m *cdc.Message) { m.Producer.Count, m.Consumer.Count = 104, 4 })
		s.Write(c2s, 2, 100)
		s.CDC(c2s, dissecttest.Produce(0, 2))
	}, []string{
		"violation: a write over the eyecatcher of the RMB element (RFC 7609 p.60)",
		"violation: the producer cursor 0000:00000002 is outside the buffer",
	}},
	{"write after done writing", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Set(cdc.DoneWriting))
		s.Write(c2s, 0, 10)
		s.CDC(c2s, dissecttest.Produce(0, 10))
		s.CDC(s2c, dissecttest.Consume(0, 10))
	}, []string{
		"violation: new data of a sender that has said to be done (RFC 7609 p.129)",
		"packet 10: a write by a sender that has said to be done (RFC 7609 p.129)",
	}},
	{"message after both closed", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Set(cdc.Closed))
		s.CDC(s2c, dissecttest.Set(cdc.Abort))
		s.CDC(c2s, dissecttest.Set(cdc.Closed))
	}, []string{"violation: a CDC message after both sides were done (RFC 7609 p.129)"}},
	{"abort that answers one after a close", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Set(cdc.Closed))
		s.CDC(s2c, dissecttest.Set(cdc.Abort))
		s.CDC(c2s, dissecttest.Set(cdc.Closed|cdc.Abort))
	}, nil},
	{"abort after an answer to it", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Set(cdc.Abort))
		s.CDC(s2c, dissecttest.Set(cdc.Abort))
		s.CDC(c2s, dissecttest.Set(cdc.Abort))
	}, []string{"violation: a CDC message after both sides were done (RFC 7609 p.129)"}},
	{"abort of a peer that has closed", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Set(cdc.Closed))
		s.CDC(s2c, dissecttest.Set(cdc.Closed))
		s.CDC(c2s, dissecttest.Set(cdc.Closed|cdc.Abort))
	}, []string{"violation: a CDC message after both sides were done (RFC 7609 p.129)"}},
	{"flag gone", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Set(cdc.DoneWriting))
		s.CDC(c2s, dissecttest.Set(0))
	}, []string{"violation: connection flags are gone that were set: DoneWriting (RFC 7609 p.129)"}},
	{"sequence numbers skip", func(s *dissecttest.Script) {
		s.CDC(c2s, func(m *cdc.Message) { m.Seq = 2 })
	}, []string{"violation: CDC sequence number 2 after 0, and no packet is missing (RFC 7609 p.126)"}},
	{"sequence numbers go back", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Produce(0, 0))
		s.CDC(c2s, dissecttest.Produce(0, 0))
		s.CDC(c2s, func(m *cdc.Message) { m.Seq = 1 })
	}, []string{"violation: CDC sequence number 1 after 2 (RFC 7609 p.127)"}},
	{"broken CDC", func(s *dissecttest.Script) {
		b := cdc.Message{Seq: 1}.Append(nil)
		b[1] = 43
		s.Send(c2s, 0, b)
	}, []string{"malformed: cdc.Message"}},
	{"broken LLC", func(s *dissecttest.Script) {
		s.Send(c2s, 0, make([]byte, 44))
	}, []string{"malformed: llc"}},
	{"short LLC", func(s *dissecttest.Script) {
		s.Send(c2s, 0, llc.TestLink{Header: request}.Append(nil)[:40])
	}, []string{"malformed: llc"}},
	{"optional LLC", func(s *dissecttest.Script) {
		b := make([]byte, 44)
		b[0], b[1] = 0x81, 44
		s.Send(c2s, 0, b)
	}, nil},
	{"reply without request", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.TestLink{Header: reply})
		s.CDC(s2c, dissecttest.Produce(0, 0))
	}, []string{"packet 9: the reply to a request that there was not, TEST LINK (RFC 7609 p.28)"}},
	{"reply on another link", func(s *dissecttest.Script) {
		s.SecondLink()
		s.LLC(c2s, 0, llc.TestLink{Header: request})
		s.LLC(s2c, 1, llc.TestLink{Header: reply})
		s.LLC(s2c, 0, llc.TestLink{Header: reply})
		s.CDCOver(c2s, 1, dissecttest.Produce(0, 0))
	}, []string{"packet 14: the reply to a request that there was not, TEST LINK (RFC 7609 p.28)"}},
	{"TEST LINK with other data", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.TestLink{Header: request, UserData: [16]byte{1}})
		s.LLC(s2c, 0, llc.TestLink{Header: reply, UserData: [16]byte{2}})
	}, []string{"violation: the user data is not that of the request (RFC 7609 p.142)"}},
	{"no reply", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.TestLink{Header: request})
		s.LLC(s2c, 0, llc.TestLink{Header: request})
		s.LLC(c2s, 0, llc.TestLink{Header: reply})
		s.Now = s.Now.Add(11 * time.Second)
		s.CDC(s2c, dissecttest.Produce(0, 0))
	}, []string{"timeout: no reply to the TEST LINK of packet 9 (RFC 7609 C.7)"}},
	{"no reply that the capture has", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.TestLink{Header: request})
		s.Links[0].PSN[s2c]++ // lost
		s.CDC(s2c, dissecttest.Produce(0, 0))
		s.Now = s.Now.Add(11 * time.Second)
		s.CDC(s2c, dissecttest.Produce(0, 0))
	}, nil},
	{"no reply to DELETE LINK for all", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.DeleteLink{Header: request, All: true, Reason: llc.DeleteProgram})
		s.LLC(s2c, 0, llc.DeleteLink{Header: request, All: true, Orderly: true, Reason: llc.DeleteProgram})
		s.Now = s.Now.Add(11 * time.Second)
		s.CDC(s2c, dissecttest.Set(cdc.Abort))
	}, nil},
	{"reply after DELETE LINK for all", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.DeleteRKey{Header: request, RKeys: []wire.RKey{0x201}})
		s.LLC(s2c, 0, llc.DeleteLink{Header: request, All: true, Orderly: true, Reason: llc.DeleteProgram})
		s.LLC(s2c, 0, llc.DeleteRKey{Header: reply, Count: 1})
		s.LLC(c2s, 0, llc.DeleteLink{Header: request, All: true, Orderly: true, Reason: llc.DeleteProgram})
	}, nil},
	{"CONFIRM LINK of another queue pair", func(s *dissecttest.Script) {
		l := s.Links[0]
		s.LLC(s2c, 0, llc.ConfirmLink{Header: request, CacheSize: llc.NoEyecatcher, GID: wire.GIDFromAddr(l.Addr[1]), QPN: 0x99, Link: 1})
		s.LLC(c2s, 0, llc.ConfirmLink{Header: reply, CacheSize: llc.NoEyecatcher, GID: wire.GIDFromAddr(l.Addr[0]), QPN: l.QPN[0], Link: 3})
	}, []string{
		"violation: it names queue pair 0x99 of 10.0.0.1, and the link has 0x11 of 10.0.0.1 (RFC 7609 p.140)",
		"violation: it has link number 3, and the link is 1 (RFC 7609 p.140)",
	}},
	{"CONFIRM LINK by the client", func(s *dissecttest.Script) {
		l := s.Links[0]
		s.LLC(c2s, 0, llc.ConfirmLink{Header: request, CacheSize: llc.NoEyecatcher, GID: wire.GIDFromAddr(l.Addr[0]), QPN: l.QPN[0], Link: 1})
	}, []string{"violation: the server sends the request, the client the reply (RFC 7609 p.27)"}},
	{"ADD LINK with a reserved MTU", func(s *dissecttest.Script) {
		s.LLC(s2c, 0, llc.AddLink{Header: request, GID: wire.GIDFromAddr(s.Links[1].Addr[1]), QPN: 1, Link: 2, MTU: 6, RKeys: []llc.RKeyPair{{}}})
		s.LLC(c2s, 0, llc.AddLink{Header: reply, Rejected: true, Reason: llc.RejectMTU})
	}, []string{"violation: a reserved MTU: reserved(6) (RFC 7609 p.141)"}},
	{"message on a deleted link", func(s *dissecttest.Script) {
		s.SecondLink()
		s.LLC(s2c, 1, llc.DeleteLink{Header: request, Link: 1, Reason: llc.DeleteLostPath})
		s.LLC(c2s, 1, llc.DeleteLink{Header: reply, Link: 1})
		s.CDC(c2s, dissecttest.Produce(0, 0))
	}, []string{"violation: a message on a link that was deleted (RFC 7609 p.46)"}},
	{"RMB refused", func(s *dissecttest.Script) {
		token := llc.RToken{RKey: 0x777, VA: 0x7000}
		s.LLC(c2s, 0, llc.ConfirmRKey{Header: request, RToken: token})
		s.LLC(s2c, 0, llc.ConfirmRKey{Header: reply, RToken: token, Negative: true})
	}, []string{"declined: the receiver did not take the RMB (RFC 7609 p.118)"}},
	{"RKey not known to the receiver", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.DeleteRKey{Header: request, RKeys: []wire.RKey{5}})
		s.LLC(s2c, 0, llc.DeleteRKey{Header: reply, Negative: true, Count: 1, Invalid: 1})
	}, []string{"declined: the receiver does not know an RKey that was to be deleted (RFC 7609 p.122)"}},
	{"write to a deleted RMB", func(s *dissecttest.Script) {
		s.LLC(s2c, 0, llc.DeleteRKey{Header: request, RKeys: []wire.RKey{0x101}})
		s.LLC(c2s, 0, llc.DeleteRKey{Header: reply, Count: 1})
		s.Write(c2s, 0, 10)
		token := llc.RToken{RKey: 0x101, VA: 0x1000_0000} // it comes back, and that is normal
		s.LLC(s2c, 0, llc.ConfirmRKey{Header: request, RToken: token})
		s.LLC(c2s, 0, llc.ConfirmRKey{Header: reply, RToken: token})
		s.Write(c2s, 0, 10)
	}, []string{"packet 11: a write to an RMB that was deleted (RFC 7609 p.122)"}},
	{"failover", func(s *dissecttest.Script) {
		s.SecondLink()
		s.CDC(c2s, dissecttest.Produce(0, 5000))
		s.Send(c2s, 1, cdc.NewFailoverValidation(1, 0x11).Append(nil))
		s.WriteOver(c2s, 1, 3000, 2000)
		s.CDCOver(c2s, 1, dissecttest.Produce(0, 3000)) // the bytes without an acknowledgement
		s.CDCOver(s2c, 1, dissecttest.Consume(0, 3000))
		s.CDCOver(c2s, 1, dissecttest.Produce(0, 6000))
	}, nil},
	{"failover, after messages that were lost", func(s *dissecttest.Script) {
		s.SecondLink()
		s.CDC(c2s, dissecttest.Produce(0, 5000))
		s.Send(c2s, 1, cdc.NewFailoverValidation(1, 0x11).Append(nil))
		s.WriteOver(c2s, 1, 3000, 2000)
		s.CDCOver(c2s, 1, func(m *cdc.Message) { m.Seq, m.Producer.Count = 5, 6000 })
		s.CDCOver(c2s, 1, func(m *cdc.Message) { m.Seq, m.Producer.Count = 7, 6000 })
	}, []string{"violation: CDC sequence number 7 after 5, and no packet is missing (RFC 7609 p.126)"}},
	{"late rejection of a link", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.AddLink{Header: reply, Rejected: true})
		s.CDC(s2c, dissecttest.Produce(0, 0))
	}, nil},
	{"a client's wish for a link, and no link", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.RequestAddLink{Header: request, GIDs: []wire.GID{s.Accept().R.GID}})
		s.LLC(s2c, 0, llc.RequestAddLink{Header: reply})
		s.CDC(c2s, dissecttest.Produce(0, 0))
	}, nil},
	{"one answer too many to a wish for a link", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.RequestAddLink{Header: request, GIDs: []wire.GID{s.Accept().R.GID}})
		s.LLC(s2c, 0, llc.RequestAddLink{Header: reply})
		s.LLC(s2c, 0, llc.RequestAddLink{Header: reply})
		s.CDC(c2s, dissecttest.Produce(0, 0))
	}, []string{"the reply to a request that there was not, REQUEST ADD LINK (RFC 7609 p.28)"}},
	{"late answer to DELETE LINK", func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.DeleteLink{Header: reply, Link: 1, Reason: llc.DeleteUnknownLink})
		s.CDC(s2c, dissecttest.Produce(0, 0))
	}, nil},
	{"NAKs", func(s *dissecttest.Script) {
		nak := func(v roce.Syndrome) {
			s.RoCE(s2c, 0, roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: 1}, AETH: roce.AETH{Syndrome: v}})
		}
		for _, v := range []roce.Syndrome{roce.Ack(3), roce.AckUnlimited, roce.NakSequence, roce.NakInvalidRequest,
			roce.NakRemoteAccess, roce.NakRemoteOperation, roce.RNRNak(5), 0x40} {
			nak(v)
		}
	}, []string{
		"NAK: NAK PSN sequence error (IBTA 9.7.5)", "NAK: NAK invalid request", "NAK: NAK remote access error",
		"NAK: NAK remote operation", "NAK: the receiver has no buffer for a message: RNR NAK", "NAK: ",
	}},
	{"no acknowledgement", func(s *dissecttest.Script) {
		s.RoCE(s2c, 0, roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: s.Links[0].PSN[0].Add(-1)}, AETH: roce.AETH{Syndrome: roce.AckUnlimited}})
		for range 4 {
			psn := s.Links[0].PSN
			s.CDC(c2s, func(m *cdc.Message) { m.Seq = 1 })
			s.Now = s.Now.Add(4 * time.Second)
			s.Links[0].PSN = psn
		}
	}, []string{"timeout: sent again and again without an acknowledgement for 10s"}},
	{"bad ICRC", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Produce(0, 100))
		data := s.Packets[len(s.Packets)-1].Data
		data[len(data)-20] ^= 1
	}, []string{"bad ICRC: the ICRC is wrong (IBTA A17.3.3)"}},
	{"write with a wrong length", func(s *dissecttest.Script) {
		s.RoCE(c2s, 0, roce.Packet{BTH: roce.BTH{Opcode: roce.WriteOnly}, RETH: roce.RETH{VA: 0x1000_0000, RKey: 0x101, Length: 9}, Payload: make([]byte, 10)})
	}, []string{"malformed: the RDMA WRITE does not have the length that its first packet tells (IBTA 9.3)"}},
	{"reset", func(s *dissecttest.Script) {
		s.CDC(c2s, dissecttest.Produce(0, 0))
		s.Segment(s2c, tcpRST, nil, nil)
	}, []string{"reset: the TCP connection of an SMC connection was reset (RFC 7609 p.62)"}},
	{"data on TCP", func(s *dissecttest.Script) {
		s.Segment(c2s, tcpACK, nil, []byte("hello"))
		s.Segment(c2s, tcpACK, nil, []byte("hello"))
	}, []string{"violation: data on the TCP connection of an SMC connection (RFC 7609 p.66)"}},
	{"late Decline", func(s *dissecttest.Script) {
		s.CLC(s2c, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagTimeoutConfirmLink, OS: clc.OSLinux})
		s.Segment(c2s, tcpACK, nil, []byte("hello"))
	}, []string{"declined: "}},
}

func TestRules(t *testing.T) {
	for _, tt := range rules {
		t.Run(tt.name, func(t *testing.T) {
			s := dissecttest.NewScript()
			s.Handshake()
			wantProblems(t, s.Packets)
			tt.play(s)
			wantProblems(t, s.Packets, tt.want...)
		})
	}
}

// A client that knows its link sends as soon as it has sent Confirm. If that is lost, and comes again when the server has had messages
// of the connection, they have numbers and cursors that nobody can check; those that follow are checked.
func TestLateConfirm(t *testing.T) {
	for _, skip := range []uint16{1, 2} {
		s := dissecttest.NewScript()
		s.Handshake()
		s.CDC(c2s, dissecttest.Set(cdc.Closed))
		s.CDC(s2c, dissecttest.Set(cdc.Closed))
		s.Ends[0].Addr = netip.MustParseAddrPort("10.0.0.2:40001")
		s.Ends[0].Token, s.Ends[1].Token = 0x23, 0x12
		s.CDCs = [2]cdc.Message{}
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		accept, confirm := s.Accept(), s.Confirm()
		accept.FirstContact, accept.FCE, confirm.FirstContact, confirm.FCE, confirm.ClientGIDs = false, nil, false, nil, nil
		s.CLC(s2c, accept)
		for i := range uint32(17) {
			s.CDC(c2s, dissecttest.Produce(0, 100*i))
		}
		s.CLC(c2s, confirm)
		s.CDC(s2c, dissecttest.Produce(0, 16000))
		s.CDC(c2s, func(m *cdc.Message) { m.Producer.Count, m.Consumer.Count = 1800, 16000 })
		s.CDC(c2s, func(m *cdc.Message) { m.Seq += skip - 1; m.Producer.Count = 1900 })
		var want []string
		if skip > 1 {
			want = []string{"violation: CDC sequence number 20 after 18, and no packet is missing"}
		}
		wantProblems(t, s.Packets, want...)
	}
}

// The tokens of unknown connections are bounded. When some are forgotten nothing that is new is taken for complete.
func TestEarlyTokens(t *testing.T) {
	var s earlyTokens
	for i := range wire.AlertToken(maxEarly) {
		s.add(i)
		s.add(i)
	}
	if s.take(maxEarly) || !s.take(3) || s.take(3) {
		t.Errorf("take: want those that were added, once; %d are left", len(s.tokens))
	}
	s.add(maxEarly)
	s.add(maxEarly + 1)
	if !s.take(3) || len(s.tokens) != 0 {
		t.Errorf("with more than %d tokens: take(3) = false, and %d are remembered; want true and none", maxEarly, len(s.tokens))
	}
}

// A link that was offered and rejected never was one; that it was rejected is told once.
func TestRejectedLink(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	offer := llc.AddLink{Header: llc.Header{Form: llc.V2}, GID: s.Accept().R.GID, QPN: 0x77, Link: 2, MTU: wire.MTU1024, PSN: 5}
	s.LLC(s2c, 0, offer)
	offer.Reply, offer.Rejected = true, true
	s.LLC(c2s, 0, offer)
	if lines, sum := track(s.Packets, Options{}); sum.Links != 1 {
		t.Errorf("Summary().Links = %d with a rejected one, want 1:\n%s", sum.Links, strings.Join(lines, "\n"))
	}
	s.SecondLink()
	if lines, sum := track(s.Packets, Options{}); sum.Links != 2 {
		t.Errorf("Summary().Links = %d after ADD LINK, want 2:\n%s", sum.Links, strings.Join(lines, "\n"))
	}
}
