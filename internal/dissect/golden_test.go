package dissect

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

var update = flag.Bool("update", false, "rewrite the golden files of the captures")

// eventText says in a line all that the tracker found out about an event.
func eventText(e *Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %v %s", e.Packet.Number, e.Family, e.Name)
	if e.Dir != DirUnknown {
		fmt.Fprintf(&b, " %v", e.Dir)
	}
	if e.Conn != nil {
		fmt.Fprintf(&b, " conn=%d", e.Conn.ID)
	}
	if e.Link != nil {
		fmt.Fprintf(&b, " link=%d", e.Link.ID)
	}
	switch m := e.Message.(type) {
	case clc.Message:
		fmt.Fprintf(&b, " %s/%v", e.Conn.Mode, e.Conn.State)
	case llc.Message:
		if m.Head().Reply {
			b.WriteString(" reply")
		}
		if e.Link != nil {
			fmt.Fprintf(&b, " num=%d/%v", e.Link.Num, e.Link.State)
		}
	case *cdc.Message:
		fmt.Fprintf(&b, " seq=%d token=%v producer=%v consumer=%v", m.Seq, m.AlertToken, m.Producer, m.Consumer)
		if m.ProducerFlags != 0 || m.ConnFlags != 0 {
			fmt.Fprintf(&b, " flags=%v,%v", m.ProducerFlags, m.ConnFlags)
		}
	}
	if r := e.RoCE; r != nil {
		fmt.Fprintf(&b, " psn=%v", r.Packet.PSN)
		if r.ICRC != ICRCGood {
			fmt.Fprintf(&b, " icrc=%v", r.ICRC)
		}
		if r.Retransmission {
			b.WriteString(" retransmission")
		}
		if r.Gap != 0 {
			fmt.Fprintf(&b, " gap=%d", r.Gap)
		}
	}
	if w := e.Write; w != nil {
		fmt.Fprintf(&b, " write known=%v bytes=%d", w.Known, w.Bytes)
		if w.Ring != nil {
			fmt.Fprintf(&b, " offset=%d total=%d", w.Offset, w.Total)
		}
	}
	if p := e.Progress; p != nil {
		fmt.Fprintf(&b, " produced=%d consumed=%d window=%d room=%d", p.Produced, p.Consumed, p.Window, p.PeerRoom)
		if p.Repeated {
			b.WriteString(" repeated")
		}
		if p.SeqGap != 0 {
			fmt.Fprintf(&b, " seqgap=%d", p.SeqGap)
		}
		if p.Failover {
			b.WriteString(" failover")
		}
		if p.Moved {
			b.WriteString(" moved")
		}
	}
	if e.Text != "" {
		fmt.Fprintf(&b, " %q", e.Text)
	}
	for _, p := range e.Problems {
		fmt.Fprintf(&b, " [%v]", p)
	}
	return b.String()
}

// track returns the events of packets as lines, and the tracker's summary.
func track(packets []Packet, opts Options) ([]string, *Summary) {
	var lines []string
	tr := New(opts)
	emit := func(e *Event) { lines = append(lines, eventText(e)) }
	for _, p := range packets {
		tr.Packet(p, emit)
	}
	tr.Close(emit)
	return lines, tr.Summary()
}

// TestCaptures compares the events of every capture with its golden file.
func TestCaptures(t *testing.T) {
	for name := range dissecttest.Captures {
		t.Run(name, func(t *testing.T) {
			lines, _ := track(dissecttest.Captured(t, name), Options{})
			got := strings.Join(lines, "\n") + "\n"
			file := "testdata/" + name + ".events.txt"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got == string(want) {
				return
			}
			wantLines := strings.Split(string(want), "\n")
			for i, line := range append(lines, "") {
				if i >= len(wantLines) || line != wantLines[i] {
					t.Fatalf("%s, event %d:\n got %s\nwant %s", name, i+1, line, strings.Join(wantLines[min(i, len(wantLines)-1):][:1], ""))
				}
			}
			t.Errorf("%s: %d events, want %d", name, len(lines), len(wantLines)-1)
		})
	}
}

// TestEveryMessage checks that nothing in the captures of SMC is left unknown: every SEND is a message, every
// message and every byte of data has its connection or link, and every ICRC is right.
func TestEveryMessage(t *testing.T) {
	for name, sends := range map[string]int{"one-link": 120, "two-links": 241} {
		tr := New(Options{})
		got := 0
		emit := func(e *Event) {
			known := true
			switch e.Family {
			case RoCE:
				known = !e.RoCE.Packet.Opcode.IsSend() && (e.Write == nil || e.Write.Known && e.Write.Ring != nil)
			case CDC:
				got++
				known = e.Message != nil && e.Conn != nil && e.Progress != nil
			case LLC:
				got++
				known = e.Message != nil
			case CLC:
				known = e.Message != nil && e.Conn.Mode != modeTCP
			case TCPOption, TCP:
				known = e.Conn != nil
			case Note:
				known = false
			}
			if e.RoCE != nil {
				known = known && e.Link != nil && e.Dir != DirUnknown && e.RoCE.ICRC == ICRCGood
			}
			if !known {
				t.Errorf("%s: not understood: %s", name, eventText(e))
			}
		}
		for _, p := range dissecttest.Captured(t, name) {
			tr.Packet(p, emit)
		}
		if got != sends {
			t.Errorf("%s: %d LLC and CDC messages, want %d", name, got, sends)
		}
	}
}
