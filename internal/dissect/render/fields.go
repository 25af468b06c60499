package render

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"net/netip"
	"strconv"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// A Field is one field of a message, in the order of its bytes.
//
// Every byte of a message belongs to one field, or, where bits have meanings of their own, to
// fields with Masks that do not overlap. Fields with Parent come on top of that: such a field is a
// whole byte, and the next fields are its bits.
type Field struct {
	// Name is the field's name in the layout table of the message, such as "alert token".
	Name string
	// Key is the name of Wireshark's filter for it, such as "smc.accept.eid", or if it has
	// none a name in the same style, such as "smc.v21.max_conns". Messages use the same key for several
	// fields if the field repeats; see List.
	Key         string
	Offset, Len int    // bytes, from the start of Event.Bytes
	Mask        uint64 // which bits of these bytes, read as one big-endian integer; 0 means all
	// Value is a bool for one bit, a uint64 for a number, and a string for everything else: addresses,
	// names, numbers of 8 bytes ("0x" and 16 digits, since JSON's readers lose bits above 1<<53),
	// and opaque or reserved bytes (digits without "0x"). It is nil for a payload.
	Value any
	// Text is the value in words, for people: "Proposal", "65536 bytes", "0x11 (17)".
	Text string

	Parent   bool // the whole of a byte; the fields after it are its bits
	Reserved bool // without meaning: reserved, padding, or of unknown meaning
	List     bool // may be in a message more than once

	code  bool // Text explains the number in Value
	words bool // Text says more than Value does
}

// String returns the value as people write it: the Text, and before it the number that it explains.
func (f *Field) String() string {
	if n, ok := f.Value.(uint64); ok && f.code {
		return strconv.FormatUint(n, 10) + " (" + f.Text + ")"
	}
	return f.Text
}

// Fields returns all fields of the event's message, in the order of its bytes. It reads the bytes,
// not Message, and therefore works for malformed and truncated messages too. Bytes that cannot be
// told apart are one field named "unknown". The last field of a message that ends early has "(cut
// off)" in its name. An event that was made by hand from a Message is encoded first.
//
// The fields do not refer to the event's memory. There are none for the families TCP and Note.
func Fields(e *dissect.Event) []Field {
	b := e.Bytes
	if b == nil {
		b = encode(e.Message)
	}
	w := walker{b: b, reservedKey: "smc.reserved", fields: make([]Field, 0, manyFields)}
	switch e.Family {
	case dissect.TCPOption:
		w.option()
	case dissect.CLC:
		w.clc()
	case dissect.LLC:
		w.llc()
	case dissect.CDC:
		if isSMCD(e.Message) {
			w.smcd()
		} else {
			w.cdc()
		}
	case dissect.RoCE:
		w.roce(e.RoCE, e.Bytes != nil)
	case dissect.TCP, dissect.Note:
		return nil
	}
	w.unknown()
	for i := range w.fields {
		w.fields[i].List = listKeys[w.fields[i].Key]
	}
	return w.fields
}

// listKeys are the keys that a message can have more than once.
var listKeys = map[string]bool{
	"smc.reserved": true, "infiniband.reserved": true,

	"smc.proposal.ipv6.prefix.value": true, "smc.proposal.ipv6.prefix.length": true,
	"smc.proposal.ism.gid": true, "smc.proposal.smc.chid": true, keyProposalPart2: true,
	"smc.proposal.eid": true, "smc.confirm.gid.list.entry": true,

	"smc.add.link.rmb.RTok.Rkey1": true, "smc.add.link.rmb.RTok.Rkey2": true, "smc.add.link.rmb.RTok.virt": true,
	"smc.request.add.link.gid.list.entry": true,
	"smc.confirm.rkey.new.rkey":           true, "smc.confirm.rkey.new.virt": true, "smc.confirm.rkey.link.number": true,
	"smc.delete.rkey.deleted": true,
}

// manyFields is more fields than most messages have.
const manyFields = 40

