package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"time"

	"github.com/gosmc/smc/internal/frame"
)

// A pcapReader reads pcap files.
//
//	offset  size  field of the file header, pcap §4
//	     0     4  magic             also tells the byte order of everything and the unit of fractions
//	     4     4  version           major (2), minor (2): 2.4
//	     8     8  reserved
//	    16     4  snapshot length   most bytes of a packet; 0 or more than any means no limit
//	    20     4  link type         of all packets (16 bits), frame check sequence (16)
//
//	offset  size  field of a record, pcap §5
//	     0     4  seconds           since 1970
//	     4     4  fraction          in micro- or nanoseconds
//	     8     4  captured length   of the data
//	    12     4  original length
//	    16     -  data
//
// In the modified variant 8 bytes are before the data: index of the interface (4), protocol (2), type
// of packet (1), padding (1). Linux wrote it before version 2.4.
//
// The format has no framing, so one wrong length would lose the rest of the file. Where a record
// cannot be, the reader looks for the next place where three fit together: lengths, fractions below
// a second, and times near the time of the last packet.
type pcapReader struct {
	*input
	swap     bool   // big-endian
	header   int    // length of a record's header
	fraction uint32 // how many are a second
	nanos    int64  // in one of them
	snapLen  uint32 // 0 if there is none to be believed
	seconds  uint32 // of the last packet
	timed    bool   // seconds is known
}

const (
	pcapFileHeader   = 24
	pcapRecord       = 16
	pcapRecordBefore = 24 // of the modified variant

	chainLen    = 3     // records that must fit together
	chainWindow = 86400 // seconds between neighbours that fit
)

func isPcapMagic(magic uint32) bool {
	return magic == magicMicro || magic == magicNano || magic == magicModified
}

func newPcapReader(in *input, magic uint32, swap bool) (Source, error) {
	b := in.peek(pcapFileHeader)
	if len(b) < pcapFileHeader {
		return nil, in.ended("the file header", len(b), pcapFileHeader)
	}
	r := &pcapReader{input: in, swap: swap, header: pcapRecord, fraction: 1e6, nanos: 1e3}
	switch magic {
	case magicNano:
		r.fraction, r.nanos = 1e9, 1
	case magicModified:
		r.header = pcapRecordBefore
	}
	if limit := r.uint32(b[16:]); limit <= MaxPacket {
		r.snapLen = limit
	}
	r.packet.Link = frame.LinkType(r.uint32(b[20:]))
	in.advance(pcapFileHeader)
	return r, nil
}

func (r *pcapReader) uint32(b []byte) uint32 {
	v := binary.LittleEndian.Uint32(b)
	if r.swap {
		v = bits.ReverseBytes32(v)
	}
	return v
}

// Next implements [Source].
func (r *pcapReader) Next() (*Packet, error) {
	if r.done || r.closed.Load() {
		return nil, io.EOF
	}
	h := r.peek(r.header)
	if len(h) < r.header {
		return nil, r.ended("the header of a packet", len(h), r.header)
	}
	rec := r.record(h)
	if rec.captured > MaxPacket {
		return nil, r.resync(fmt.Errorf("%w: a packet of %d bytes, and at most %d are read", ErrCorrupt,
			rec.captured, MaxPacket))
	}
	if doubts := r.doubts(rec); doubts != 0 && !r.followed(rec, doubts) {
		return nil, r.resync(fmt.Errorf("%w: a packet of %d bytes with %d of them captured, at %d and %d/%d s",
			ErrCorrupt, rec.original, rec.captured, rec.seconds, rec.fraction, r.fraction))
	}
	need := r.header + int(rec.captured)
	b := r.peek(need)
	if len(b) < need {
		return nil, r.tail(len(b), need)
	}
	r.advance(need)
	r.seconds, r.timed = rec.seconds, true
	p := &r.packet
	p.Number++
	p.Time = time.Unix(int64(rec.seconds), int64(rec.fraction)*r.nanos).UTC()
	p.Data = b[r.header:]
	p.OrigLen = origLen(rec.captured, rec.original)
	return p, nil
}

// origLen is the original length of a packet. Some programs count the bytes that they captured
// instead of the whole packet. The packet had at least as many bytes as were captured.
func origLen(captured, original uint32) int {
	return int(min(max(captured, original), math.MaxInt32))
}

