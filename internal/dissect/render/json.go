package render

import (
	"net/netip"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/gosmc/smc/internal/dissect"
)

// AppendJSON appends the event as one JSON object, without a newline, to b and returns the extended
// slice. With a newline after each, jq can read a file of them:
//
//	jq 'select(.fields["smc.clc_msg"] == 4) | .text["smc.peer.diag.info"]'
//	jq 'select(.problems) | {packet, info, problems}'
//	jq -s 'map(select(.family == "CDC" and .conn == 1) | .progress.window) | min'
//
// The object is stable: keys do not change their meaning or type, and new ones may come.
//
//	packet    number of the packet, from 1
//	source    index of the input, from 0; only if it is not 0
//	time      RFC 3339, UTC, with nanoseconds
//	family    "CLC", "LLC", "CDC", "RoCE", "TCP option", "TCP", "note"
//	name      of the message, such as "Proposal"
//	src, dst  address and port
//	dir       "client > server" or "server > client"; not there if it is not known
//	conn      number of the connection, and mode its mode: "SMC-Rv2.1", "TCP"
//	link      number of the link, group the number of the link group; the tracker's numbers, from 1
//	info      the same in words, as in the line
//	fields    every field of the message by its key, reserved bytes if they are not zero
//	text      by the same key, the meaning of the value, where there is more to say than the value
//	roce      from a RoCEv2 packet: opcode, qpn, psn, payload (bytes), ack_req, icrc ("good",
//	          "bad", "not checkable"), retransmission, gap (packets missing before; -1: numbers begin anew)
//	write     of a part of an RDMA WRITE: start, bytes, and if known va, length, offset, total
//	progress  of a CDC message: repeated, produced, consumed, window, peer_room (bytes; not there if not
//	          known), seq_gap, failover, moved
//	problems  list of kind, text and rule; not there if there are none
//
// Keys of fields are the names of Wireshark's display filters where it has one. Numbers are numbers, bits
// true or false, addresses and names strings; a number of 8 bytes is a string "0x" with 16 digits,
// because readers of JSON lose bits above 1<<53. A field that can be in a message more than once is
// always a list, and so is its text. Payloads are not in it.
func AppendJSON(b []byte, e *dissect.Event) []byte {
	o := object{b: append(b, '{')}
	if e.Packet.Number > 0 {
		o.uint("packet", uint64(e.Packet.Number))
		if e.Packet.Source > 0 {
			o.uint("source", uint64(e.Packet.Source))
		}
		o.time("time", e.Packet.Time)
	}
	o.string("family", e.Family.String())
	o.string("name", e.Name)
	o.addr("src", e.Src)
	o.addr("dst", e.Dst)
	if e.Dir != dissect.DirUnknown {
		o.string("dir", e.Dir.String())
	}
	group := (*dissect.LinkGroup)(nil)
	if e.Conn != nil {
		o.uint("conn", uint64(e.Conn.ID))
		o.string("mode", e.Conn.Mode)
		group = e.Conn.Group
	}
	if e.Link != nil {
		o.uint("link", uint64(e.Link.ID))
		group = e.Link.Group
	}
	if group != nil {
		o.uint("group", uint64(group.ID))
	}
	o.key("info")
	start := len(o.b)
	o.b = AppendContent(o.b, e)
	o.b = quoteFrom(o.b, start)
	o.fields(Fields(e))
	if e.RoCE != nil {
		o.transport(e.RoCE)
	}
	if e.Write != nil {
		o.write(e.Write)
	}
	if e.Progress != nil {
		o.progress(e.Progress)
	}
	if len(e.Problems) > 0 {
		o.problems(e.Problems)
	}
	return append(o.b, '}')
}

// An object is a JSON object that is being written.
type object struct {
	b []byte
}

// key starts the next member.
func (o *object) key(k string) {
	if last := o.b[len(o.b)-1]; last != '{' && last != '[' {
		o.b = append(o.b, ',')
	}
	o.b = appendQuoted(o.b, k)
	o.b = append(o.b, ':')
}

func (o *object) string(k, v string) {
	o.key(k)
	o.b = appendQuoted(o.b, v)
}

func (o *object) uint(k string, v uint64) {
	o.key(k)
	o.b = strconv.AppendUint(o.b, v, 10)
}

func (o *object) int(k string, v int) {
	o.key(k)
	o.b = strconv.AppendInt(o.b, int64(v), 10)
}

func (o *object) bool(k string, v bool) {
	o.key(k)
	o.b = strconv.AppendBool(o.b, v)
}

// wide writes a number of 64 bits.
func (o *object) wide(k string, v uint64) {
	o.key(k)
	o.b = append(o.b, `"0x`...)
	o.b = appendDigits(o.b, v, 16)
	o.b = append(o.b, '"')
}

func (o *object) time(k string, t time.Time) {
	o.key(k)
	o.b = append(o.b, '"')
	o.b = t.UTC().AppendFormat(o.b, "2006-01-02T15:04:05.000000000Z")
	o.b = append(o.b, '"')
}

func (o *object) addr(k string, a netip.AddrPort) {
	if !a.Addr().IsValid() {
		return
	}
	o.key(k)
	o.b = append(o.b, '"')
	o.b = a.AppendTo(o.b) // zones, which could have other characters, are not in packets
	o.b = append(o.b, '"')
}

