package dissect

import (
	"bytes"
	"errors"
	"net/netip"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// The eyecatchers of CLC messages, "SMCR" and "SMCD" in EBCDIC: RFC 7609 p.92, SMCv2 p.63.
const (
	eyecatcherR = "\xe2\xd4\xc3\xd9"
	eyecatcherD = "\xe2\xd4\xc3\xc4"
)

// looksLikeCLC reports whether b, the first bytes of a message as far as they are there, can be
// a CLC message.
func looksLikeCLC(b []byte) bool {
	n := min(len(b), len(eyecatcherR))
	return string(b[:n]) == eyecatcherR[:n] || string(b[:n]) == eyecatcherD[:n]
}

// A stream puts together one direction of a handshake.
type stream struct {
	known bool   // next is known
	over  bool   // nothing of it is looked at any more
	lost  bool   // bytes are missing that will not come: it goes on at the next eyecatcher
	next  uint32 // sequence number of the first byte that is not in data
	// data has the bytes before next, from the start of the stream on, unless dropped; those up to
	// parsed are of messages that are done.
	data   []byte
	parsed int
	held   []heldSegment // that wait for one before them, in the order of their arrival
	heldN  int           // bytes in held
	differ bool          // told already that a repeated segment differs
	fin    bool          // a FIN was seen
	acked  bool          // ack is known
	ack    uint32        // number up to which this side has received from the other
}

// size returns how many bytes are remembered.
func (st *stream) size() int { return len(st.data) + st.heldN }

type heldSegment struct {
	seq  uint32
	data []byte
}

// tcp takes a TCP segment.
func (t *Tracker) tcp(l *layers) {
	s, ok := l.tcp()
	key := makeConnKey(l.src, s.src, l.dst, s.dst)
	c := t.conns.byKey[key]
	if !ok {
		if c != nil {
			t.undecodable(l)
		}
		return
	}
	src, dst := netip.AddrPortFrom(l.src, s.src), netip.AddrPortFrom(l.dst, s.dst)
	if s.flags&tcpSYN != 0 {
		if s.flags&tcpACK == 0 {
			t.syn(c, key, &s, src, dst)
		} else {
			t.synACK(c, key, &s, src, dst)
		}
		return
	}
	if c == nil {
		// Captures begin in the middle, and some hosts know without the option that the other
		// does SMC.
		if s.payloadLen == 0 || len(s.payload) == 0 || !looksLikeCLC(s.payload) {
			return
		}
		if len(s.payload) >= clc.HeaderLen {
			if _, err := clc.ParseHeader(s.payload); err != nil {
				return
			}
		}
		client, server := src, dst // a guess, see orient
		if src.Port() < dst.Port() {
			client, server = dst, src
		}
		c = t.newConn(key, client, server)
	}
	t.conns.used.touch(&c.used)
	st := c.stream(c.dir(src))
	if s.flags&tcpACK != 0 {
		st.acked, st.ack = true, s.ack
	}
	if s.payloadLen > 0 && !st.over {
		before := st.size()
		t.segment(c, st, &s, src, dst)
		t.buffered += st.size() - before
		for t.buffered > maxBuffered && t.conns.used.first() != c {
			t.count.Evicted.Conns++
			t.forget(t.conns.used.first())
		}
	}
	if s.flags&tcpRST != 0 {
		t.rst(c, src, dst)
	} else if s.flags&tcpFIN != 0 {
		t.fin(c, src, dst)
	}
}

// stream returns the stream of the direction d, which is not DirUnknown.
func (c *Conn) stream(d Direction) *stream {
	if d == ClientToServer {
		return c.toServer
	}
	return c.toClient
}

// dir returns the direction of a packet from src.
func (c *Conn) dir(src netip.AddrPort) Direction {
	if src == c.Client {
		return ClientToServer
	}
	return ServerToClient
}

// optionBytes returns the SMC option among the options of a TCP header, nil if there is none.
func optionBytes(options []byte) []byte {
	for b := options; len(b) > 0 && b[0] != 0; { // 0 ends the list
		if b[0] == 1 { // no operation
			b = b[1:]
			continue
		}
		if len(b) < 2 || int(b[1]) < 2 || int(b[1]) > len(b) {
			return nil
		}
		if option := b[:b[1]]; clc.ParseOption(option) {
			return option
		}
		b = b[b[1]:]
	}
	return nil
}

// syn takes a SYN. One without the option is ignored, unless its ports belong to a connection that
// has ended.
func (t *Tracker) syn(c *Conn, key connKey, s *tcpSegment, src, dst netip.AddrPort) {
	option := optionBytes(s.options)
	repeated := c != nil && c.isnKnown && c.isn == s.seq && c.Client == src
	if option == nil {
		if c != nil && !repeated {
			t.forget(c)
		}
		return
	}
	if !repeated {
		c = t.newConn(key, src, dst)
		c.sideKnown = true
		c.isnKnown, c.isn = true, s.seq
		c.ClientOption = OptionPresent
		c.toServer.known, c.toServer.next = true, s.seq+1
		t.setState(c, ConnSYN)
	}
	e := t.begin(TCPOption, "SYN", src, dst)
	e.Conn, e.Dir = c, ClientToServer
	e.Message, e.Bytes = optionInSYN, option
	if repeated {
		e.Text = "repeated"
	}
	t.send(e)
}

// Messages of TCPOption events, as interfaces that exist already.
var (
	optionInSYN       any = Option{Present: true}
	optionInSYNACK    any = Option{SYNACK: true, Present: true}
	optionNotInSYNACK any = Option{SYNACK: true}
)

// synACK takes a SYN-ACK.
func (t *Tracker) synACK(c *Conn, key connKey, s *tcpSegment, src, dst netip.AddrPort) {
	option := optionBytes(s.options)
	if c == nil {
		if option == nil {
			return
		}
		c = t.newConn(key, dst, src)
		c.sideKnown = true
		c.isnKnown, c.isn = true, s.ack-1
		c.toServer.known, c.toServer.next = true, s.ack
	}
	if src != c.Server {
		return
	}
	name := "SYN-ACK"
	repeated := c.toClient.known
	if !repeated {
		c.toClient.known, c.toClient.next = true, s.seq+1
		switch {
		case option == nil && c.State == ConnSYN:
			c.ServerOption = OptionAbsent
			c.Reason = clc.Lookup(clc.DiagPeerNoSMC, clc.OSUnspecified)
			t.setState(c, ConnTCP)
		case option == nil:
			c.ServerOption = OptionAbsent
		default:
			c.ServerOption = OptionPresent
			if c.State == ConnSYN {
				t.setState(c, ConnOptions)
			}
		}
	}
	t.conns.used.touch(&c.used)
	e := t.begin(TCPOption, name, src, dst)
	e.Conn, e.Dir = c, ServerToClient
	e.Message, e.Bytes = optionInSYNACK, option
	if option == nil {
		e.Message = optionNotInSYNACK
		e.Text = "without the option: the connection uses TCP"
	}
	if repeated {
		e.Text = "repeated"
	}
	t.send(e)
}

// segment takes a segment with payload.
func (t *Tracker) segment(c *Conn, st *stream, s *tcpSegment, src, dst netip.AddrPort) {
	if !st.known || st.lost {
		if !looksLikeCLC(s.payload) || len(s.payload) == 0 {
			return
		}
		if st.lost && int32(s.seq-st.next) < 0 {
			return // a repetition of lost bytes
		}
		st.known, st.lost, st.next = true, false, s.seq
		st.data, st.parsed = nil, 0
	}
	ahead := int32(s.seq - st.next)
	switch {
	case ahead > maxStream:
		return // not of the handshake, or the capture has lost most of it
	case ahead > 0:
		t.hold(st, s.seq, s.payload)
		return
	}
	t.compare(c, st, s, src, dst)
	if end := int32(s.seq + uint32(len(s.payload)) - st.next); end > 0 {
		t.grow(st, s.payload[len(s.payload)-int(end):])
		st.drain()
	}
	if missing := s.payloadLen - len(s.payload); missing > 0 {
		// The captured bytes count. The bytes that were cut off may come again, and mostly do not.
		if int32(s.seq+uint32(s.payloadLen)-st.next) > 0 {
			t.parse(c, st, src, dst)
			if !st.over {
				t.cutOff(c, st, s, src, dst)
			}
			return
		}
	}
	t.parse(c, st, src, dst)
}

// hold keeps a segment that is ahead, if there is room.
func (t *Tracker) hold(st *stream, seq uint32, payload []byte) {
	if len(st.held) >= maxHeldSegments || st.heldN+len(payload) > maxHeld || len(payload) == 0 {
		return
	}
	for _, h := range st.held {
		if h.seq == seq && len(h.data) >= len(payload) {
			return
		}
	}
	st.held = append(st.held, heldSegment{seq, bytes.Clone(payload)})
	st.heldN += len(payload)
}

// drain appends held segments for which the bytes before them are there now.
func (st *stream) drain() {
	for again := true; again; {
		again = false
		for i, h := range st.held {
			if int32(h.seq-st.next) > 0 {
				continue
			}
			if end := int32(h.seq + uint32(len(h.data)) - st.next); end > 0 {
				b := h.data[len(h.data)-int(end):]
				st.data = append(st.data, b...)
				st.next += uint32(len(b))
			}
			st.heldN -= len(h.data)
			st.held = append(st.held[:i], st.held[i+1:]...)
			again = true
			break
		}
	}
}

// grow appends bytes at the end of the stream.
func (t *Tracker) grow(st *stream, b []byte) {
	if len(st.data) > maxStream {
		st.data = append([]byte(nil), st.data[st.parsed:]...)
		st.parsed = 0
	}
	st.data = append(st.data, b...)
	st.next += uint32(len(b))
}

// compare checks that the bytes that a segment repeats are the same as before.
func (t *Tracker) compare(c *Conn, st *stream, s *tcpSegment, src, dst netip.AddrPort) {
	back := int(-int32(s.seq - st.next)) // bytes before next
	if back <= 0 || st.differ {
		return
	}
	repeated := s.payload[:min(back, len(s.payload))]
	from := len(st.data) - back
	if from < 0 { // before the remembered bytes, such as a keepalive probe
		if -from >= len(repeated) {
			return
		}
		repeated, from = repeated[-from:], 0
	}
	if bytes.Equal(repeated, st.data[from:from+len(repeated)]) {
		return
	}
	st.differ = true
	e := t.begin(Note, "TCP overlap", src, dst)
	e.Conn, e.Dir = c, c.dir(src)
	e.Text = "the segment repeats sequence numbers with other bytes; the first were taken"
	e.problem(Violation, "a TCP segment repeats sequence numbers with other bytes", "RFC 9293")
	t.send(e)
}

// cutOff reports a segment of which the capture lacks the end, in the middle of a message.
func (t *Tracker) cutOff(c *Conn, st *stream, s *tcpSegment, src, dst netip.AddrPort) {
	t.count.Truncated++
	e := t.begin(Note, "truncated", src, dst)
	e.Conn, e.Dir = c, c.dir(src)
	e.Text = "the capture does not have the whole segment"
	e.problem(Truncated, "the capture does not have the whole TCP segment", "")
	st.lost = true
	st.next = s.seq + uint32(s.payloadLen)
	st.data, st.parsed = nil, 0
	t.send(e)
}

// parse takes the messages off the stream that are complete.
func (t *Tracker) parse(c *Conn, st *stream, src, dst netip.AddrPort) {
	for !st.over {
		b := st.data[st.parsed:]
		if len(b) == 0 {
			return
		}
		if !looksLikeCLC(b) {
			t.notCLC(c, st, src, dst)
			return
		}
		if len(b) < clc.HeaderLen {
			return
		}
		h, err := clc.ParseHeader(b)
		if err != nil {
			t.malformedCLC(c, st, b, "CLC message", err, src, dst)
			return
		}
		if len(b) < h.Len {
			return
		}
		m, err := clc.Parse(b[:h.Len])
		st.parsed += h.Len
		switch {
		case err == nil:
			t.clc(c, m, b[:h.Len], src, dst)
		case errors.Is(err, wire.ErrReservedEnum):
			e := t.begin(CLC, h.Type.String(), src, dst)
			e.Conn, e.Dir, e.Bytes = c, c.dir(src), b[:h.Len]
			e.problem(Violation, err.Error(), "RFC 7609 p.135")
			t.send(e)
		default:
			t.malformedCLC(c, st, b[:h.Len], h.Type.String(), err, src, dst)
		}
	}
}

// malformedCLC reports a message that cannot be decoded. It ends the handshake, and with it the TCP
// connection.
func (t *Tracker) malformedCLC(c *Conn, st *stream, b []byte, name string, err error, src,
	dst netip.AddrPort) {
	e := t.begin(CLC, name, src, dst)
	e.Conn, e.Dir, e.Bytes = c, c.dir(src), b
	e.problem(Malformed, err.Error(), "RFC 7609 p.134")
	st.end()
	if !c.done() {
		t.setState(c, ConnFailed)
	}
	t.send(e)
}

// end drops all that is remembered of the stream.
func (st *stream) end() {
	*st = stream{over: true, fin: st.fin, known: st.known, next: st.next, acked: st.acked, ack: st.ack}
}

// done reports whether the handshake is over.
func (c *Conn) done() bool {
	switch c.State {
	case ConnSYN, ConnOptions, ConnProposed, ConnAccepted:
		return false
	}
	return true
}
