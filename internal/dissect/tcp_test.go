package dissect

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// clcRules has a sequence of packets for every rule of handshakes, and the problem that it shows.
var clcRules = []struct {
	name string
	play func(s *dissecttest.Script)
	want []string
}{
	{"server without SMC", func(s *dissecttest.Script) {
		s.Open(true, false)
		s.Segment(c2s, tcpACK, nil, []byte("GET /"))
	}, nil},
	{"client without SMC", func(s *dissecttest.Script) {
		s.Open(false, false)
		s.Segment(c2s, tcpACK, nil, []byte("GET /"))
	}, nil},
	{"handshake without options, between hosts that know of each other", func(s *dissecttest.Script) {
		s.Open(false, false)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, s.Accept())
		s.CLC(c2s, s.Confirm())
	}, nil},
	{"handshake with one option", func(s *dissecttest.Script) {
		s.Open(true, false)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, s.Accept())
		s.CLC(c2s, s.Confirm())
		s.ConfirmLink(0)
	}, nil},
	{"declined by the server", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID, OS: clc.OSLinux})
		s.Segment(c2s, tcpACK, nil, []byte("GET /"))
		s.Segment(s2c, tcpFIN|tcpACK, nil, []byte("200"))
		s.Segment(c2s, tcpFIN|tcpACK, nil, nil)
	}, []string{"5 declined: "}},
	{"declined by the client at once", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, clc.Decline{Version: clc.V1, Diagnosis: clc.DiagNoDevice})
	}, []string{"4 declined: NOSMCDEV"}},
	{"Accept after Decline", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID})
		s.CLC(s2c, s.Accept())
	}, []string{"declined", "violation: Accept after Decline (RFC 7609 p.27)"}},
	{"Decline and Accept cross", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		seen := s.Seq[c2s]
		s.CLC(c2s, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID})
		s.SegmentAt(s2c, tcpACK, s.Seq[s2c], seen, nil, s.Accept().Append(nil))
	}, []string{"declined"}},
	{"Accept without Proposal", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(s2c, s.Accept())
	}, []string{"violation: Accept without Proposal (RFC 7609 p.27)"}},
	{"Accept, and the Proposal is not in the capture", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.Seq[c2s] += 156
		s.CLC(s2c, s.Accept())
	}, nil},
	{"Confirm without Accept", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(c2s, s.Confirm())
	}, []string{"violation: Confirm without Accept (RFC 7609 p.27)"}},
	{"two Proposals", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(c2s, s.Proposal())
	}, []string{"violation: a second Proposal (RFC 7609 p.27)"}},
	{"two Accepts, two Confirms", func(s *dissecttest.Script) {
		s.Handshake()
		s.CLC(s2c, s.Accept())
		s.CLC(c2s, s.Confirm())
	}, []string{"violation: a second Accept (RFC 7609 p.27)", "violation: a second Confirm (RFC 7609 p.27)"}},
	{"Proposal of the server", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(s2c, s.Proposal())
	}, []string{"violation: the Proposal comes from the wrong side (RFC 7609 p.27)"}},
	{"Accept of what was not offered", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, clc.Accept{Version: clc.V1, FirstContact: true, R: s.ParamsR(1)})
	}, []string{"violation: the Accept chooses what was not offered: SMC-Rv1 (RFC 7609 p.31)"}},
	{"Accept of another EID", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		a := s.Accept()
		a.EID, _ = wire.ParseEID("OTHER")
		s.CLC(s2c, a)
	}, []string{"violation: the Accept's EID is not one of the Proposal: OTHER (SMCv2 p.66)"}},
	{"Accept of another CHID", func(s *dissecttest.Script) {
		s.Open(true, true)
		p := s.Proposal()
		p.V2 = clc.TypesBoth
		p.Ext.D = &clc.ProposalDv2{Devices: []clc.ISMDevice{{GID: wire.ISMGID{Hi: 1}, CHID: 7}}}
		s.CLC(c2s, p)
		s.CLC(s2c, clc.Accept{Version: clc.V2, EID: dissecttest.EID, D: &clc.ParamsD{CHID: 8}})
	}, []string{"violation: the Accept's CHID is not one of the Proposal: 0008 (SMCv2 p.63)"}},
	{"Confirm of another type", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, s.Accept())
		s.CLC(c2s, clc.Confirm{Version: clc.V1, R: s.ParamsR(0)})
	}, []string{"violation: the Confirm is not of the type and version of the Accept (RFC 7609 p.27)"}},
	{"Confirm of another EID", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, s.Accept())
		f := s.Confirm()
		f.EID, _ = wire.ParseEID("OTHER")
		s.CLC(c2s, f)
	}, []string{"violation: the Confirm's EID is not that of the Accept: OTHER (SMCv2 p.73)"}},
	{"Confirm that is no first contact", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, s.Accept())
		f := s.Confirm()
		f.FirstContact, f.FCE, f.ClientGIDs = false, nil, nil
		s.CLC(c2s, f)
	}, []string{"violation: Confirm and Accept do not agree on first contact (SMCv2 p.73)"}},
	{"Confirm with other limits", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, s.Accept())
		f := s.Confirm()
		f.FCE.MaxConns = 16
		s.CLC(c2s, f)
	}, []string{"violation: the Confirm's limits of connections and links are not those of the Accept"}},
	{"reserved MTU", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		b := s.Accept().Append(nil)
		b[50] = 0x0f
		s.Segment(s2c, tcpACK, nil, b)
	}, []string{"violation: clc.Accept"}},
	{"malformed", func(s *dissecttest.Script) {
		s.Open(true, true)
		b := s.Proposal().Append(nil)
		b[len(b)-1]++ // of the eyecatcher
		s.Segment(c2s, tcpACK, nil, b)
		s.Segment(s2c, tcpFIN|tcpACK, nil, nil)
	}, []string{"malformed: clc.Proposal"}},
	{"malformed header", func(s *dissecttest.Script) {
		s.Open(true, true)
		b := s.Proposal().Append(nil)
		b[5], b[6] = 0xff, 0xff
		s.Segment(c2s, tcpACK, nil, b)
	}, []string{"malformed: clc"}},
	{"no CLC", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.Segment(c2s, tcpACK, nil, []byte("GET /"))
		s.Segment(s2c, tcpACK, nil, []byte("400"))
	}, []string{"violation: bytes that are no CLC message, where one was expected (RFC 7609 p.134)"}},
	{"cut off", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.Segment(s2c, tcpRST, nil, nil)
	}, []string{"reset: the connection ended in the middle of the handshake"}},
	{"no Proposal", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.Now = s.Now.Add(10 * time.Second)
		s.Segment(c2s, tcpACK, nil, nil)
	}, []string{"timeout: no Proposal for 10s (RFC 7609 p.134)"}},
	{"no Accept", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.Now = s.Now.Add(time.Hour)
		s.Segment(c2s, tcpACK, nil, nil)
	}, []string{"timeout: no Accept for 10s (RFC 7609 p.134)"}},
	{"no Confirm yet", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.CLC(s2c, s.Accept())
		s.Now = s.Now.Add(9 * time.Second)
		s.Segment(c2s, tcpACK, nil, nil)
	}, nil},
	{"no Accept that the capture has", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		s.Seq[s2c] += 160
		s.Segment(c2s, tcpACK, nil, nil)
		s.Now = s.Now.Add(time.Hour)
		s.Segment(c2s, tcpACK, nil, nil)
	}, nil},
	{"overlap with other bytes", func(s *dissecttest.Script) {
		s.Open(true, true)
		b, seq := s.Proposal().Append(nil), s.Seq[0]
		s.SegmentAt(c2s, tcpACK, seq, 0, nil, b[:50])
		b[40] ^= 1
		s.SegmentAt(c2s, tcpACK, seq+20, 0, nil, b[20:])
	}, []string{"violation: a TCP segment repeats sequence numbers with other bytes (RFC 9293)"}},
	{"truncated segment", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.CLC(c2s, s.Proposal())
		p := &s.Packets[len(s.Packets)-1]
		p.Data = p.Data[:len(p.Data)-4]
		s.CLC(s2c, s.Accept())
		s.CLC(c2s, s.Confirm())
	}, []string{"truncated: the capture does not have the whole TCP segment"}},
	{"SYN again", func(s *dissecttest.Script) {
		s.Open(true, true)
		s.Packets = append(s.Packets, s.Packets[0], s.Packets[1])
		s.CLC(c2s, s.Proposal())
		s.Packets = append(s.Packets, s.Packets[0], s.Packets[1])
		s.CLC(s2c, s.Accept())
	}, nil},
}

