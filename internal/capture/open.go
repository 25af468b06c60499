package capture

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const stdinName = "standard input"

// Open opens a capture file. name is the name of a file or pipe, or "-" for standard input.
//
// The formats are told by the first bytes: pcap in both byte orders, with micro- and nanoseconds and
// in the variant with longer records; pcapng in both byte orders; either compressed with gzip. Errors
// are [*os.PathError] if the file cannot be opened, and [*Error] with [ErrFormat] or [ErrTruncated] if
// it does not begin as a capture does. The Source is a [Progresser].
//
// The readers do not come from gopacket/pcapgo (version 1.7.7). Its readers give up at the first
// fault and do not say where it is, keep all names and secrets of a pcapng file in memory, do not
// read the variant, and copy every packet. Its writer is used by [Create].
func Open(name string) (Source, error) {
	if name == "-" {
		if _, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS); err == nil {
			return nil, errors.New("standard input is a terminal: name a file, or pipe a capture in")
		}
		return open(stdinName, os.Stdin, func() error { return nil })
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	s, err := open(name, f, f.Close)
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// open makes a Source of a file that is closed by closeFile.
func open(name string, f *os.File, closeFile func() error) (Source, error) {
	in := &input{name: name, file: f, closeFile: closeFile}
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if info.IsDir() {
		return nil, fmt.Errorf("%s is a directory: name the captures in it", name)
	} else if info.Mode().IsRegular() {
		in.size = info.Size()
	}
	return newReader(in)
}

// An input is the file below a reader, and the state that readers of both formats have in common.
type input struct {
	name      string
	file      io.Reader // of the bytes on disk
	size      int64     // of a regular file; 0 if it is not known
	read      atomic.Int64
	closed    atomic.Bool
	closeFile func() error

	*window        // of the bytes that the format is made of
	packet  Packet // the one that Next returns
	done    bool   // nothing follows
}

// Read reads from the file and counts.
func (in *input) Read(b []byte) (int, error) {
	n, err := in.file.Read(b)
	in.read.Add(int64(n))
	if err != nil && in.closed.Load() {
		err = io.EOF
	}
	return n, err
}

// Name implements [Source].
func (in *input) Name() string { return in.name }

// Close implements [Source].
func (in *input) Close() error {
	if in.closed.Swap(true) {
		return nil
	}
	return in.closeFile()
}

// Progress implements [Progresser].
func (in *input) Progress() (read, size int64, ok bool) {
	return in.read.Load(), in.size, in.size > 0
}

// fault is an error at offset, in the packet that would be next.
func (in *input) fault(offset int64, err error) error {
	return &Error{Name: in.name, Packet: in.packet.Number + 1, Offset: offset, Err: err}
}

// ended is the result of Next at the end of the bytes. The item named what has have bytes there,
// and needs need.
func (in *input) ended(what string, have, need int) error {
	in.done = true
	switch {
	case !errors.Is(in.err, io.EOF) && !errors.Is(in.err, io.ErrUnexpectedEOF) && in.err != nil:
		return in.fault(in.offset, in.err) // the reader's own: a disk, or a broken archive
	case errors.Is(in.err, io.ErrUnexpectedEOF): // of gzip
		return in.fault(in.offset, fmt.Errorf("%w: the compressed data is not complete", ErrTruncated))
	case have == 0 || in.closed.Load():
		return io.EOF
	}
	return in.fault(in.offset, fmt.Errorf("%w: %d of %d bytes of %s are there", ErrTruncated, have,
		need, what))
}

// Beginnings of files.
const (
	magicMicro    = 0xa1b2c3d4 // pcap §4, in the byte order of the writer
	magicNano     = 0xa1b23c4d // pcap §4
	magicModified = 0xa1b2cd34 // records with 8 more bytes: Linux before 2.4, and some programs
	magicNg       = 0x0a0d0d0a // pcapng §4.1, the same in both byte orders

	probeLen = 12 // bytes that tell the format
)

var gzipMagic = []byte{0x1f, 0x8b} // RFC 1952 §2.3.1

// Kinds of files that people try, and advice for each.
var otherKinds = []struct{ magic, advice string }{
	{"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it with 'zstd -d', or pipe it in from 'zstd -dc'"},
	{"\xfd7zXZ\x00", "compressed with xz; unpack it with 'xz -d', or pipe it in from 'xz -dc'"},
	{"\x04\x22\x4d\x18", "compressed with lz4; unpack it with 'lz4 -d', or pipe it in from 'lz4 -dc'"},
	{"BZh", "compressed with bzip2; unpack it with 'bzip2 -d', or pipe it in from 'bzip2 -dc'"},
	{"PK\x03\x04", "a zip archive; unpack it first"},
	{"snoop\x00\x00\x00", "a snoop capture; 'editcap -F pcapng' converts it"},
	{"GMBU", "a Network Monitor capture; 'editcap -F pcapng' converts it"},
	{"TRSNIFF data", "a Sniffer capture; 'editcap -F pcapng' converts it"},
	{"XCP\x00", "a NetXRay capture; 'editcap -F pcapng' converts it"},
}

// newReader makes the reader of the format with which in begins.
func newReader(in *input) (Source, error) {
	in.window = newWindow(in)
	if bytes.HasPrefix(in.peek(len(gzipMagic)), gzipMagic) {
		unpacked, err := gzip.NewReader(&rest{in.window})
		if err != nil {
			return nil, in.fault(0, fmt.Errorf("%w: compressed with gzip: %w", ErrFormat, err))
		}
		in.window = newWindow(unpacked)
	}
	b := in.peek(probeLen)
	switch {
	case len(b) == 0 && (in.err == nil || in.err == io.EOF):
		return nil, in.fault(0, fmt.Errorf("%w: it is empty", ErrFormat))
	case in.err != nil && !errors.Is(in.err, io.EOF) && !errors.Is(in.err, io.ErrUnexpectedEOF):
		return nil, in.fault(0, in.err)
	}
	if len(b) >= 4 {
		little, big := binary.LittleEndian.Uint32(b), binary.BigEndian.Uint32(b)
		switch {
		case little == magicNg:
			return newNgReader(in)
		case isPcapMagic(little):
			return newPcapReader(in, little, false)
		case isPcapMagic(big):
			return newPcapReader(in, big, true)
		}
	}
	for _, kind := range otherKinds {
		if bytes.HasPrefix(b, []byte(kind.magic)) {
			return nil, in.fault(0, fmt.Errorf("%w: it is %s", ErrFormat, kind.advice))
		}
	}
	return nil, in.fault(0, fmt.Errorf("%w: it begins with % x; pcap and pcapng are read, also compressed with gzip", ErrFormat, b))
}

// A rest reads the bytes of a window that have not been consumed.
type rest struct{ w *window }

func (r *rest) Read(b []byte) (int, error) {
	seen := r.w.peek(min(len(b), 1))
	if len(seen) == 0 && len(b) > 0 {
		return 0, r.w.err
	}
	n := copy(b, r.w.buf[r.w.start:r.w.end])
	r.w.advance(n)
	return n, nil
}