// encode returns the bytes of a message that was made by hand, nil if there are none.
func encode(message any) []byte {
	switch m := message.(type) {
	case dissect.Option:
		if m.Present {
			return clc.AppendOption(nil)
		}
	case clc.Message:
		if m.Validate() == nil {
			return m.Append(nil)
		}
	case llc.Message:
		if m.Validate() == nil {
			return m.Append(nil)
		}
	case cdc.Message:
		return m.Append(nil)
	case *cdc.Message:
		return m.Append(nil)
	case cdc.Header:
		return m.Append(nil)
	case *cdc.Header:
		return m.Append(nil)
	case *roce.Packet:
		if m.Opcode.Known() {
			return m.Append(nil)
		}
	}
	return nil
}

// isSMCD reports whether a message is the header of a DMB element.
func isSMCD(message any) bool {
	switch message.(type) {
	case cdc.Header, *cdc.Header:
		return true
	}
	return false
}

// A walker goes through the bytes of a message from front to back, and makes fields of them. When
// the bytes end within a field, that field is cut off, and all later ones are not made: layouts
// need not ask. The number of fields is bounded by the bytes.
type walker struct {
	b      []byte
	at     int
	fields []Field
	// reservedKey is the key of reserved bytes and bits.
	reservedKey string
}

// take returns the next n bytes, n at least 1, and makes a field of them which the caller completes.
// It returns nil if the bytes end before.
func (w *walker) take(n int, name, key string) (*Field, []byte) {
	if n > len(w.b)-w.at {
		w.rest(name+" (cut off)", key)
		return nil, nil
	}
	b := w.b[w.at : w.at+n]
	w.fields = append(w.fields, Field{Name: name, Key: key, Offset: w.at, Len: n})
	w.at += n
	return &w.fields[len(w.fields)-1], b
}

// rest makes one opaque field of the bytes that are left, if there are any.
func (w *walker) rest(name, key string) {
	if n := len(w.b) - w.at; n > 0 {
		f, b := w.take(n, name, key)
		f.setHex(b)
		f.Reserved = true
	}
}

// unknown makes a field of the bytes that are left: their meaning is not known.
func (w *walker) unknown() {
	w.rest("unknown", "smc.unknown")
}

func (f *Field) setHex(b []byte) {
	s := hex.EncodeToString(b)
	f.Value, f.Text = s, s
}

// reserved makes a field of n bytes that are reserved.
func (w *walker) reserved(n int) {
	if n <= 0 || w.at >= len(w.b) {
		return
	}
	if f, b := w.take(n, "reserved", w.reservedKey); f != nil {
		f.setHex(b)
		f.Reserved = true
	}
}

// skipTo goes on to the byte at offset, past bytes that mean nothing. It reports false if that is
// behind, or there is no such byte.
func (w *walker) skipTo(offset int) bool {
	if offset < w.at || offset >= len(w.b) {
		return false
	}
	w.reserved(offset - w.at)
	return true
}

// opaque makes a field of n bytes without structure.
func (w *walker) opaque(n int, name, key string) {
	if f, b := w.take(n, name, key); f != nil {
		f.setHex(b)
	}
}

// uint makes a field of a big-endian number of n bytes, at most 8, and returns it. format makes the
// words; nil means decimal digits.
func (w *walker) uint(n int, name, key string, format func(uint64) string) uint64 {
	f, b := w.take(n, name, key)
	if f == nil {
		return 0
	}
	v := uintOf(b)
	f.setUint(v, format)
	return v
}

// code is uint for a number that stands for something, of which format gives the name.
func (w *walker) code(n int, name, key string, format func(uint64) string) uint64 {
	v := w.uint(n, name, key, format)
	if f := w.last(); f != nil && f.Name == name {
		f.code, f.words = true, true
	}
	return v
}

// last returns the field that was made last, nil if there is none.
func (w *walker) last() *Field {
	if len(w.fields) == 0 {
		return nil
	}
	return &w.fields[len(w.fields)-1]
}

func (f *Field) setUint(v uint64, format func(uint64) string) {
	f.Value = v
	if f.Len == 8 {
		f.Value = "0x" + string(appendDigits(nil, v, 16))
	}
	if format == nil {
		format = decimal
	}
	f.Text = format(v)
}

