package dissect

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// clcRules has a sequence of packets for every rule of handshakes, and what is wrong with it.
var clcRules = []struct {
	name string
	play func(s *script)
	want []string
}{
	{"server without SMC", func(s *script) {
		s.open(true, false)
		s.segment(c2s, tcpACK, nil, []byte("GET /"))
	}, nil},
	{"client without SMC", func(s *script) {
		s.open(false, false)
		s.segment(c2s, tcpACK, nil, []byte("GET /"))
	}, nil},
	{"handshake without options, between hosts that know of each other", func(s *script) {
		s.open(false, false)
		s.clc(c2s, s.proposal())
		s.clc(s2c, s.accept())
		s.clc(c2s, s.confirm())
	}, nil},
	{"handshake with one option", func(s *script) {
		s.open(true, false)
		s.clc(c2s, s.proposal())
		s.clc(s2c, s.accept())
		s.clc(c2s, s.confirm())
		s.confirmLink(0)
	}, nil},
	{"declined by the server", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(s2c, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID, OS: clc.OSLinux})
		s.segment(c2s, tcpACK, nil, []byte("GET /"))
		s.segment(s2c, tcpFIN|tcpACK, nil, []byte("200"))
		s.segment(c2s, tcpFIN|tcpACK, nil, nil)
	}, []string{"5 declined: "}},
	{"declined by the client at once", func(s *script) {
		s.open(true, true)
		s.clc(c2s, clc.Decline{Version: clc.V1, Diagnosis: clc.DiagNoDevice})
	}, []string{"4 declined: NOSMCDEV"}},
	{"Accept after Decline", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(s2c, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID})
		s.clc(s2c, s.accept())
	}, []string{"declined", "violation: Accept after Decline (RFC 7609 p.27)"}},
	{"Decline and Accept cross", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		seen := s.seq[c2s.index()]
		s.clc(c2s, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID})
		s.segmentAt(s2c, tcpACK, s.seq[s2c.index()], seen, nil, s.accept().Append(nil))
	}, []string{"declined"}},
	{"Accept without Proposal", func(s *script) {
		s.open(true, true)
		s.clc(s2c, s.accept())
	}, []string{"violation: Accept without Proposal (RFC 7609 p.27)"}},
	{"Accept, and the Proposal is not in the capture", func(s *script) {
		s.open(true, true)
		s.seq[c2s.index()] += 156
		s.clc(s2c, s.accept())
	}, nil},
	{"Confirm without Accept", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(c2s, s.confirm())
	}, []string{"violation: Confirm without Accept (RFC 7609 p.27)"}},
	{"two Proposals", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(c2s, s.proposal())
	}, []string{"violation: a second Proposal (RFC 7609 p.27)"}},
	{"two Accepts, two Confirms", func(s *script) {
		s.handshake()
		s.clc(s2c, s.accept())
		s.clc(c2s, s.confirm())
	}, []string{"violation: a second Accept (RFC 7609 p.27)", "violation: a second Confirm (RFC 7609 p.27)"}},
	{"Proposal of the server", func(s *script) {
		s.open(true, true)
		s.clc(s2c, s.proposal())
	}, []string{"violation: the Proposal comes from the wrong side (RFC 7609 p.27)"}},
	{"Accept of what was not offered", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(s2c, clc.Accept{Version: clc.V1, FirstContact: true, R: s.paramsR(1)})
	}, []string{"violation: the Accept chooses what was not offered: SMC-Rv1 (RFC 7609 p.31)"}},
	{"Accept of another EID", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		a := s.accept()
		a.EID, _ = wire.ParseEID("OTHER")
		s.clc(s2c, a)
	}, []string{"violation: the Accept's EID is not one of the Proposal: OTHER (SMCv2 p.66)"}},
	{"Accept of another CHID", func(s *script) {
		s.open(true, true)
		p := s.proposal()
		p.V2 = clc.TypesBoth
		p.Ext.D = &clc.ProposalDv2{Devices: []clc.ISMDevice{{GID: wire.ISMGID{Hi: 1}, CHID: 7}}}
		s.clc(c2s, p)
		s.clc(s2c, clc.Accept{Version: clc.V2, EID: scriptEID, D: &clc.ParamsD{CHID: 8}})
	}, []string{"violation: the Accept's CHID is not one of the Proposal: 0008 (SMCv2 p.63)"}},
	{"Confirm of another type", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(s2c, s.accept())
		s.clc(c2s, clc.Confirm{Version: clc.V1, R: s.paramsR(0)})
	}, []string{"violation: the Confirm is not of the type and version of the Accept (RFC 7609 p.27)"}},
	{"Confirm of another EID", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(s2c, s.accept())
		f := s.confirm()
		f.EID, _ = wire.ParseEID("OTHER")
		s.clc(c2s, f)
	}, []string{"violation: the Confirm's EID is not that of the Accept: OTHER (SMCv2 p.73)"}},
	{"Confirm that is no first contact", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(s2c, s.accept())
		f := s.confirm()
		f.FirstContact, f.FCE, f.ClientGIDs = false, nil, nil
		s.clc(c2s, f)
	}, []string{"violation: Confirm and Accept do not agree on first contact (SMCv2 p.73)"}},
	{"Confirm with other limits", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(s2c, s.accept())
		f := s.confirm()
		f.FCE.MaxConns = 16
		s.clc(c2s, f)
	}, []string{"violation: the Confirm's limits of connections and links are not those of the Accept"}},
	{"reserved MTU", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		b := s.accept().Append(nil)
		b[50] = 0x0f
		s.segment(s2c, tcpACK, nil, b)
	}, []string{"violation: clc.Accept"}},
	{"malformed", func(s *script) {
		s.open(true, true)
		b := s.proposal().Append(nil)
		b[len(b)-1]++ // of the eyecatcher
		s.segment(c2s, tcpACK, nil, b)
		s.segment(s2c, tcpFIN|tcpACK, nil, nil)
	}, []string{"malformed: clc.Proposal"}},
	{"malformed header", func(s *script) {
		s.open(true, true)
		b := s.proposal().Append(nil)
		b[5], b[6] = 0xff, 0xff
		s.segment(c2s, tcpACK, nil, b)
	}, []string{"malformed: clc"}},
	{"no CLC", func(s *script) {
		s.open(true, true)
		s.segment(c2s, tcpACK, nil, []byte("GET /"))
		s.segment(s2c, tcpACK, nil, []byte("400"))
	}, []string{"violation: bytes that are no CLC message, where one was expected (RFC 7609 p.134)"}},
	{"cut off", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.segment(s2c, tcpRST, nil, nil)
	}, []string{"reset: the connection ended in the middle of the handshake"}},
	{"no Proposal", func(s *script) {
		s.open(true, true)
		s.now = s.now.Add(10 * time.Second)
		s.segment(c2s, tcpACK, nil, nil)
	}, []string{"timeout: no Proposal for 10s (RFC 7609 p.134)"}},
	{"no Accept", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.now = s.now.Add(time.Hour)
		s.segment(c2s, tcpACK, nil, nil)
	}, []string{"timeout: no Accept for 10s (RFC 7609 p.134)"}},
	{"no Confirm yet", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.clc(s2c, s.accept())
		s.now = s.now.Add(9 * time.Second)
		s.segment(c2s, tcpACK, nil, nil)
	}, nil},
	{"no Accept that the capture has", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		s.seq[s2c.index()] += 160
		s.segment(c2s, tcpACK, nil, nil)
		s.now = s.now.Add(time.Hour)
		s.segment(c2s, tcpACK, nil, nil)
	}, nil},
	{"overlap with other bytes", func(s *script) {
		s.open(true, true)
		b, seq := s.proposal().Append(nil), s.seq[0]
		s.segmentAt(c2s, tcpACK, seq, 0, nil, b[:50])
		b[40] ^= 1
		s.segmentAt(c2s, tcpACK, seq+20, 0, nil, b[20:])
	}, []string{"violation: a TCP segment repeats sequence numbers with other bytes (RFC 9293)"}},
	{"truncated segment", func(s *script) {
		s.open(true, true)
		s.clc(c2s, s.proposal())
		p := &s.packets[len(s.packets)-1]
		p.Data = p.Data[:len(p.Data)-4]
		s.clc(s2c, s.accept())
		s.clc(c2s, s.confirm())
	}, []string{"truncated: the capture does not have the whole TCP segment"}},
	{"SYN again", func(s *script) {
		s.open(true, true)
		s.packets = append(s.packets, s.packets[0], s.packets[1])
		s.clc(c2s, s.proposal())
		s.packets = append(s.packets, s.packets[0], s.packets[1])
		s.clc(s2c, s.accept())
	}, nil},
}

