package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"time"

	"github.com/gosmc/smc/internal/frame"
)

// An ngReader reads pcapng files.
//
//	offset  size  field of a block, pcapng §3.1
//	     0     4  type
//	     4     4  length         of the whole block, a multiple of 4
//	     8     -  body           padded to a multiple of 4
//	    -4     4  length         again
//
//	offset  size  field of the body of a section header, pcapng §4.1
//	     0     4  magic          1a2b3c4d in the byte order of all that follows up to the next section
//	     4     4  version        major, minor: 1.0
//	     8     8  section length not used here: it says nothing that the blocks do not
//	    16     -  options
//
//	offset  size  field of the body of an interface description, pcapng §4.2
//	     0     2  link type
//	     2     2  reserved
//	     4     4  snapshot length, 0 means no limit
//	     8     -  options
//
//	offset  size  field of the body of an enhanced packet, pcapng §4.3
//	     0     4  interface      index of the description in the section; in the obsolete packet
//	                             (pcapng appendix A) 2 bytes, before 2 that count drops
//	     4     4  time, high     in units of the interface
//	     8     4  time, low
//	    12     4  captured length
//	    16     4  original length
//	    20     -  data, padded; options
//
// The body of a simple packet, pcapng §4.4, is the original length (4) and the data: the packet is
// of interface 0, has no time, and was cut at that interface's snapshot length.
//
// Blocks of other types are skipped. Where a block cannot be, the reader looks for the next place
// that has a known type between two lengths that agree.
type ngReader struct {
	*input
	swap       bool // big-endian
	interfaces []ngInterface
}

// Types of blocks, pcapng §10.1. Those that are skipped are named to be recognized after a fault.
const (
	blockInterface  = 1
	blockPacket     = 2 // obsolete
	blockSimple     = 3
	blockNames      = 4
	blockStatistics = 5
	blockEnhanced   = 6
	blockJournal    = 9
	blockSecrets    = 10
	blockCustom     = 0x00000bad
	blockCustomKeep = 0x40000bad

	ngByteOrder   = 0x1a2b3c4d
	blockHeader   = 8
	blockOverhead = 12 // with the second length
	minSection    = 28
	enhancedFixed = 20 // of the body of an enhanced packet before the data
)

func newNgReader(in *input) (Source, error) {
	b := in.peek(probeLen)
	if len(b) < probeLen {
		return nil, in.ended("a section header", len(b), minSection)
	}
	r := &ngReader{input: in}
	if r.swap = binary.BigEndian.Uint32(b[8:]) == ngByteOrder; !r.swap &&
		binary.LittleEndian.Uint32(b[8:]) != ngByteOrder {
		return nil, in.fault(0, fmt.Errorf("%w: it begins like pcapng and has % x for the byte order",
			ErrFormat, b[8:]))
	}
	return r, nil
}

func (r *ngReader) uint32(b []byte) uint32 {
	v := binary.LittleEndian.Uint32(b)
	if r.swap {
		v = bits.ReverseBytes32(v)
	}
	return v
}

func (r *ngReader) uint16(b []byte) uint16 {
	v := binary.LittleEndian.Uint16(b)
	if r.swap {
		v = bits.ReverseBytes16(v)
	}
	return v
}

// Next implements [Source].
func (r *ngReader) Next() (*Packet, error) {
	for !r.done && !r.closed.Load() {
		start := r.offset
		kind, body, err := r.block()
		switch {
		case err != nil:
			return nil, err
		case body == nil: // skipped
			continue
		}
		var p *Packet
		switch kind {
		case magicNg:
			r.interfaces = r.interfaces[:0]
		case blockInterface:
			err = r.addInterface(body)
		case blockEnhanced, blockPacket:
			p, err = r.enhanced(kind, body)
		case blockSimple:
			p, err = r.simple(body)
		}
		if err != nil {
			return nil, r.fault(start, err)
		}
		if p != nil {
			p.Number++
			return p, nil
		}
	}
	return nil, io.EOF
}

