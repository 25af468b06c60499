package render

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

var (
	lineStart = time.Date(2026, 3, 4, 5, 6, 7, 890123000, time.UTC)
	lineSrc   = netip.MustParseAddrPort("192.0.2.1:49152")
	lineDst   = netip.MustParseAddrPort("192.0.2.2:4791")
)

// writeEvent is a data packet of a known connection and at a known place.
func writeEvent() *dissect.Event {
	link := &dissect.Link{ID: 2}
	p := &roce.Packet{
		BTH:  roce.BTH{Opcode: roce.WriteOnly, DestQPN: 17, PSN: 0x2b56bf, AckReq: true},
		RETH: roce.RETH{VA: 0xff2265d883500000, RKey: 0x372, Length: 100},
	}
	return &dissect.Event{
		Packet: dissect.Packet{Number: 22, Time: lineStart.Add(1500 * time.Microsecond)},
		Family: dissect.RoCE, Name: "RDMA WRITE", Src: lineSrc, Dst: lineDst,
		Conn: &dissect.Conn{ID: 1}, Link: link,
		Message: p,
		RoCE:    &dissect.Transport{Packet: p, PayloadLen: 100, ICRC: dissect.ICRCGood},
		Write:   &dissect.Write{Start: true, Known: true, VA: 0xff2265d883500000, Length: 100, Bytes: 100, Ring: &dissect.Ring{Size: 65536}, Offset: 200, Total: 300},
	}
}

// cdcEvent is a CDC message of a known connection.
func cdcEvent() *dissect.Event {
	e := writeEvent()
	e.Packet.Number++
	e.Family, e.Name, e.Write = dissect.CDC, "CDC", nil
	e.Message = &cdc.Message{
		Seq: 3, AlertToken: 1, Producer: cdc.Cursor{Count: 300}, Consumer: cdc.Cursor{Wrap: 1, Count: 200},
		ProducerFlags: cdc.WriterBlocked | cdc.UrgentPresent, ConnFlags: cdc.DoneWriting,
	}
	e.Progress = &dissect.Progress{Produced: 100, Consumed: -1, Window: 65436, PeerRoom: -1}
	return e
}