func TestCLCRules(t *testing.T) {
	for _, tt := range clcRules {
		t.Run(tt.name, func(t *testing.T) {
			s := dissecttest.NewScript()
			tt.play(s)
			wantProblems(t, s.Packets, tt.want...)
		})
	}
}

// TestReassembly sends a handshake in pieces of many sizes, in order, backwards, twice and overlapping.
func TestReassembly(t *testing.T) {
	whole := dissecttest.NewScript()
	whole.Handshake()
	lines, _ := track(whole.Packets, Options{})
	want := withoutNumbers(lines)
	for _, order := range []string{"in order", "backwards", "twice", "overlapping"} {
		for size := 1; size < 400; size += 1 + size/10 {
			if order == "backwards" && size < 30 {
				continue // more pieces than may wait
			}
			s := dissecttest.NewScript()
			s.Open(true, true)
			for _, message := range []struct {
				d dissecttest.Direction
				m clc.Message
			}{{c2s, s.Proposal()}, {s2c, s.Accept()}, {c2s, s.Confirm()}} {
				i, b := message.d, message.m.Append(nil)
				var pieces [][2]int
				for from := 0; from < len(b); from += size {
					pieces = append(pieces, [2]int{from, min(len(b), from+size)})
					switch last := &pieces[len(pieces)-1]; order {
					case "twice":
						pieces = append(pieces, *last)
					case "overlapping":
						last[1] = min(len(b), last[1]+3)
					}
				}
				if order == "backwards" {
					slices.Reverse(pieces)
				}
				for _, p := range pieces {
					s.SegmentAt(message.d, tcpACK, s.Seq[i]+uint32(p[0]), s.Seq[1-i], nil, b[p[0]:p[1]])
				}
				s.Seq[i] += uint32(len(b))
			}
			s.ConfirmLink(0)
			lines, _ := track(s.Packets, Options{})
			if got := withoutNumbers(lines); !slices.Equal(got, want) {
				t.Errorf("size %d, %s:\n got %s\nwant %s", size, order, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

func withoutNumbers(lines []string) (out []string) {
	for _, l := range lines {
		_, rest, _ := strings.Cut(l, " ")
		out = append(out, rest)
	}
	return out
}

// TestMidHandshake begins the capture at every packet of a handshake without options.
func TestMidHandshake(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	for from := range 6 {
		lines, _ := track(s.Packets[from:], Options{})
		text := strings.Join(lines, "\n")
		want := []string{"CLC Proposal client > server", "CLC Accept server > client", "CLC Confirm client > server"}
		for i, message := range want {
			if from <= 3+i && !strings.Contains(text, message) {
				t.Errorf("from packet %d: no %q in\n%s", from+1, message, text)
			}
		}
		if strings.Contains(text, "[") {
			t.Errorf("from packet %d: problems in\n%s", from+1, text)
		}
		if !strings.Contains(text, "LLC CONFIRM LINK client > server link=1 reply") {
			t.Errorf("from packet %d: CONFIRM LINK without its link in\n%s", from+1, text)
		}
	}
}

// TestOneOption follows a handshake between hosts that know of each other without the option: it is one
// connection, which is TCP until the Proposal comes.
func TestOneOption(t *testing.T) {
	s := dissecttest.NewScript()
	s.Open(true, false)
	_, sum := track(s.Packets, Options{})
	if got := fmt.Sprint(sum.Conns, sum.Modes); got != "1 [{TCP 1}]" {
		t.Errorf("after the SYN-ACK: connections %s, want 1 [{TCP 1}]", got)
	}
	s.CLC(c2s, s.Proposal())
	s.CLC(s2c, s.Accept())
	s.CLC(c2s, s.Confirm())
	_, sum = track(s.Packets, Options{})
	if got := fmt.Sprint(sum.Conns, sum.Modes); got != "1 [{SMC-Rv2.1 1}]" {
		t.Errorf("after the Confirm: connections %s, want 1 [{SMC-Rv2.1 1}]", got)
	}
}

// TestFlood opens more connections than the tracker remembers, with and without the messages that
// come next.
func TestFlood(t *testing.T) {
	tr := New(Options{})
	s := dissecttest.NewScript()
	events := 0
	emit := func(*Event) { events++ }
	const n = maxConns + 5000
	for i := range n {
		s.Packets = s.Packets[:0]
		s.Ends[0].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 14), byte(i >> 6)}), uint16(40000+i&63))
		if i%3 == 0 {
			s.Segment(c2s, tcpSYN, clc.AppendOptionPadded(nil), nil)
		} else {
			s.Open(true, true)
			s.Segment(c2s, tcpACK, nil, s.Proposal().Append(nil)[:100])
		}
		for _, p := range s.Packets {
			tr.Packet(p, emit)
		}
		if got := len(tr.conns.byKey); got > maxConns {
			t.Fatalf("%d connections remembered, want at most %d", got, maxConns)
		}
	}
	tr.Close(emit)
	sum := tr.Summary()
	if sum.Conns != n || sum.Evicted.Conns != n-maxConns {
		t.Errorf("Summary has %d connections and %d evicted, want %d and %d", sum.Conns, sum.Evicted.Conns, n, n-maxConns)
	}
	if events < n {
		t.Errorf("%d events, want at least %d", events, n)
	}
}

// FuzzPacket gives any packet to a tracker that knows a connection.
func FuzzPacket(f *testing.F) {
	s := dissecttest.NewScript()
	s.Handshake()
	s.SecondLink()
	s.Write(c2s, 0, 3000)
	s.CDC(c2s, dissecttest.Produce(0, 3000))
	for _, p := range s.Packets {
		f.Add(uint16(p.Link), p.Data, p.OrigLen)
	}
	for _, ip := range [][]byte{cdcPacket("10.0.0.1", "10.0.0.2"), cdcPacket("fd00::1", "fd00::2")} {
		f.Add(uint16(frame.Raw), ip, len(ip))
	}
	f.Fuzz(func(t *testing.T, link uint16, data []byte, origLen int) {
		tr := New(Options{})
		emit := func(e *Event) {
			if e.Name == "" || e.Family == 0 {
				t.Errorf("event without a name or family: %+v", e)
			}
			eventText(e)
		}
		for _, p := range s.Packets {
			tr.Packet(p, emit)
		}
		before := bytes.Clone(data)
		for range 2 {
			tr.Packet(Packet{Number: 99, Time: s.Now, Link: frame.LinkType(link), Data: data, OrigLen: origLen}, emit)
		}
		tr.Close(emit)
		if !bytes.Equal(data, before) {
			t.Errorf("Packet changed its data from %x to %x", before, data)
		}
	})
}

// FuzzStream gives any bytes as the two streams of a connection, in segments; the bytes decide
// their places, too.
func FuzzStream(f *testing.F) {
	s := dissecttest.NewScript()
	f.Add(s.Proposal().Append(nil), s.Accept().Append(nil), s.Confirm().Append(nil), uint16(7))
	f.Add([]byte("GET /"), []byte("400"), []byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, a, b, c []byte, cut uint16) {
		s := dissecttest.NewScript()
		s.Open(true, true)
		for i, part := range [][]byte{a, b, c} {
			if len(part) > 3000 {
				part = part[:3000]
			}
			d := []dissecttest.Direction{c2s, s2c, c2s}[i]
			at := int(cut) % (len(part) + 1)
			seq, ack := s.Seq[d], s.Seq[d.Reverse()]
			s.SegmentAt(d, tcpACK, seq+uint32(at), ack, nil, part[at:])
			s.SegmentAt(d, tcpACK, seq, ack, nil, part[:at])
			s.SegmentAt(d, tcpACK, seq+uint32(cut)/2, ack, nil, part)
			s.Seq[d] += uint32(len(part))
		}
		s.ConfirmLink(0)
		lines, _ := track(s.Packets, Options{})
		if len(lines) > 60 {
			t.Errorf("%d events of %d packets:\n%s", len(lines), len(s.Packets), strings.Join(lines, "\n"))
		}
	})
}

func ExampleTracker() {
	s := dissecttest.NewScript()
	s.Open(true, true)
	s.CLC(c2s, s.Proposal())
	s.CLC(s2c, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID, OS: clc.OSLinux})
	t := New(Options{})
	for _, p := range s.Packets {
		t.Packet(p, func(e *Event) {
			fmt.Println(e.Packet.Number, e.Family, e.Name, e.Dir, e.Conn.State)
		})
	}
	fmt.Println(t.Summary().Reasons[0].Reason.Tag)
	// Output:
	// 1 TCP option SYN client > server SYN
	// 2 TCP option SYN-ACK server > client options
	// 4 CLC Proposal client > server proposed
	// 5 CLC Decline server > client declined
	// NOUEID
}