// block consumes a block and returns its type and body. The body is nil if the block was only
// skipped. It returns the errors of Next.
func (r *ngReader) block() (kind uint32, body []byte, err error) {
	h := r.peek(blockHeader)
	if len(h) < blockHeader {
		return 0, nil, r.ended("the header of a block", len(h), blockHeader)
	}
	kind = r.uint32(h)
	if kind == magicNg {
		return r.section()
	}
	length := r.uint32(h[4:])
	switch {
	case length < blockOverhead || length%4 != 0 || length > maxBlock:
		return 0, nil, r.resync(fmt.Errorf("%w: a block of type %#x and %d bytes", ErrCorrupt, kind, length))
	case length > maxWindow:
		return 0, nil, r.skipBlock(kind, length)
	}
	b := r.peek(int(length))
	if len(b) < int(length) {
		return 0, nil, r.tail(len(b), int(length))
	}
	if again := r.uint32(b[length-4:]); again != length {
		return 0, nil, r.resync(fmt.Errorf("%w: a block of type %#x has %d bytes at its beginning and %d at its end",
			ErrCorrupt, kind, length, again))
	}
	r.advance(int(length))
	return kind, b[blockHeader : length-4], nil
}

// section consumes a section header, which sets the byte order. The file may have several,
// each with its own.
func (r *ngReader) section() (kind uint32, body []byte, err error) {
	b := r.peek(probeLen)
	if len(b) < probeLen {
		return 0, nil, r.ended("a section header", len(b), minSection)
	}
	swap := binary.BigEndian.Uint32(b[8:]) == ngByteOrder
	if !swap && binary.LittleEndian.Uint32(b[8:]) != ngByteOrder {
		return 0, nil, r.resync(fmt.Errorf("%w: a section with % x for the byte order", ErrCorrupt, b[8:]))
	}
	r.swap = swap
	length := r.uint32(b[4:])
	if length < minSection || length%4 != 0 || length > maxWindow {
		return 0, nil, r.resync(fmt.Errorf("%w: a section header of %d bytes", ErrCorrupt, length))
	}
	if b = r.peek(int(length)); len(b) < int(length) {
		return 0, nil, r.tail(len(b), int(length))
	}
	if again := r.uint32(b[length-4:]); again != length {
		return 0, nil, r.resync(fmt.Errorf("%w: a section header has %d bytes at its beginning and %d at its end",
			ErrCorrupt, length, again))
	}
	major := r.uint16(b[12:])
	r.advance(int(length))
	if major != 1 {
		return 0, nil, r.fault(r.offset-int64(length),
			fmt.Errorf("%w: pcapng of version %d, and 1 is read", ErrCorrupt, major))
	}
	return magicNg, b[blockHeader : length-4], nil
}

// skipBlock consumes a block that is too long to be seen as a whole.
func (r *ngReader) skipBlock(kind, length uint32) error {
	start := r.offset
	if b := r.peek(maxWindow); len(b) < maxWindow { // it does not end in the file
		return r.tail(len(b), int(length))
	}
	if skipped := r.skip(int64(length) - 4); skipped < int64(length)-4 {
		return r.ended("a block", int(skipped), int(length))
	}
	b := r.peek(4)
	if len(b) < 4 {
		return r.ended("a block", int(length)-4+len(b), int(length))
	}
	if again := r.uint32(b); again != length {
		return r.resyncFrom(start, fmt.Errorf("%w: a block of type %#x has %d bytes at its beginning and %d at its end",
			ErrCorrupt, kind, length, again))
	}
	r.advance(4)
	if kind == blockEnhanced || kind == blockPacket || kind == blockSimple {
		return r.fault(start, fmt.Errorf("%w: a packet in a block of %d bytes, and at most %d are read",
			ErrCorrupt, length, MaxPacket))
	}
	return nil
}

// tail is the result of Next where a block goes on past the end of the file: it was cut there, or
// the length is wrong.
func (r *ngReader) tail(have, need int) error {
	start := r.offset
	if r.err != io.EOF || r.closed.Load() {
		return r.ended("a block", have, need)
	}
	if r.advance(1); r.findBlock() {
		return r.fault(start, fmt.Errorf("%w: a block past the end of the file; %d bytes skipped", ErrCorrupt,
			r.offset-start))
	}
	r.done = true
	return r.fault(start, fmt.Errorf("%w: %d of %d bytes of a block are there", ErrTruncated, have, need))
}

// resync goes from a block that cannot be to the next that can, and returns the error that says both.
func (r *ngReader) resync(err error) error {
	start := r.offset
	r.advance(1)
	return r.resyncFrom(start, err)
}

