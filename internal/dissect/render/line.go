package render

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// A TimeFormat says how [Lines] shows the time of a packet.
type TimeFormat uint8

// All formats. Times have microseconds, as in most captures.
const (
	TimeRelative TimeFormat = iota // seconds since the first event, or since Lines.Start
	TimeAbsolute                   // date and time of day in UTC
	TimeDelta                      // seconds since the event before
	TimeNone
)

// Lines renders events as one line each. The zero Lines is ready to use; it must not be used by
// two goroutines at the same time.
//
//	    12    0.001512  192.168.76.2 > 192.168.76.1              c1 l1   CDC seq=1 token=0x1 prod=0000:00000064 ...
//	number     seconds  from > to, with ports where they say something   connection, link   what it is, and what matters of it
//
// Connection and link are the numbers of [dissect.Conn] and [dissect.Link], "-" if there is none.
// Problems come last, after an exclamation mark.
type Lines struct {
	Time  TimeFormat
	Start time.Time // start of TimeRelative; zero means the time of the first event
	last  time.Time
}

// addressWidth has room for two IPv4 addresses with ports, but for the longest.
const addressWidth = 41

// Append appends the event's line, without a newline, to b and returns the extended slice. It does
// not allocate for RoCEv2 packets and CDC messages if b has room, and there is no problem to tell of.
func (l *Lines) Append(b []byte, e *dissect.Event) []byte {
	b = appendBlanks(b, 6-digits(uint64(e.Packet.Number)))
	b = strconv.AppendInt(b, int64(e.Packet.Number), 10)
	b = append(b, ' ', ' ')
	b = l.appendTime(b, e.Packet.Time)
	return AppendLine(b, e)
}

func (l *Lines) appendTime(b []byte, t time.Time) []byte {
	switch l.Time {
	case TimeNone:
		return b
	case TimeAbsolute:
		b = t.UTC().AppendFormat(b, "2006-01-02 15:04:05.000000")
		return append(b, ' ', ' ')
	case TimeRelative, TimeDelta:
	}
	if l.Start.IsZero() {
		l.Start = t
	}
	if l.last.IsZero() {
		l.last = t
	}
	from := l.Start
	if l.Time == TimeDelta {
		from = l.last
	}
	l.last = t
	b = appendSeconds(b, t.Sub(from))
	return append(b, ' ', ' ')
}

// appendSeconds appends seconds with six decimals, right-aligned in 11 columns.
func appendSeconds(b []byte, d time.Duration) []byte {
	negative := d < 0
	us := uint64(d.Abs()) / 1000
	width := digits(us/1e6) + 7
	if negative {
		width++
	}
	b = appendBlanks(b, 11-width)
	if negative {
		b = append(b, '-')
	}
	b = strconv.AppendUint(b, us/1e6, 10)
	b = append(b, '.')
	return appendZeroPadded(b, us%1e6, 6)
}

// AppendLine appends the event's addresses, connection, link and contents, without number and time
// of the packet, to b and returns the extended slice: the rest of the line of [Lines]. Addresses
// and numbers that the event does not have are left out.
func AppendLine(b []byte, e *dissect.Event) []byte {
	if e.Src.IsValid() || e.Dst.IsValid() {
		start := len(b)
		withPorts := e.RoCE == nil // the ports of RoCEv2 say nothing
		b = appendAddr(b, e.Src, withPorts)
		b = append(b, " > "...)
		b = appendAddr(b, e.Dst, withPorts)
		b = appendBlanks(b, start+addressWidth-len(b))
		b = append(b, ' ', ' ')
		start = len(b)
		b = appendIDs(b, e)
		b = appendBlanks(b, start+6-len(b))
		b = append(b, ' ', ' ')
	}
	return AppendContent(b, e)
}

// appendIDs appends the numbers of connection and link.
func appendIDs(b []byte, e *dissect.Event) []byte {
	if e.Conn == nil && e.Link == nil {
		return append(b, '-')
	}
	if e.Conn != nil {
		b = append(b, 'c')
		b = strconv.AppendInt(b, int64(e.Conn.ID), 10)
		if e.Link != nil {
			b = append(b, ' ')
		}
	}
	if e.Link != nil {
		b = append(b, 'l')
		b = strconv.AppendInt(b, int64(e.Link.ID), 10)
	}
	return b
}

func appendAddr(b []byte, a netip.AddrPort, withPort bool) []byte {
	switch {
	case !a.Addr().IsValid():
		return append(b, '?')
	case withPort && a.Port() != 0:
		return a.AppendTo(b)
	}
	return a.Addr().AppendTo(b)
}