func TestAppendLine(t *testing.T) {
	change := func(e *dissect.Event, f func(*dissect.Event)) *dissect.Event { f(e); return e }
	const (
		who  = "192.0.2.1 > 192.0.2.2                      c1 l2   "
		data = who + "RoCE RDMA WRITE qpn=0x11 psn=0x2b56bf bytes=100 rkey=0x372"
	)
	for _, tt := range []struct {
		name string
		e    *dissect.Event
		want string
	}{
		{"write", writeEvent(), data + " of=100 offset=200 total=300 ack-req"},
		{"write to unknown memory", change(writeEvent(), func(e *dissect.Event) { e.Write = nil }),
			data + " va=0xff2265d883500000 of=100 ack-req"},
		{"retransmission", change(writeEvent(), func(e *dissect.Event) { e.RoCE.Retransmission = true }),
			data + " of=100 offset=200 total=300 ack-req retransmission"},
		{"gap", change(writeEvent(), func(e *dissect.Event) { e.RoCE.Gap = 7 }),
			data + " of=100 offset=200 total=300 ack-req gap=7"},
		{"numbers begin anew", change(writeEvent(), func(e *dissect.Event) { e.RoCE.Gap = -1 }),
			data + " of=100 offset=200 total=300 ack-req numbers-begin-anew"},
		{"problems", change(writeEvent(), func(e *dissect.Event) {
			e.Problems = []dissect.Problem{{Kind: dissect.BadICRC, Text: "the ICRC is wrong", Rule: "IBTA A17.3.3"}, {Kind: dissect.Truncated}}
		}), data + " of=100 offset=200 total=300 ack-req  ! bad ICRC: the ICRC is wrong (IBTA A17.3.3)  ! truncated"},
		{"link only", change(writeEvent(), func(e *dissect.Event) { e.Conn = nil }),
			strings.Replace(data, "c1 l2   ", "l2      ", 1) + " of=100 offset=200 total=300 ack-req"},
		{"nothing known", change(writeEvent(), func(e *dissect.Event) { e.Conn, e.Link, e.Write = nil, nil, nil }),
			strings.Replace(data, "c1 l2   ", "-       ", 1) + " va=0xff2265d883500000 of=100 ack-req"},
		{"ack", change(writeEvent(), func(e *dissect.Event) {
			e.Name, e.Write, e.RoCE.PayloadLen = "ACK", nil, 0
			e.Message = &roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, DestQPN: 17, PSN: 1}, AETH: roce.AETH{Syndrome: roce.Ack(16), MSN: 5}}
		}), who + "RoCE ACK qpn=0x11 psn=0x1 msn=5 credits=16"},
		{"rnr nak", change(writeEvent(), func(e *dissect.Event) {
			e.Name, e.Write, e.RoCE.PayloadLen = "RNR NAK", nil, 0
			e.Message = &roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, DestQPN: 17, PSN: 1}, AETH: roce.AETH{Syndrome: roce.RNRNak(6), MSN: 5}}
		}), who + "RoCE RNR NAK qpn=0x11 psn=0x1 msn=5 wait=80us"},
		{"cdc", cdcEvent(), who + "CDC seq=3 token=0x1 prod=0000:0000012c cons=0001:000000c8 produced=100 window=65436 writer-blocked urgent-present done-writing"},
		{"cdc repeated", change(cdcEvent(), func(e *dissect.Event) { e.Progress.Repeated, e.Progress.Failover, e.Progress.SeqGap = true, true, 2 }),
			who + "CDC seq=3 token=0x1 prod=0000:0000012c cons=0001:000000c8 repeated window=65436 missing=2 failover writer-blocked urgent-present done-writing"},
		{"failover validation", change(cdcEvent(), func(e *dissect.Event) {
			m := cdc.NewFailoverValidation(9, 1)
			e.Message, e.Progress = &m, nil
		}), who + "CDC failover validation seq=9 token=0x1"},
		{"option", &dissect.Event{Family: dissect.TCPOption, Name: "SYN", Src: netip.MustParseAddrPort("[fe80::1]:40000"), Dst: netip.MustParseAddrPort("[fe80::2]:5000"), Message: dissect.Option{Present: true}},
			"[fe80::1]:40000 > [fe80::2]:5000           -       TCP SYN SMC option"},
		{"no option", &dissect.Event{Family: dissect.TCPOption, Name: "SYN-ACK", Src: lineDst, Message: dissect.Option{SYNACK: true}},
			"192.0.2.2:4791 > ?                         -       TCP SYN-ACK SMC option missing"},
		{"malformed", &dissect.Event{Family: dissect.CLC, Name: "Proposal", Bytes: make([]byte, 20), Problems: []dissect.Problem{{Kind: dissect.Malformed, Text: "too short", Rule: "RFC 7609 p.95"}}},
			"CLC Proposal 20 bytes  ! malformed: too short (RFC 7609 p.95)"},
		{"note", &dissect.Event{Family: dissect.Note, Name: "no reply", Text: "ADD LINK"}, "note no reply ADD LINK"},
		{"reset", &dissect.Event{Family: dissect.TCP, Name: "RST", Src: lineSrc, Dst: lineDst}, "192.0.2.1:49152 > 192.0.2.2:4791           -       TCP RST"},
	} {
		if got := string(AppendLine(nil, tt.e)); got != tt.want {
			t.Errorf("%s: AppendLine =\n%s, want\n%s", tt.name, got, tt.want)
		}
	}
}