// fields writes the members "fields" and "text".
func (o *object) fields(fields []Field) {
	if len(fields) == 0 {
		return
	}
	o.key("fields")
	o.b = append(o.b, '{')
	o.members(fields, func(f *Field) bool { return true }, func(f *Field) { o.value(f.Value) })
	o.b = append(o.b, '}')
	hasText := false
	for i := range fields {
		hasText = hasText || fields[i].words
	}
	if hasText {
		o.key("text")
		o.b = append(o.b, '{')
		o.members(fields, func(f *Field) bool { return f.words }, func(f *Field) { o.b = appendQuoted(o.b, f.Text) })
		o.b = append(o.b, '}')
	}
}

// members writes a member for each key of the fields that are wanted. Lists are put together where the
// first field of a key is; if one element of a list is wanted, all are, so that places in lists
// correspond.
func (o *object) members(fields []Field, wanted func(*Field) bool, write func(*Field)) {
	skip := func(f *Field) bool { return f.Value == nil || f.Reserved && isZeroText(f.Text) }
	for i := range fields {
		f := &fields[i]
		if skip(f) {
			continue
		}
		if !f.List {
			if wanted(f) {
				o.key(f.Key)
				write(f)
			}
			continue
		}
		if isListed(fields[:i], f.Key, skip) {
			continue
		}
		found := false
		for j := range fields[i:] {
			other := &fields[i+j]
			found = found || other.Key == f.Key && !skip(other) && wanted(other)
		}
		if !found {
			continue
		}
		o.key(f.Key)
		o.b = append(o.b, '[')
		for j := range fields[i:] {
			other := &fields[i+j]
			if other.Key != f.Key || skip(other) {
				continue
			}
			if o.b[len(o.b)-1] != '[' {
				o.b = append(o.b, ',')
			}
			write(other)
		}
		o.b = append(o.b, ']')
	}
}

// isListed reports whether one of the fields has begun the list of a key.
func isListed(fields []Field, key string, skip func(*Field) bool) bool {
	for i := range fields {
		if f := &fields[i]; f.Key == key && f.List && !skip(f) {
			return true
		}
	}
	return false
}

// value writes a Field's value.
func (o *object) value(v any) {
	switch v := v.(type) {
	case bool:
		o.b = strconv.AppendBool(o.b, v)
	case uint64:
		o.b = strconv.AppendUint(o.b, v, 10)
	case string:
		o.b = appendQuoted(o.b, v)
	default:
		o.b = append(o.b, "null"...)
	}
}

func (o *object) transport(t *dissect.Transport) {
	o.key("roce")
	o.b = append(o.b, '{')
	if p := t.Packet; p != nil {
		o.string("opcode", p.Opcode.String())
		o.uint("qpn", uint64(p.DestQPN))
		o.uint("psn", uint64(p.PSN))
		o.bool("ack_req", p.AckReq)
	}
	o.int("payload", t.PayloadLen)
	o.string("icrc", t.ICRC.String())
	o.bool("retransmission", t.Retransmission)
	o.int("gap", t.Gap)
	o.b = append(o.b, '}')
}

func (o *object) write(w *dissect.Write) {
	o.key("write")
	o.b = append(o.b, '{')
	o.bool("start", w.Start)
	o.int("bytes", w.Bytes)
	if w.Known {
		o.wide("va", w.VA)
		o.uint("length", uint64(w.Length))
	}
	if w.Ring != nil {
		o.uint("offset", uint64(w.Offset))
		o.uint("total", w.Total)
	}
	o.b = append(o.b, '}')
}

func (o *object) progress(p *dissect.Progress) {
	o.key("progress")
	o.b = append(o.b, '{')
	o.bool("repeated", p.Repeated)
	for _, m := range [...]struct {
		key   string
		bytes int
	}{{"produced", p.Produced}, {"consumed", p.Consumed}, {"window", p.Window}, {"peer_room", p.PeerRoom}} {
		if m.bytes >= 0 {
			o.int(m.key, m.bytes)
		}
	}
	o.int("seq_gap", p.SeqGap)
	o.bool("failover", p.Failover)
	o.bool("moved", p.Moved)
	o.b = append(o.b, '}')
}

func (o *object) problems(problems []dissect.Problem) {
	o.key("problems")
	o.b = append(o.b, '[')
	for i, p := range problems {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = append(o.b, '{')
		o.string("kind", p.Kind.String())
		o.string("text", p.Text)
		if p.Rule != "" {
			o.string("rule", p.Rule)
		}
		o.b = append(o.b, '}')
	}
	o.b = append(o.b, ']')
}

// appendQuoted appends s as a JSON string.
func appendQuoted(b []byte, s string) []byte {
	start := len(b)
	return quoteFrom(append(b, s...), start)
}

// quoteFrom makes a JSON string of the bytes of b from start on.
func quoteFrom(b []byte, start int) []byte {
	plain := true
	for _, c := range b[start:] {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			plain = false
			break
		}
	}
	if plain {
		b = append(b, '"')
		copy(b[start+1:], b[start:])
		b[start] = '"'
		return append(b, '"')
	}
	s := string(b[start:])
	b = append(b[:start], '"')
	for _, r := range s { // bytes that are no UTF-8 become U+FFFD
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			b = append(b, `\u00`...)
			b = appendDigits(b, uint64(r), 2)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