func (r *ngReader) resyncFrom(start int64, err error) error {
	if r.findBlock() {
		return r.fault(start, fmt.Errorf("%w; %d bytes skipped", err, r.offset-start))
	}
	r.done = true
	return r.fault(start, fmt.Errorf("%w; no block found in the %d bytes that follow", err, r.offset-start))
}

// findBlock consumes the bytes before the next block. It reports false at the end.
func (r *ngReader) findBlock() bool {
	for {
		r.peek(blockOverhead)
		b := r.buf[r.start:r.end]
		if len(b) < blockOverhead {
			r.advance(len(b))
			return false
		}
		candidate := -1
		for i := range len(b) - blockOverhead + 1 {
			if r.candidate(b[i:]) > 0 {
				candidate = i
				break
			}
		}
		if candidate < 0 {
			r.advance(len(b) - blockOverhead + 1)
			continue
		}
		r.advance(candidate)
		length := r.candidate(b[candidate:])
		whole := r.peek(length)
		if len(whole) == length && string(whole[4:8]) == string(whole[length-4:]) {
			return true
		}
		r.advance(1)
	}
}

// candidate returns the length that a block at the beginning of b would have, 0 if there can be none.
// b has at least blockOverhead bytes.
func (r *ngReader) candidate(b []byte) int {
	length := r.uint32(b[4:])
	switch r.uint32(b) {
	case magicNg:
		if binary.LittleEndian.Uint32(b[8:]) == ngByteOrder {
			length = binary.LittleEndian.Uint32(b[4:])
		} else if binary.BigEndian.Uint32(b[8:]) == ngByteOrder {
			length = binary.BigEndian.Uint32(b[4:])
		} else {
			return 0
		}
	case blockInterface, blockPacket, blockSimple, blockNames, blockStatistics, blockEnhanced,
		blockJournal, blockSecrets, blockCustom, blockCustomKeep:
	default:
		return 0
	}
	if length < blockOverhead || length%4 != 0 || length > maxWindow {
		return 0
	}
	return int(length)
}

// An ngInterface holds the parts of an interface's description that its packets need.
type ngInterface struct {
	link    frame.LinkType
	known   bool   // false for a description that could not be read
	binary  bool   // the unit of time is a negative power of 2, not of 10
	power   uint8  // its exponent, at most 127
	snapLen uint32 // 0 means no limit
	offset  int64  // seconds to add to times
}

// Options of an interface, pcapng §4.2.
const (
	optionEnd        = 0
	optionResolution = 9
	optionOffset     = 14
)

// addInterface adds an interface even if its description is faulty: packets name interfaces by
// their number.
func (r *ngReader) addInterface(body []byte) error {
	if len(r.interfaces) == MaxInterfaces {
		return fmt.Errorf("%w: more than %d interfaces in a section", ErrCorrupt, MaxInterfaces)
	}
	r.interfaces = append(r.interfaces, ngInterface{power: 6})
	if len(body) < 8 {
		return fmt.Errorf("%w: an interface described in %d bytes", ErrCorrupt, len(body))
	}
	f := &r.interfaces[len(r.interfaces)-1]
	f.known, f.link, f.snapLen = true, frame.LinkType(r.uint16(body)), r.uint32(body[4:])
	for options := body[8:]; len(options) >= 4; {
		code, length := r.uint16(options), int(r.uint16(options[2:]))
		padded := (length + 3) &^ 3
		if code == optionEnd {
			break
		}
		if options = options[4:]; padded > len(options) {
			return fmt.Errorf("%w: option %d of interface %d has %d bytes, and there are %d",
				ErrCorrupt, code, len(r.interfaces)-1, length, len(options))
		}
		switch {
		case code == optionResolution && length == 1:
			f.binary, f.power = options[0]&0x80 != 0, options[0]&0x7f
		case code == optionOffset && length == 8:
			offset := binary.LittleEndian.Uint64(options)
			if r.swap {
				offset = bits.ReverseBytes64(offset)
			}
			f.offset = int64(offset)
		}
		options = options[padded:]
	}
	return nil
}