func TestLinesTime(t *testing.T) {
	at := func(n int, d time.Duration) *dissect.Event {
		return &dissect.Event{Packet: dissect.Packet{Number: n, Time: lineStart.Add(d)}, Family: dissect.TCP, Name: "FIN"}
	}
	events := []*dissect.Event{at(1, 0), at(99, 1500*time.Microsecond), at(1000000, 3*time.Hour), at(7, -time.Second)}
	for _, tt := range []struct {
		lines Lines
		want  []string
	}{
		{Lines{}, []string{
			"     1     0.000000  TCP FIN", "    99     0.001500  TCP FIN",
			"1000000  10800.000000  TCP FIN", "     7    -1.000000  TCP FIN",
		}},
		{Lines{Start: lineStart.Add(-time.Minute)}, []string{
			"     1    60.000000  TCP FIN", "    99    60.001500  TCP FIN",
			"1000000  10860.000000  TCP FIN", "     7    59.000000  TCP FIN",
		}},
		{Lines{Time: TimeDelta}, []string{
			"     1     0.000000  TCP FIN", "    99     0.001500  TCP FIN",
			"1000000  10799.998500  TCP FIN", "     7  -10801.000000  TCP FIN",
		}},
		{Lines{Time: TimeAbsolute}, []string{
			"     1  2026-03-04 05:06:07.890123  TCP FIN", "    99  2026-03-04 05:06:07.891623  TCP FIN",
			"1000000  2026-03-04 08:06:07.890123  TCP FIN", "     7  2026-03-04 05:06:06.890123  TCP FIN",
		}},
		{Lines{Time: TimeNone}, []string{"     1  TCP FIN", "    99  TCP FIN", "1000000  TCP FIN", "     7  TCP FIN"}},
	} {
		lines := tt.lines
		for i, e := range events {
			if got := string(lines.Append(nil, e)); got != tt.want[i] {
				t.Errorf("Lines{Time: %d, Start: %v}.Append(packet %d) = %q, want %q", tt.lines.Time, tt.lines.Start, e.Packet.Number, got, tt.want[i])
			}
		}
	}
}

func TestDescribe(t *testing.T) {
	decline := clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoUEID, OS: clc.OSLinux}
	header := cdc.Header{Producer: cdc.Cursor{Count: 100}, ConnFlags: cdc.Closed}
	test := llc.TestLink{Header: llc.Header{Form: llc.V2}}
	message := cdc.Message{Seq: 1, AlertToken: 5}
	for _, tt := range []struct {
		message any
		bytes   []byte
		want    string
	}{
		{decline, nil, "CLC Decline v2 NOUEID (0x03030008) os=Linux"},
		{&decline, nil, "CLC Decline v2 NOUEID (0x03030008) os=Linux"},
		{nil, decline.Append(nil), "CLC Decline v2 NOUEID (0x03030008) os=Linux"},
		{header, nil, "CDC SMC-D prod=0000:00000064 cons=0000:00000000 closed"},
		{nil, header.Append(nil), "CDC SMC-D prod=0000:00000064 cons=0000:00000000 closed"},
		{cdc.DoneWriting | cdc.Abort, nil, "CDC done-writing abort"},
		{cdc.UrgentPending, nil, "CDC urgent-pending"},
		{message, nil, "CDC seq=1 token=0x5 prod=0000:00000000 cons=0000:00000000"},
		{nil, message.Append(nil), "CDC seq=1 token=0x5 prod=0000:00000000 cons=0000:00000000"},
		{test, nil, "LLC TEST LINK v2 request"},
		{nil, test.Append(nil), "LLC TEST LINK v2 request"},
		{dissect.Option{Present: true}, nil, "TCP SYN SMC option"},
		{dissect.Option{SYNACK: true}, nil, "TCP SYN-ACK SMC option missing"},
		{nil, clc.AppendOption(nil), "TCP SYN SMC option"},
		{nil, decline.Append(nil)[:20], "CLC message 20 bytes  ! malformed: clc.Decline: message at offset 20: message is truncated"},
		{nil, message.Append(nil)[:9], "CDC 9 bytes  ! malformed: cdc.Message: message at offset 9: message is truncated"},
		{nil, []byte{0x31}, "LLC message 1 bytes  ! malformed: llc.Header: version at offset 0: impossible version"},
		{nil, nil, "LLC message  ! malformed: llc.Header: message at offset 0: message is truncated"},
		{&roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, DestQPN: 2}}, nil, "RoCE ACK qpn=0x2 psn=0x0 msn=0 credits=0"},
		{3, nil, "note message"},
	} {
		if got := Describe(tt.message, tt.bytes); got != tt.want {
			t.Errorf("Describe(%v, %x) = %q, want %q", tt.message, tt.bytes, got, tt.want)
		}
	}
}