func TestCLCRules(t *testing.T) {
	for _, tt := range clcRules {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript()
			tt.play(s)
			wantProblems(t, s.packets, tt.want...)
		})
	}
}

// TestReassembly sends a handshake in pieces of many sizes, in order, backwards, twice and overlapping.
func TestReassembly(t *testing.T) {
	whole := newScript()
	whole.handshake()
	lines, _ := track(whole.packets, Options{})
	want := withoutNumbers(lines)
	for _, order := range []string{"in order", "backwards", "twice", "overlapping"} {
		for size := 1; size < 400; size += 1 + size/10 {
			if order == "backwards" && size < 30 {
				continue // more pieces than may wait
			}
			s := newScript()
			s.open(true, true)
			for _, message := range []struct {
				d Direction
				m clc.Message
			}{{c2s, s.proposal()}, {s2c, s.accept()}, {c2s, s.confirm()}} {
				i, b := message.d.index(), message.m.Append(nil)
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
					s.segmentAt(message.d, tcpACK, s.seq[i]+uint32(p[0]), s.seq[1-i], nil, b[p[0]:p[1]])
				}
				s.seq[i] += uint32(len(b))
			}
			s.confirmLink(0)
			lines, _ := track(s.packets, Options{})
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
	s := newScript()
	s.handshake()
	for from := range 6 {
		lines, _ := track(s.packets[from:], Options{})
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
	s := newScript()
	s.open(true, false)
	_, sum := track(s.packets, Options{})
	if got := fmt.Sprint(sum.Conns, sum.Modes); got != "1 [{TCP 1}]" {
		t.Errorf("after the SYN-ACK: connections %s, want 1 [{TCP 1}]", got)
	}
	s.clc(c2s, s.proposal())
	s.clc(s2c, s.accept())
	s.clc(c2s, s.confirm())
	_, sum = track(s.packets, Options{})
	if got := fmt.Sprint(sum.Conns, sum.Modes); got != "1 [{SMC-Rv2.1 1}]" {
		t.Errorf("after the Confirm: connections %s, want 1 [{SMC-Rv2.1 1}]", got)
	}
}

// TestFlood opens more connections than the tracker remembers, with and without what comes next.
func TestFlood(t *testing.T) {
	tr := New(Options{})
	s := newScript()
	events := 0
	emit := func(*Event) { events++ }
	const n = maxConns + 5000
	for i := range n {
		s.packets = s.packets[:0]
		s.ends[0].addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 14), byte(i >> 6)}), uint16(40000+i&63))
		if i%3 == 0 {
			s.segment(c2s, tcpSYN, clc.AppendOptionPadded(nil), nil)
		} else {
			s.open(true, true)
			s.segment(c2s, tcpACK, nil, s.proposal().Append(nil)[:100])
		}
		for _, p := range s.packets {
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
	s := newScript()
	s.handshake()
	s.secondLink()
	s.write(c2s, 0, 3000)
	s.cdc(c2s, produce(0, 3000))
	for _, p := range s.packets {
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
		for _, p := range s.packets {
			tr.Packet(p, emit)
		}
		before := bytes.Clone(data)
		for range 2 {
			tr.Packet(Packet{Number: 99, Time: s.now, Link: frame.LinkType(link), Data: data, OrigLen: origLen}, emit)
		}
		tr.Close(emit)
		if !bytes.Equal(data, before) {
			t.Errorf("Packet changed its data from %x to %x", before, data)
		}
	})
}

