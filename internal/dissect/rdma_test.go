package dissect

import (
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// linesAfter returns the events of the packets that play appends to a first contact.
func linesAfter(play func(s *dissecttest.Script)) []string {
	s := dissecttest.NewScript()
	s.Handshake()
	n := len(s.Packets)
	play(s)
	tr := New(Options{})
	var lines []string
	for i, p := range s.Packets {
		tr.Packet(p, func(e *Event) {
			if i >= n {
				lines = append(lines, eventText(e))
			}
		})
	}
	return withoutNumbers(lines)
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("events:\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// TestNumbers checks the events of packets that are lost, late and repeated, with numbers that go
// round.
func TestNumbers(t *testing.T) {
	got := linesAfter(func(s *dissecttest.Script) {
		first := s.Packets[len(s.Packets)-1] // CONFIRM LINK of the client, 0xfffffe
		s.Write(c2s, 0, 10)                  // 0xffffff
		late := s.Packets[len(s.Packets)-1]
		s.Packets = s.Packets[:len(s.Packets)-1]
		s.CDC(c2s, dissecttest.Produce(0, 10)) // 0
		s.Packets = append(s.Packets, late, late, first)
		s.Links[0].PSN[0] = 0x10000
		s.Write(c2s, 10, 10)
		s.Links[0].PSN[0] = 0x900000
		s.Write(c2s, 20, 10)
	})
	wantLines(t, got,
		"CDC CDC client > server conn=1 link=1 seq=1 token=0x11 producer=0000:0000000a consumer=0000:00000000 psn=0x0 gap=1 produced=-1 consumed=-1 window=16374 room=16384",
		"RoCE RDMA WRITE client > server conn=1 link=1 psn=0xffffff write known=true bytes=10 offset=0 total=10",
		"RoCE RDMA WRITE client > server conn=1 link=1 psn=0xffffff retransmission write known=true bytes=10 offset=0 total=0",
		"LLC CONFIRM LINK client > server link=1 reply num=1/active psn=0xfffffe retransmission",
		"RoCE RDMA WRITE client > server conn=1 link=1 psn=0x10000 gap=65535 write known=true bytes=10 offset=10 total=20",
		"RoCE RDMA WRITE client > server conn=1 link=1 psn=0x900000 gap=-1 write known=true bytes=10 offset=20 total=30",
	)
}

// TestLongMessage sends an LLC message that needs several packets, of which some come again.
func TestLongMessage(t *testing.T) {
	got := linesAfter(func(s *dissecttest.Script) {
		keys := make([]wire.RKey, 255)
		for i := range keys {
			keys[i] = wire.RKey(i + 1)
		}
		b := llc.DeleteRKey{Header: request, RKeys: keys}.Append(nil)
		part := func(op roce.Opcode, b []byte) {
			s.RoCE(c2s, 0, roce.Packet{BTH: roce.BTH{Opcode: op}, Payload: b})
		}
		part(roce.SendFirst, b[:256])
		part(roce.SendMiddle, b[256:512])
		again := s.Packets[len(s.Packets)-1]
		part(roce.SendMiddle, b[512:768])
		lost := s.Packets[len(s.Packets)-1]
		s.Packets = append(s.Packets[:len(s.Packets)-1], again)
		part(roce.SendLast, b[768:])
		last := s.Packets[len(s.Packets)-1]
		s.Packets = append(s.Packets, lost, last, last)
		part(roce.SendMiddle, b[:100]) // of nothing
		part(roce.SendFirst, make([]byte, 1024))
		for range 9 {
			part(roce.SendMiddle, make([]byte, 1024))
		}
		part(roce.SendLast, make([]byte, 1024)) // longer than any message
	})
	want := []string{
		"RoCE SEND FIRST client > server link=1 psn=0xffffff",
		"RoCE SEND MIDDLE client > server link=1 psn=0x0",
		"RoCE SEND MIDDLE client > server link=1 psn=0x0 retransmission",
		"RoCE SEND LAST client > server link=1 psn=0x2 gap=1",
		"RoCE SEND MIDDLE client > server link=1 psn=0x1",
		"LLC DELETE RKEY client > server link=1 num=1/active psn=0x2 retransmission",
		"RoCE SEND LAST client > server link=1 psn=0x2 retransmission",
		"RoCE SEND MIDDLE client > server link=1 psn=0x3",
		"RoCE SEND FIRST client > server link=1 psn=0x4",
	}
	for i := range 9 {
		want = append(want, "RoCE SEND MIDDLE client > server link=1 psn=0x"+string("56789abcd"[i]))
	}
	wantLines(t, got, append(want, "RoCE SEND LAST client > server link=1 psn=0xe")...)
}

// TestMiddle begins in the middle: messages that stand alone are decoded, and a link is learned
// from CONFIRM LINK.
func TestMiddle(t *testing.T) {
	s := dissecttest.NewScript()
	s.CDC(c2s, dissecttest.Produce(0, 10))
	s.Write(c2s, 10, 10)
	s.LLC(s2c, 0, llc.TestLink{Header: llc.Header{Form: llc.V1}})
	s.LLC(s2c, 0, llc.TestLink{Header: llc.Header{Form: llc.V2Little}})
	s.Send(c2s, 0, make([]byte, 44))
	s.Send(c2s, 0, append([]byte{cdc.TypeMessage}, make([]byte, 43)...)) // no length
	s.Send(c2s, 0, []byte("hello"))
	s.ConfirmLink(0)
	s.CDC(c2s, dissecttest.Produce(0, 20))
	lines, _ := track(s.Packets, Options{})
	wantLines(t, withoutNumbers(lines),
		"CDC CDC seq=1 token=0x11 producer=0000:0000000a consumer=0000:00000000 psn=0xfffffe",
		"RoCE RDMA WRITE psn=0xffffff write known=true bytes=10",
		"LLC TEST LINK psn=0x64",
		"LLC TEST LINK psn=0x65",
		"RoCE SEND psn=0x0",
		"RoCE SEND psn=0x1",
		"RoCE SEND psn=0x2",
		"LLC CONFIRM LINK server > client link=1 num=1/learned psn=0x66",
		"LLC CONFIRM LINK client > server link=1 reply num=1/active psn=0x3",
		`CDC CDC client > server link=1 seq=2 token=0x11 producer=0000:00000014 consumer=0000:00000000 psn=0x4 "of a connection that is not known"`,
	)
}

// TestLaterConnection learns a link group from a connection that is not its first.
func TestLaterConnection(t *testing.T) {
	s := dissecttest.NewScript()
	s.Open(true, true)
	s.CLC(c2s, s.Proposal())
	a, f := s.Accept(), s.Confirm()
	a.FirstContact, a.FCE = false, nil
	f.FirstContact, f.FCE, f.ClientGIDs = false, nil, nil
	s.CLC(s2c, a)
	s.CLC(c2s, f)
	s.Links[0].PSN[0] = 7777
	s.Write(c2s, 0, 10)
	s.CDC(c2s, dissecttest.Produce(0, 10))
	s.CDC(c2s, dissecttest.Produce(0, 12))
	lines, sum := track(s.Packets, Options{})
	wantLines(t, withoutNumbers(lines[4:]),
		"CLC Confirm client > server conn=1 link=1 SMC-Rv2/established",
		"RoCE RDMA WRITE client > server conn=1 link=1 psn=0x1e61 write known=true bytes=10 offset=0 total=10",
		"CDC CDC client > server conn=1 link=1 seq=1 token=0x11 producer=0000:0000000a consumer=0000:00000000 psn=0x1e62 produced=-1 consumed=-1 window=16374 room=16384",
		"CDC CDC client > server conn=1 link=1 seq=2 token=0x11 producer=0000:0000000c consumer=0000:00000000 psn=0x1e63 produced=2 consumed=0 window=16372 room=16384",
	)
	if sum.LinkGroups != 1 || sum.Links != 1 || len(sum.Problems) > 0 {
		t.Errorf("Summary = %+v, want 1 link group with 1 link", sum)
	}
}

// TestMoves has connections change the link for each reason that there is, and looks at the counter
// that each move increments.
func TestMoves(t *testing.T) {
	lost := func(s *dissecttest.Script) {
		s.LLC(s2c, 1, llc.DeleteLink{Header: llc.Header{Form: llc.V2}, Link: 1, Reason: llc.DeleteLostPath})
	}
	for _, tt := range []struct {
		name             string
		play             func(s *dissecttest.Script)
		failovers, moves int
	}{
		{"begins on the second link", func(s *dissecttest.Script) {
			s.CDCOver(c2s, 1, dissecttest.Produce(0, 10))
			s.CDCOver(s2c, 1, dissecttest.Consume(0, 10))
		}, 0, 0},
		{"balanced, one direction after the other", func(s *dissecttest.Script) {
			s.CDC(c2s, dissecttest.Produce(0, 10))
			s.CDC(s2c, dissecttest.Consume(0, 10))
			s.CDCOver(c2s, 1, dissecttest.Produce(0, 20))
			s.CDCOver(s2c, 1, dissecttest.Consume(0, 20))
		}, 0, 1},
		{"balanced, and back", func(s *dissecttest.Script) {
			s.CDC(c2s, dissecttest.Produce(0, 10))
			s.CDCOver(c2s, 1, dissecttest.Produce(0, 20))
			s.CDC(c2s, dissecttest.Produce(0, 30))
		}, 0, 2},
		{"failed", func(s *dissecttest.Script) {
			s.CDC(c2s, dissecttest.Produce(0, 10))
			s.Send(c2s, 1, cdc.NewFailoverValidation(1, 0x11).Append(nil))
			s.CDCOver(c2s, 1, dissecttest.Produce(0, 20))
		}, 1, 0},
		{"failed before the first message", func(s *dissecttest.Script) {
			s.Send(c2s, 1, cdc.NewFailoverValidation(0, 0x11).Append(nil))
		}, 1, 0},
		{"the link was lost, and nobody says more", func(s *dissecttest.Script) {
			s.CDC(c2s, dissecttest.Produce(0, 10))
			lost(s)
			s.CDCOver(c2s, 1, func(m *cdc.Message) { m.Producer.Count, m.ConnFlags = 10, cdc.Closed })
		}, 1, 0},
		{"the other direction says why", func(s *dissecttest.Script) {
			s.CDC(c2s, dissecttest.Produce(0, 10))
			s.CDC(s2c, dissecttest.Consume(0, 10))
			s.CDCOver(s2c, 1, func(m *cdc.Message) { m.Consumer.Count, m.ConnFlags = 10, cdc.Closed })
			s.Send(c2s, 1, cdc.NewFailoverValidation(1, 0x11).Append(nil))
		}, 1, 0},
	} {
		s := dissecttest.NewScript()
		s.Handshake()
		s.SecondLink()
		tt.play(s)
		tr := New(Options{})
		var conn *Conn
		for _, p := range s.Packets {
			tr.Packet(p, func(e *Event) {
				if e.Conn != nil {
					conn = e.Conn
				}
				if p := e.Progress; p != nil && (p.Failover && tt.failovers == 0 || p.Moved && tt.moves == 0 && tt.failovers == 0) {
					t.Errorf("%s: %s", tt.name, eventText(e))
				}
			})
		}
		sum := tr.Summary()
		if sum.Failovers != uint64(tt.failovers) || sum.Moves != uint64(tt.moves) {
			t.Errorf("%s: %d failovers and %d moves, want %d and %d", tt.name, sum.Failovers, sum.Moves, tt.failovers, tt.moves)
		}
		if conn.Failovers != tt.failovers || conn.Moves != tt.moves || conn.Group.Failovers != tt.failovers || conn.Group.Moves != tt.moves {
			t.Errorf("%s: the connection has %d and %d, its link group %d and %d, want %d and %d", tt.name,
				conn.Failovers, conn.Moves, conn.Group.Failovers, conn.Group.Moves, tt.failovers, tt.moves)
		}
	}
}

// TestFailover moves a connection to the second link and looks at the counters.
func TestFailover(t *testing.T) {
	var conn *Conn
	s := dissecttest.NewScript()
	s.Handshake()
	s.SecondLink()
	s.CDC(c2s, dissecttest.Produce(0, 10))
	s.Send(c2s, 1, cdc.NewFailoverValidation(1, 0x11).Append(nil))
	s.WriteOver(c2s, 1, 10, 5)
	s.CDCOver(c2s, 1, dissecttest.Produce(0, 15))
	s.CDC(s2c, dissecttest.Consume(0, 10)) // on its way still
	s.CDCOver(s2c, 1, dissecttest.Consume(0, 15))
	tr := New(Options{})
	for _, p := range s.Packets {
		tr.Packet(p, func(e *Event) {
			if e.Conn != nil {
				conn = e.Conn
			}
			if len(e.Problems) > 0 {
				t.Errorf("false problem: %s", eventText(e))
			}
		})
	}
	links := conn.Group.Links
	if conn.Link != links[1] || conn.Failovers != 1 || links[0].Conns != 0 || links[1].Conns != 1 ||
		links[1].Failovers != 1 || conn.Group.Failovers != 1 || tr.Summary().Failovers != 1 {
		t.Errorf("connection on link %d after %d failovers, links have %d and %d connections, Summary.Failovers = %d",
			conn.Link.ID, conn.Failovers, links[0].Conns, links[1].Conns, tr.Summary().Failovers)
	}
	if got := conn.ToServer.Window(); got != 16384 {
		t.Errorf("Window() = %d, want 16384", got)
	}
	if conn.ToServer.Written != 5 || links[1].Num != 2 || links[1].State != LinkActive {
		t.Errorf("%d bytes written, link %d is %v; want 5, 2, active", conn.ToServer.Written, links[1].Num, links[1].State)
	}
}

// TestVersion1 adds a link with the messages of version 1, in which RKeys come in ADD LINK CONTINUATION.
func TestVersion1(t *testing.T) {
	v1 := func(d dissecttest.Direction) llc.Header { return llc.Header{Form: llc.V1, Reply: d == c2s} }
	got := linesAfter(func(s *dissecttest.Script) {
		s.LLC(c2s, 0, llc.AddLink{Header: llc.Header{Form: llc.V1}, MAC: wire.MAC{1}}) // a wish
		for _, d := range []dissecttest.Direction{s2c, c2s} {
			s.LLC(d, 0, llc.AddLink{
				Header: v1(d), GID: wire.GIDFromAddr(s.Links[1].Addr[d]), QPN: s.Links[1].QPN[d], Link: 2,
				MTU: wire.MTU1024, PSN: s.Links[1].PSN[d],
			})
		}
		for _, d := range []dissecttest.Direction{s2c, c2s} {
			e := s.Ends[d]
			s.LLC(d, 0, llc.AddLinkCont{Header: v1(d), Link: 2, Remaining: 1, RKeys: []llc.RKeyPair{
				{Reference: e.RKey, New: llc.RToken{RKey: e.RKey + 0x1000, VA: e.VA + 7}},
			}})
		}
		s.ConfirmLink(1)
		s.WriteOver(s2c, 1, 100, 50)
		s.LLC(s2c, 0, llc.AddLink{Header: v1(s2c), QPN: 5, Link: 3, MTU: wire.MTU1024})
		s.LLC(c2s, 0, llc.AddLink{Header: v1(c2s), Rejected: true, Reason: llc.RejectNoPath})
	})
	wantLines(t, got,
		"LLC ADD LINK client > server link=1 num=1/active psn=0xffffff",
		"LLC ADD LINK server > client link=1 num=1/active psn=0x65",
		"LLC ADD LINK client > server link=1 reply num=1/active psn=0x0",
		"LLC ADD LINK CONTINUATION server > client link=1 num=1/active psn=0x66",
		"LLC ADD LINK CONTINUATION client > server link=1 reply num=1/active psn=0x1",
		"LLC CONFIRM LINK server > client link=2 num=2/learned psn=0x258",
		"LLC CONFIRM LINK client > server link=2 reply num=2/active psn=0x1f4",
		"RoCE RDMA WRITE server > client conn=1 link=2 psn=0x259 write known=true bytes=50 offset=100 total=50",
		"LLC ADD LINK server > client link=1 num=1/active psn=0x67",
		`LLC ADD LINK client > server link=1 reply num=1/active psn=0x2 "rejected: `+llc.RejectNoPath.String()+`"`,
	)
}

// TestTables fills every table and checks that it stays as large as it may be.
func TestTables(t *testing.T) {
	tr := New(Options{})
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	n := 0
	packet := func(ip []byte) {
		n++
		now = now.Add(time.Microsecond)
		tr.Packet(Packet{Number: n, Time: now, Link: frame.Raw, Data: ip, OrigLen: len(ip)}, func(*Event) {})
	}
	server := netip.MustParseAddr("10.0.0.1")
	for i := range maxFlows + maxGroups + 100 {
		client := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		m := llc.ConfirmLink{Header: request, GID: wire.GIDFromAddr(server), QPN: wire.QPN(i), Link: 1}
		packet(dissecttest.RoCEPacket(server, client, &roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly, DestQPN: 5, PSN: 1}, Payload: m.Append(nil)}))
	}
	if len(tr.links.flows) > maxFlows || tr.links.groups.len > maxGroups || len(tr.links.ends) > 2*maxGroups {
		t.Errorf("%d flows, %d link groups, %d ends; want at most %d, %d, %d",
			len(tr.links.flows), tr.links.groups.len, len(tr.links.ends), maxFlows, maxGroups, 2*maxGroups)
	}
	if e := tr.Summary().Evicted; e.Flows == 0 || e.Groups == 0 {
		t.Errorf("Summary().Evicted = %+v, want flows and groups", e)
	}

	// One link group, and all that its messages can fill.
	s := dissecttest.NewScript()
	s.Handshake()
	for i := range 3 * maxRegions {
		s.LLC(c2s, 0, llc.ConfirmRKey{Header: request, RToken: llc.RToken{RKey: wire.RKey(i), VA: uint64(i) << 20}})
		s.LLC(s2c, 0, llc.AddLink{Header: request, QPN: wire.QPN(i), Link: llc.LinkNum(i), MTU: wire.MTU1024, RKeys: []llc.RKeyPair{{}}})
	}
	tr = New(Options{})
	for _, p := range s.Packets {
		tr.Packet(p, func(*Event) {})
	}
	g := tr.links.groups.newest.of
	if len(g.Links) > maxLinksSeen || len(g.calls) > maxCalls || len(g.Links[0].rkeys[1]) > maxRegions {
		t.Errorf("%d links, %d calls, %d regions; want at most %d, %d, %d",
			len(g.Links), len(g.calls), len(g.Links[0].rkeys[1]), maxLinksSeen, maxCalls, maxRegions)
	}
}

// TestReusedTuple opens a connection with the ports of one before, which then is plain TCP.
func TestReusedTuple(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	s.Seq = [2]uint32{77, 78}
	s.Open(true, true)
	s.CLC(c2s, s.Proposal())
	s.Seq = [2]uint32{177, 178}
	s.Open(false, false)
	s.Segment(c2s, tcpACK, nil, []byte("GET /"))
	lines, sum := track(s.Packets, Options{})
	if want := "12 CLC Proposal client > server conn=2 unknown/proposed"; lines[len(lines)-1] != want {
		t.Errorf("last event: %s\nwant %s", lines[len(lines)-1], want)
	}
	if sum.Conns != 2 {
		t.Errorf("Summary().Conns = %d, want 2", sum.Conns)
	}
}

// TestNoGoodICRC decodes messages of hosts with adapters that compute the ICRC behind the capture.
func TestNoGoodICRC(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	for i := range s.Packets {
		if b := s.Packets[i].Data; b[14+9] == protoUDP {
			b[len(b)-1] ^= 1
		}
	}
	lines, sum := track(s.Packets, Options{})
	if got := lines[len(lines)-1]; !strings.Contains(got, "LLC CONFIRM LINK client > server link=1 reply num=1/active") ||
		!strings.Contains(got, "bad ICRC") || len(sum.Problems) != 1 {
		t.Errorf("last event: %s\nwant CONFIRM LINK with a bad ICRC", got)
	}
	if _, sum := track(s.Packets, Options{NoICRC: true}); len(sum.Problems) != 0 {
		t.Errorf("without checking ICRCs: problems %v", sum.Problems)
	}
}

// TestMemory plays hosts that fill all tables at once, and measures the memory that the tracker
// keeps.
func TestMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	tr := New(Options{})
	feed := func(s *dissecttest.Script) {
		for _, p := range s.Packets {
			tr.Packet(p, func(*Event) {})
		}
		s.Packets = s.Packets[:0]
	}
	for i := range maxConns + 100 {
		s := dissecttest.NewScript()
		client := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		s.Ends[0].Addr = netip.AddrPortFrom(client, 40000)
		s.Links[0].Addr[0] = client
		s.Open(true, true)
		if i < 2*maxGroups {
			s.CLC(c2s, s.Proposal())
			s.CLC(s2c, s.Accept())
			s.CLC(c2s, s.Confirm())
			for j := range 3 * maxLinksSeen {
				s.LLC(s2c, 0, llc.AddLink{
					Header: request, QPN: wire.QPN(j), Link: llc.LinkNum(j), MTU: wire.MTU1024,
					RKeys: slices.Repeat([]llc.RKeyPair{{New: llc.RToken{RKey: wire.RKey(j)}}}, 60),
				})
			}
			s.RoCE(c2s, 0, roce.Packet{BTH: roce.BTH{Opcode: roce.SendFirst}, Payload: make([]byte, 8000)})
		} else {
			s.Segment(c2s, tcpACK, nil, s.Proposal().Append(nil)[:90])
			for range maxHeldSegments {
				s.Seq[0] += 1000
				s.Segment(c2s, tcpACK, nil, make([]byte, 1000))
			}
		}
		feed(s)
	}
	used := heap() - before
	if used > 200<<20 {
		t.Errorf("the tracker keeps %d MiB, want at most 200", used>>20)
	}
	t.Logf("%d MiB", used>>20)
	runtime.KeepAlive(tr)
}