// AppendContent appends the contents of the event, as they are in its line after the addresses, to b and
// returns the extended slice.
func AppendContent(b []byte, e *dissect.Event) []byte {
	b = appendTitle(b, e)
	if e.Message == nil && len(e.Bytes) > 0 {
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(len(e.Bytes)), 10)
		b = append(b, " bytes"...)
	}
	switch m := e.Message.(type) {
	case *cdc.Message:
		b = appendCDC(b, e, m)
	case cdc.Message:
		b = appendCDC(b, e, &m)
	case *cdc.Header:
		b = appendHeader(b, m)
	case cdc.Header:
		b = appendHeader(b, &m)
	case *roce.Packet:
		b = appendRoCE(b, e, m)
	case clc.Message:
		b = appendCLC(b, m)
	case llc.Message:
		b = appendLLC(b, m)
	case dissect.Option:
		if !m.Present && e.Text == "" {
			b = append(b, " missing"...)
		}
	}
	if e.Family == dissect.LLC || e.Family == dissect.CDC {
		b = appendTransport(b, e.RoCE)
	}
	if e.Text != "" {
		if len(b) > 0 && b[len(b)-1] != ' ' {
			b = append(b, ' ')
		}
		b = append(b, e.Text...)
	}
	for i := range e.Problems {
		b = append(b, "  ! "...)
		b = append(b, e.Problems[i].String()...)
	}
	return b
}

// appendTitle appends the protocol and the name of the message.
func appendTitle(b []byte, e *dissect.Event) []byte {
	switch e.Family {
	case dissect.TCPOption:
		b = append(b, "TCP "...)
		b = append(b, e.Name...)
		return append(b, " SMC option"...)
	case dissect.CDC:
		return append(b, "CDC"...)
	case dissect.CLC, dissect.LLC, dissect.RoCE, dissect.TCP, dissect.Note:
	}
	b = append(b, e.Family.String()...)
	if e.Name != "" {
		b = append(b, ' ')
		b = append(b, e.Name...)
	}
	return b
}

// appendCDC appends a CDC message of SMC-R, and its changes.
func appendCDC(b []byte, e *dissect.Event, m *cdc.Message) []byte {
	if m.IsFailoverValidation() {
		b = append(b, " failover validation"...)
	}
	b = appendNumber(b, " seq=", uint64(m.Seq))
	b = appendHex(b, " token=", uint64(m.AlertToken))
	if !m.IsFailoverValidation() {
		b = AppendCursors(b, m.Producer, m.Consumer)
	}
	if p := e.Progress; p != nil {
		if p.Repeated {
			b = append(b, " repeated"...)
		} else {
			if p.Produced > 0 {
				b = appendNumber(b, " produced=", uint64(p.Produced))
			}
			if p.Consumed > 0 {
				b = appendNumber(b, " consumed=", uint64(p.Consumed))
			}
		}
		if p.Window >= 0 {
			b = appendNumber(b, " window=", uint64(p.Window))
		}
		if p.SeqGap > 0 {
			b = appendNumber(b, " missing=", uint64(p.SeqGap))
		}
		if p.Failover {
			b = append(b, " failover"...)
		}
		if p.Moved {
			b = append(b, " other-link"...)
		}
	}
	return appendFlags(b, m.ProducerFlags&^cdc.FailoverValidation, m.ConnFlags)
}

// appendHeader appends the CDC state of SMC-D.
func appendHeader(b []byte, h *cdc.Header) []byte {
	b = append(b, " SMC-D"...)
	b = AppendCursors(b, h.Producer, h.Consumer)
	return appendFlags(b, h.ProducerFlags, h.ConnFlags)
}

// AppendCursors appends the two cursors of a CDC message to b and returns the extended slice.
func AppendCursors(b []byte, producer, consumer cdc.Cursor) []byte {
	b = append(b, " prod="...)
	b = appendCursor(b, producer)
	b = append(b, " cons="...)
	return appendCursor(b, consumer)
}

// appendCursor appends the text of [cdc.Cursor.String].
func appendCursor(b []byte, c cdc.Cursor) []byte {
	b = appendDigits(b, uint64(c.Wrap), 4)
	b = append(b, ':')
	return appendDigits(b, uint64(c.Count), 8)
}

// appendFlags appends the names of flags that are set.
func appendFlags(b []byte, p cdc.ProducerFlags, c cdc.ConnFlags) []byte {
	for _, f := range producerNames {
		if p&f.flag != 0 {
			b = append(b, f.name...)
		}
	}
	for _, f := range connNames {
		if c&f.flag != 0 {
			b = append(b, f.name...)
		}
	}
	return b
}

var producerNames = [...]struct {
	flag cdc.ProducerFlags
	name string
}{
	{cdc.WriterBlocked, " writer-blocked"},
	{cdc.UrgentPending, " urgent-pending"},
	{cdc.UrgentPresent, " urgent-present"},
	{cdc.CursorUpdateRequested, " cursor-update-requested"},
	{cdc.FailoverValidation, " failover-validation"},
}

var connNames = [...]struct {
	flag cdc.ConnFlags
	name string
}{
	{cdc.DoneWriting, " done-writing"},
	{cdc.Closed, " closed"},
	{cdc.Abort, " abort"},
}

