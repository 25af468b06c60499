package handshake

import (
	"bytes"
	"io"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A messageReader reads CLC messages from TCP, and not a byte more: the bytes after the last
// message are the application's. A read that is interrupted by a deadline keeps its bytes, and the
// next one goes on from there. So a message can be awaited while something else happens. The zero
// value is ready.
type messageReader struct {
	header [clc.HeaderLen]byte
	msg    []byte // of the length that the header says; nil before that is complete
	have   int    // bytes that were read, of header or of msg
}

// read returns the next message. It returns a *wire.DecodeError for a header that is none, or an
// error of r.
func (c *messageReader) read(r io.Reader) ([]byte, error) {
	if c.msg == nil {
		if err := c.fillHeader(r); err != nil {
			return nil, err
		}
		h, err := clc.ParseHeader(c.header[:])
		if err != nil {
			return nil, err
		}
		c.msg = make([]byte, h.Len)
		copy(c.msg, c.header[:])
	}
	if err := c.fill(r, c.msg); err != nil {
		return nil, err
	}
	return c.take(), nil
}

// fillHeader reads a header, or as much of it as shows that it is none: a client that does not
// speak CLC may send fewer bytes than a header, and wait for the answer.
func (c *messageReader) fillHeader(r io.Reader) error {
	for c.have < len(c.header) {
		n, err := r.Read(c.header[c.have:])
		c.have += n
		if !conn.EyecatcherStarts(c.header[:c.have]) {
			return &wire.DecodeError{Message: "clc.Header", Field: "eyecatcher", Err: wire.ErrEyecatcher}
		}
		if err == io.EOF && c.have > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && c.have < len(c.header) {
			return err
		}
	}
	return nil
}

// fill reads until all of b is there.
func (c *messageReader) fill(r io.Reader, b []byte) error {
	n, err := io.ReadFull(r, b[c.have:])
	if err == io.EOF && c.have > 0 {
		err = io.ErrUnexpectedEOF
	}
	c.have += n
	return err
}

// take returns the bytes that were read of a message, and begins with the next one.
func (c *messageReader) take() []byte {
	b := c.msg
	if b == nil {
		b = bytes.Clone(c.header[:])
	}
	b = b[:c.have]
	c.msg, c.have = nil, 0
	return b
}