// uintOf returns the big-endian number in b, of at most 8 bytes.
func uintOf(b []byte) uint64 {
	var v uint64
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v
}

// A bit is a part of a byte.
type bit struct {
	mask      byte
	name, key string
	format    func(uint64) string // words for a number of several bits; nil means decimal digits
	code      bool                // see Field.code
}

// bits makes a field for each part of a byte, one for the bits that no part has, and, if key is not
// empty, one before them for the whole. It returns the byte.
func (w *walker) bits(name, key string, parts ...bit) byte {
	if w.at >= len(w.b) {
		return 0
	}
	b, offset := w.b[w.at], w.at
	w.at++
	push := func(f Field) {
		f.Offset, f.Len = offset, 1
		w.fields = append(w.fields, f)
	}
	if key != "" {
		push(Field{Name: name, Key: key, Value: uint64(b), Text: "0x" + hexByte(b), Parent: true})
	}
	left := byte(0xff)
	for _, p := range parts {
		left &^= p.mask
		v := uint64(b&p.mask) >> bits.TrailingZeros8(p.mask)
		f := Field{Name: p.name, Key: p.key, Mask: uint64(p.mask)}
		switch {
		case bits.OnesCount8(p.mask) == 1 && p.format == nil:
			f.Value, f.Text = v != 0, "no"
			if v != 0 {
				f.Text = "yes"
			}
		case p.format == nil:
			f.Value, f.Text = v, decimal(v)
		default:
			f.Value, f.Text, f.code, f.words = v, p.format(v), p.code, p.code
		}
		push(f)
	}
	if left != 0 {
		v := hexByte(b & left)
		push(Field{Name: "reserved", Key: w.reservedKey, Mask: uint64(left), Value: v, Text: v,
			Reserved: true})
	}
	return b
}

// hexByte returns two digits.
func hexByte(b byte) string { return string(appendDigits(nil, uint64(b), 2)) }

// decimal, hexadecimal and both write a number.
func decimal(v uint64) string     { return strconv.FormatUint(v, 10) }
func hexadecimal(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }

// both returns "0xe4 (228)", for numbers that Linux tools show in either way.
func both(v uint64) string {
	if v < 10 {
		return decimal(v)
	}
	return hexadecimal(v) + " (" + decimal(v) + ")"
}

// as makes a format of a type's String method.
func as[T ~uint8 | ~uint16 | ~uint32 | ~uint64](format func(T) string) func(uint64) string {
	return func(v uint64) string { return format(T(v)) }
}

func (w *walker) gid(name, key string) {
	f, b := w.take(16, name, key)
	if f == nil {
		return
	}
	f.Value = netip.AddrFrom16([16]byte(b)).String()
	f.Text = wire.GID(b).String()
	f.words = f.Text != f.Value
}

func (w *walker) mac(name, key string) {
	if f, b := w.take(6, name, key); f != nil {
		f.Text = wire.MAC(b).String()
		f.Value = f.Text
	}
}

func (w *walker) peerID(key string) {
	if f, b := w.take(8, "peer ID", key); f != nil {
		f.setUint(binary.BigEndian.Uint64(b), func(uint64) string { return wire.PeerID(b).String() })
		f.words = true
	}
}

// text makes a field of n bytes of ASCII, padded with blanks or zeros.
func (w *walker) text(n int, name, key string) {
	f, b := w.take(n, name, key)
	if f == nil {
		return
	}
	f.Value = printable(b)
	f.Text = strconv.Quote(f.Value.(string))
	if f.Value == "" {
		f.Text = "none"
	}
}

// printable returns text without its padding. Bytes that could do harm in a terminal are question
// marks.
func printable(b []byte) string {
	end := len(b)
	for end > 0 && (b[end-1] == ' ' || b[end-1] == 0) {
		end--
	}
	s := make([]byte, end)
	for i, c := range b[:end] {
		if c < ' ' || c > '~' {
			c = '?'
		}
		s[i] = c
	}
	return string(s)
}