// enhanced decodes an enhanced or an obsolete packet.
func (r *ngReader) enhanced(kind uint32, body []byte) (*Packet, error) {
	if len(body) < enhancedFixed {
		return nil, fmt.Errorf("%w: a packet in a block with %d bytes", ErrCorrupt, len(body))
	}
	index := r.uint32(body)
	if kind == blockPacket {
		index = uint32(r.uint16(body))
	}
	captured, original := r.uint32(body[12:]), r.uint32(body[16:])
	data := body[enhancedFixed:]
	if err := r.check(index, captured, len(data)); err != nil {
		return nil, err
	}
	f := &r.interfaces[index]
	p := &r.packet
	p.Link, p.Interface = f.link, int(index)
	p.Time = f.time(uint64(r.uint32(body[4:]))<<32 | uint64(r.uint32(body[8:])))
	p.Data = data[:captured:captured]
	p.OrigLen = origLen(captured, original)
	return p, nil
}

// simple decodes a simple packet.
func (r *ngReader) simple(body []byte) (*Packet, error) {
	if len(body) < 4 {
		return nil, fmt.Errorf("%w: a packet in a block with %d bytes", ErrCorrupt, len(body))
	}
	original := r.uint32(body)
	captured := original
	if len(r.interfaces) > 0 && r.interfaces[0].snapLen > 0 {
		captured = min(captured, r.interfaces[0].snapLen)
	}
	if err := r.check(0, captured, len(body)-4); err != nil {
		return nil, err
	}
	p := &r.packet
	p.Link, p.Interface = r.interfaces[0].link, 0
	p.Time = time.Time{}
	p.Data = body[4 : 4+captured : 4+captured]
	p.OrigLen = origLen(captured, original)
	return p, nil
}

// check returns the fault of a packet of interface index with captured bytes in have.
func (r *ngReader) check(index, captured uint32, have int) error {
	switch {
	case uint64(index) >= uint64(len(r.interfaces)):
		return fmt.Errorf("%w: a packet of interface %d, and there are %d", ErrCorrupt, index,
			len(r.interfaces))
	case !r.interfaces[index].known:
		return fmt.Errorf("%w: a packet of interface %d, of which the description is broken",
			ErrCorrupt, index)
	case uint64(captured) > uint64(have):
		return fmt.Errorf("%w: a packet of %d bytes in a block with %d", ErrCorrupt, captured, have)
	case captured > MaxPacket:
		return fmt.Errorf("%w: a packet of %d bytes, and at most %d are read", ErrCorrupt,
			captured, MaxPacket)
	}
	return nil
}

// Years that have four digits: no packet has a time outside them.
const (
	minSeconds = -62135596800 // year 1
	maxSeconds = 253402300799 // year 9999
)

// time converts a time in units of the interface, pcapng §4.2 option if_tsresol. It is zero where
// it would be before the year 1 or after 9999.
func (f *ngInterface) time(units uint64) time.Time {
	var seconds, nanos uint64
	switch {
	case f.binary && f.power < 64:
		seconds = units >> f.power
		hi, lo := bits.Mul64(units&(1<<f.power-1), 1e9)
		nanos = hi<<(64-f.power) | lo>>f.power
	case f.binary:
		hi, _ := bits.Mul64(units, 1e9)
		nanos = hi >> (f.power - 64)
	case f.power <= 9:
		perSecond := powersOf10[f.power]
		seconds = units / perSecond
		nanos = (units - seconds*perSecond) * powersOf10[9-f.power]
	case int(f.power) < len(powersOf10):
		seconds = units / powersOf10[f.power]
		nanos = units % powersOf10[f.power] / powersOf10[f.power-9]
	case int(f.power)-9 < len(powersOf10):
		nanos = units / powersOf10[f.power-9]
	}
	if seconds > maxSeconds || f.offset < minSeconds-maxSeconds || f.offset > maxSeconds {
		return time.Time{}
	}
	at := int64(seconds) + f.offset
	if at < minSeconds || at > maxSeconds {
		return time.Time{}
	}
	return time.Unix(at, int64(nanos)).UTC()
}

// powersOf10 are those that 64 bits have.
var powersOf10 = func() (powers [20]uint64) {
	powers[0] = 1
	for i := 1; i < len(powers); i++ {
		powers[i] = 10 * powers[i-1]
	}
	return powers
}()
