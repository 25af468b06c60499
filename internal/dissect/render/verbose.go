package render

import (
	"fmt"
	"strconv"

	"github.com/gosmc/smc/internal/dissect"
)

// AppendVerbose appends a list of all that is known about the event to b, a line each and
// indented, and returns the extended slice. It follows the event's own line, see [Lines.Append]. Reserved
// bytes are in it only if they are not zero; [AppendHex] shows them all.
//
//	    QPN                      0x11 (17)
//	    first contact            yes
//	name of the field or what else  value, and what it means
func AppendVerbose(b []byte, e *dissect.Event) []byte {
	for _, f := range Fields(e) {
		if f.Parent || f.Reserved && isZeroText(f.Text) {
			continue
		}
		b = appendItem(b, f.Name, f.String())
	}
	b = appendTransportItems(b, e)
	b = appendContextItems(b, e)
	for i := range e.Problems {
		b = appendItem(b, "problem", e.Problems[i].String())
	}
	return b
}

// isZeroText reports whether the hexadecimal digits are all zero.
func isZeroText(digits string) bool {
	for i := range len(digits) {
		if digits[i] != '0' {
			return false
		}
	}
	return true
}

// nameWidth is the width of the column of names. A longer one moves its value to the right.
const nameWidth = 26

func appendItem(b []byte, name, value string) []byte {
	start := len(b) + 4
	b = append(b, "    "...)
	b = append(b, name...)
	b = appendBlanks(b, max(1, start+nameWidth-len(b)))
	b = append(b, value...)
	return append(b, '\n')
}

// appendTransportItems tells of the RoCEv2 packet of an LLC or CDC message; the packet of a RoCE
// event is in its fields.
func appendTransportItems(b []byte, e *dissect.Event) []byte {
	t := e.RoCE
	if t == nil {
		return b
	}
	if p := t.Packet; p != nil && e.Family != dissect.RoCE {
		b = appendItem(b, "RoCEv2", p.String())
	}
	if e.Family != dissect.RoCE || t.ICRC != dissect.ICRCGood {
		b = appendItem(b, "ICRC", t.ICRC.String())
	}
	if t.Retransmission {
		b = appendItem(b, "retransmission", "yes")
	}
	switch {
	case t.Gap > 0:
		b = appendItem(b, "packets missing before", strconv.Itoa(t.Gap))
	case t.Gap < 0:
		b = appendItem(b, "packets missing before", "unknown, the numbers begin anew")
	}
	return b
}

// appendContextItems tells the effect of the event on its connection and its link.
func appendContextItems(b []byte, e *dissect.Event) []byte {
	if c := e.Conn; c != nil {
		b = appendItem(b, "connection",
			fmt.Sprintf("%d, %v > %v, %s, %v", c.ID, c.Client, c.Server, c.Mode, c.State))
	}
	if l := e.Link; l != nil {
		s := fmt.Sprintf("%d, QPN %v and %v, %v", l.ID, l.Client.QPN, l.Server.QPN, l.State)
		if l.Group != nil {
			s += ", "
			if l.NumKnown {
				s += fmt.Sprintf("number %d ", l.Num)
			}
			s += fmt.Sprintf("of link group %d", l.Group.ID)
		}
		b = appendItem(b, "link", s)
	}
	if e.Dir != dissect.DirUnknown {
		b = appendItem(b, "direction", e.Dir.String())
	}
	if w := e.Write; w != nil {
		b = appendWriteItems(b, e, w)
	}
	if p := e.Progress; p != nil {
		b = appendProgressItems(b, p)
	}
	return b
}

func appendWriteItems(b []byte, e *dissect.Event, w *dissect.Write) []byte {
	if w.Known && !w.Start {
		b = appendItem(b, "writes to", fmt.Sprintf("%#x, of %d bytes", w.VA, w.Length))
	}
	if w.Ring == nil {
		return appendItem(b, "buffer", "unknown")
	}
	s := fmt.Sprintf("bytes %d to %d", w.Offset, uint64(w.Offset)+uint64(max(w.Bytes, 1))-1)
	if w.Bytes == 0 {
		s = fmt.Sprintf("no bytes, at %d", w.Offset)
	}
	if w.Ring.Size > 0 {
		s += fmt.Sprintf(" of %d", w.Ring.Size)
	}
	b = appendItem(b, "buffer", s)
	return appendItem(b, "written so far", fmt.Sprintf("%d bytes", w.Total))
}

func appendProgressItems(b []byte, p *dissect.Progress) []byte {
	if p.Repeated {
		b = appendItem(b, "repeated", "yes, it changes nothing")
	}
	for _, item := range []struct {
		name  string
		bytes int
	}{
		{"produced", p.Produced}, {"consumed", p.Consumed}, {"window", p.Window}, {"peer's window",
			p.PeerRoom},
	} {
		if item.bytes >= 0 {
			b = appendItem(b, item.name, fmt.Sprintf("%d bytes", item.bytes))
		}
	}
	if p.SeqGap > 0 {
		b = appendItem(b, "messages missing before", strconv.Itoa(p.SeqGap))
	}
	if p.Failover {
		b = appendItem(b, "failover", "from another link")
	}
	if p.Moved {
		b = appendItem(b, "moved", "from another link, which has not failed")
	}
	return b
}