// appendRoCE appends a RoCEv2 packet that carries no message.
func appendRoCE(b []byte, e *dissect.Event, p *roce.Packet) []byte {
	op := p.Opcode
	b = appendHex(b, " qpn=", uint64(p.DestQPN))
	b = appendHex(b, " psn=", uint64(p.PSN))
	payload := len(p.Payload)
	if e.RoCE != nil {
		payload = e.RoCE.PayloadLen
	}
	if payload > 0 || op.IsSend() || op.IsWrite() {
		b = appendNumber(b, " bytes=", uint64(payload))
	}
	if op.HasRETH() {
		b = appendHex(b, " rkey=", uint64(p.RETH.RKey))
		if e.Write == nil || e.Write.Ring == nil {
			b = appendHex(b, " va=", p.RETH.VA)
		}
		b = appendNumber(b, " of=", uint64(p.RETH.Length))
	}
	if w := e.Write; w != nil && w.Ring != nil {
		b = appendNumber(b, " offset=", uint64(w.Offset))
		b = appendNumber(b, " total=", w.Total)
	}
	if op.HasAETH() {
		b = appendNumber(b, " msn=", uint64(p.AETH.MSN))
		switch s := p.AETH.Syndrome; s.Kind() {
		case roce.KindAck:
			if n, limited := s.Credits(); limited {
				b = appendNumber(b, " credits=", uint64(n))
			}
		case roce.KindRNRNak:
			b = appendNumber(b, " wait=", uint64(roce.RNRTimer(s.Value())))
			b = append(b, "us"...)
		case roce.KindReserved, roce.KindNak:
		}
	}
	if op.HasImm() {
		b = appendHex(b, " imm=", uint64(p.Imm))
	}
	if op.HasIETH() {
		b = appendHex(b, " invalidate=", uint64(p.InvalidateRKey))
	}
	if op.HasAtomicETH() {
		b = appendHex(b, " rkey=", uint64(p.Atomic.RKey))
		b = appendHex(b, " va=", p.Atomic.VA)
	}
	if p.AckReq {
		b = append(b, " ack-req"...)
	}
	if p.FECN {
		b = append(b, " fecn"...)
	}
	if p.BECN {
		b = append(b, " becn"...)
	}
	return appendTransport(b, e.RoCE)
}

// appendTransport appends unusual properties of a RoCEv2 packet. A bad ICRC is a problem, and not
// told of here.
func appendTransport(b []byte, t *dissect.Transport) []byte {
	if t == nil {
		return b
	}
	if t.Retransmission {
		b = append(b, " retransmission"...)
	}
	switch {
	case t.Gap > 0:
		b = appendNumber(b, " gap=", uint64(t.Gap))
	case t.Gap < 0:
		b = append(b, " numbers-begin-anew"...)
	}
	return b
}

// Describe returns one line about a message that was in no packet: a trace of the handshake, or the
// CDC state of SMC-D. The argument message is a value as in the Message field of a [dissect.Event],
// or [cdc.ProducerFlags] or [cdc.ConnFlags]; bytes are the encoded message, or nil. Without a
// message Describe guesses the type from the bytes.
func Describe(message any, bytes []byte) string {
	switch f := message.(type) {
	case cdc.ProducerFlags:
		return "CDC" + string(appendFlags(nil, f, 0))
	case cdc.ConnFlags:
		return "CDC" + string(appendFlags(nil, 0, f))
	}
	return string(AppendLine(nil, dissect.MessageEvent(message, bytes)))
}

// appendNumber and appendHex append a label and a number.
func appendNumber(b []byte, label string, v uint64) []byte {
	return strconv.AppendUint(append(b, label...), v, 10)
}

func appendHex(b []byte, label string, v uint64) []byte {
	b = append(b, label...)
	return strconv.AppendUint(append(b, '0', 'x'), v, 16)
}

// appendDigits appends n hexadecimal digits.
func appendDigits(b []byte, v uint64, n int) []byte {
	for i := n - 1; i >= 0; i-- {
		b = append(b, "0123456789abcdef"[v>>(4*i)&15])
	}
	return b
}

// appendZeroPadded appends v, which has at most n decimal digits, with n digits.
func appendZeroPadded(b []byte, v uint64, n int) []byte {
	for range n {
		b = append(b, '0')
	}
	for i := len(b) - 1; v > 0; i-- {
		b[i] += byte(v % 10)
		v /= 10
	}
	return b
}

func appendBlanks(b []byte, n int) []byte {
	const blanks = "                                                "
	for n > len(blanks) {
		b = append(b, blanks...)
		n -= len(blanks)
	}
	if n > 0 {
		b = append(b, blanks[:n]...)
	}
	return b
}

// digits returns the number of decimal digits of v.
func digits(v uint64) int {
	n := 1
	for ; v >= 10; v /= 10 {
		n++
	}
	return n
}