// Every message has a line that names it, no matter where it comes from.
func TestDescribeAll(t *testing.T) {
	for _, m := range sampleMessages() {
		line := Describe(m, nil)
		var name string
		switch m := m.(type) {
		case clc.Message:
			name = "CLC " + m.Type().String()
		case llc.Message:
			name = "LLC " + m.Type().String()
			if reply := strings.Contains(line, " reply"); reply != m.Head().Reply {
				t.Errorf("Describe(%v) = %q", m, line)
			}
		case *roce.Packet:
			name = "RoCE "
		case dissect.Option:
			name = "TCP SYN"
		default:
			name = "CDC "
		}
		if !strings.HasPrefix(line, name) || strings.ContainsAny(line, "\n\x1b") {
			t.Errorf("Describe(%v) = %q, want a line that starts with %q", m, line, name)
		}
	}
}

// A peer's text cannot do harm to a terminal, nor pretend to be something else.
func TestHostileText(t *testing.T) {
	a := clc.Accept{
		Version: clc.V2, FirstContact: true, R: sampleR,
		EID: wire.EID{'A', 0x1b, '[', '2', 'J', ' ', 'x', '=', '1', '\n'},
		FCE: &clc.FCE{OS: clc.OSLinux, HostName: `a",b=!`},
	}
	e := dissect.MessageEvent(nil, a.Append(nil))
	line := string(AppendLine(nil, e))
	if want := `eid="A?[2J x=1?" os=Linux host="a\",b=!"`; !strings.Contains(line, want) {
		t.Errorf("AppendLine = %s, want %s in it", line, want)
	}
	for name, b := range map[string][]byte{"AppendVerbose": AppendVerbose(nil, e), "AppendHex": AppendHex(nil, e), "AppendJSON": AppendJSON(nil, e)} {
		if strings.ContainsRune(string(b), 0x1b) || !strings.Contains(string(b), "A?[2J x=1?") {
			t.Errorf("%s = %q", name, b)
		}
	}
}

func TestLinesDoNotAllocate(t *testing.T) {
	var lines Lines
	b := make([]byte, 0, 1024)
	for _, e := range []*dissect.Event{writeEvent(), cdcEvent()} {
		if n := testing.AllocsPerRun(100, func() { b = lines.Append(b[:0], e) }); n != 0 {
			t.Errorf("Lines.Append of %s: %v allocations, want 0", e.Name, n)
		}
	}
}

func BenchmarkLine(b *testing.B) {
	for _, e := range []*dissect.Event{writeEvent(), cdcEvent()} {
		b.Run(e.Name, func(b *testing.B) {
			var lines Lines
			line := make([]byte, 0, 1024)
			b.ReportAllocs()
			for b.Loop() {
				line = lines.Append(line[:0], e)
			}
			b.SetBytes(int64(len(line)))
		})
	}
}

func BenchmarkJSON(b *testing.B) {
	for _, e := range []*dissect.Event{writeEvent(), cdcEvent()} {
		b.Run(e.Name, func(b *testing.B) {
			line := make([]byte, 0, 4096)
			b.ReportAllocs()
			for b.Loop() {
				line = AppendJSON(line[:0], e)
			}
			b.SetBytes(int64(len(line)))
		})
	}
}

// TestReasonKept has the line of an Accept from a server that knows why it is not SMC-D.
func TestReasonKept(t *testing.T) {
	a := clc.Accept{Version: clc.V2, R: sampleR}
	for _, kept := range []bool{false, true} {
		a.ReasonKept = kept
		line := string(AppendLine(nil, dissect.MessageEvent(nil, a.Append(nil))))
		if strings.Contains(line, " reason-kept") != kept {
			t.Errorf("AppendLine = %s, want reason-kept: %t", line, kept)
		}
	}
}