// A record is the header of a packet.
type record struct{ seconds, fraction, captured, original uint32 }

func (r *pcapReader) record(h []byte) record {
	return record{r.uint32(h), r.uint32(h[4:]), r.uint32(h[8:]), r.uint32(h[12:])}
}

// Strange values that some programs write in all records of a file.
const (
	doubtFraction = 1 << iota // a second or more
	doubtLengths              // more is captured than there was
	doubtSnapLen              // more is captured than the file header allows
	doubtOriginal             // the packet was longer than any
	doubtZero                 // nothing but zeros, as at the end of files that a crash left
)

func (r *pcapReader) doubts(rec record) (doubts int) {
	if rec.fraction >= r.fraction {
		doubts |= doubtFraction
	}
	if rec.captured > rec.original {
		doubts |= doubtLengths
	}
	if rec.captured > r.snapLen && r.snapLen > 0 {
		doubts |= doubtSnapLen
	}
	if rec.original > maxBlock {
		doubts |= doubtOriginal
	}
	if rec == (record{}) {
		doubts |= doubtZero
	}
	return doubts
}

// followed reports whether a strange record, the next one, is followed by one that is strange in the
// same way or not at all, or by the end of the file.
func (r *pcapReader) followed(rec record, doubts int) bool {
	if doubts&doubtZero != 0 {
		return false
	}
	end := r.header + int(rec.captured)
	b := r.peek(end + r.header)
	if len(b) < end+r.header {
		return len(b) == end
	}
	next := r.record(b[end:])
	return next.captured <= MaxPacket && r.doubts(next)&^doubts == 0
}

// tail is the result of Next where a packet goes on past the end of the file: it was cut
// there, or the length is wrong.
func (r *pcapReader) tail(have, need int) error {
	start := r.offset
	if r.err != io.EOF || r.closed.Load() {
		return r.ended("a packet", have, need)
	}
	if r.advance(1); r.findChain() {
		return r.fault(start, fmt.Errorf("%w: a packet past the end of the file; %d bytes skipped",
			ErrCorrupt, r.offset-start))
	}
	r.done = true
	return r.fault(start, fmt.Errorf("%w: %d of %d bytes of a packet are there", ErrTruncated, have, need))
}

// resync goes from a record that cannot be to the next that can, and returns the error that says both.
func (r *pcapReader) resync(err error) error {
	start := r.offset
	if r.advance(1); r.findChain() {
		return r.fault(start, fmt.Errorf("%w; %d bytes skipped", err, r.offset-start))
	}
	r.done = true
	return r.fault(start, fmt.Errorf("%w; no packet found in the %d bytes that follow", err, r.offset-start))
}

// findChain consumes the bytes before the next records that fit together. It reports false at the
// end.
func (r *pcapReader) findChain() bool {
	for {
		r.peek(r.header)
		b := r.buf[r.start:r.end]
		if len(b) < r.header {
			r.advance(len(b))
			return false
		}
		candidate := -1
		for i := range len(b) - r.header + 1 {
			if r.fits(r.record(b[i:])) {
				candidate = i
				break
			}
		}
		if candidate < 0 {
			r.advance(len(b) - r.header + 1)
			continue
		}
		r.advance(candidate)
		if r.chain() {
			return true
		}
		r.advance(1)
	}
}

// fits reports whether rec can be believed without knowing where it begins.
func (r *pcapReader) fits(rec record) bool {
	if rec.captured > MaxPacket || r.doubts(rec) != 0 {
		return false
	}
	apart := int64(rec.seconds) - int64(r.seconds)
	return !r.timed || -chainWindow <= apart && apart <= chainWindow
}

// chain reports whether records that fit follow each other from here on: chainLen of them, or fewer
// up to the very end of the file.
func (r *pcapReader) chain() bool {
	at := 0
	for n := range chainLen {
		if at+r.header > maxWindow {
			return n > 1
		}
		b := r.peek(at + r.header)
		if len(b) < at+r.header {
			return n > 0 && (len(b) == at || n > 1)
		}
		rec := r.record(b[at:])
		if !r.fits(rec) {
			return false
		}
		at += r.header + int(rec.captured)
	}
	return true
}