// FuzzStream gives any bytes as the two streams of a connection, in segments whose places are a matter
// of the bytes too.
func FuzzStream(f *testing.F) {
	s := newScript()
	f.Add(s.proposal().Append(nil), s.accept().Append(nil), s.confirm().Append(nil), uint16(7))
	f.Add([]byte("GET /"), []byte("400"), []byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, a, b, c []byte, cut uint16) {
		s := newScript()
		s.open(true, true)
		for i, part := range [][]byte{a, b, c} {
			if len(part) > 3000 {
				part = part[:3000]
			}
			d := []Direction{c2s, s2c, c2s}[i]
			at := int(cut) % (len(part) + 1)
			seq, ack := s.seq[d.index()], s.seq[d.Reverse().index()]
			s.segmentAt(d, tcpACK, seq+uint32(at), ack, nil, part[at:])
			s.segmentAt(d, tcpACK, seq, ack, nil, part[:at])
			s.segmentAt(d, tcpACK, seq+uint32(cut)/2, ack, nil, part)
			s.seq[d.index()] += uint32(len(part))
		}
		s.confirmLink(0)
		lines, _ := track(s.packets, Options{})
		if len(lines) > 60 {
			t.Errorf("%d events of %d packets:\n%s", len(lines), len(s.packets), strings.Join(lines, "\n"))
		}
	})
}

func ExampleTracker() {
	s := newScript()
	s.open(true, true)
	s.clc(c2s, s.proposal())
	s.clc(s2c, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID, OS: clc.OSLinux})
	t := New(Options{})
	for _, p := range s.packets {
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
