package conn

import (
	"io"
	"net"
	"time"

	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/transport"
)

// A dataPath is the data path of an SMC connection with the errors of package net.
type dataPath struct {
	base
	data    *stream.Conn
	gain    gain
	binding transport.Binding
	traits  transport.Traits // of binding
}

// Read implements [net.Conn].
func (d *dataPath) Read(b []byte) (int, error) {
	n, err := d.data.Read(b)
	if d.gain.isOpen() {
		d.gain.read(d.data.Totals())
	}
	if err != nil && err != io.EOF {
		err = d.opError("read", err)
	}
	return n, err
}

// Write implements [net.Conn].
func (d *dataPath) Write(b []byte) (int, error) {
	n, err := d.data.Write(b)
	if err != nil {
		err = d.opError("write", err)
	}
	return n, err
}

// WriteBuffers implements [Conn].
func (d *dataPath) WriteBuffers(bufs *net.Buffers) (int64, error) {
	n, err := d.data.WriteBuffers(*bufs)
	consume(bufs, n)
	if err != nil {
		err = d.opError("writev", err)
	}
	return n, err
}

// consume drops the first n bytes.
func consume(bufs *net.Buffers, n int64) {
	for len(*bufs) > 0 {
		first := int64(len((*bufs)[0]))
		if first > n {
			(*bufs)[0] = (*bufs)[0][n:]
			return
		}
		n -= first
		(*bufs)[0] = nil
		*bufs = (*bufs)[1:]
	}
}

// ReadFrom implements [io.ReaderFrom]. An error has our addresses, whichever end it is from, as in
// package net.
func (d *dataPath) ReadFrom(r io.Reader) (int64, error) {
	n, err := d.data.ReadFrom(r)
	return n, d.ioError("readfrom", err)
}

// WriteTo implements [io.WriterTo]. An error has our addresses, whichever end it is from.
func (d *dataPath) WriteTo(w io.Writer) (int64, error) {
	d.gain.copied.Store(true)
	n, err := d.data.WriteTo(w)
	return n, d.ioError("writeto", err)
}

// SetDeadline implements [net.Conn].
func (d *dataPath) SetDeadline(t time.Time) error {
	err := d.data.SetReadDeadline(t)
	if err == nil {
		err = d.data.SetWriteDeadline(t)
	}
	return d.ioError("set", err)
}

// SetReadDeadline implements [net.Conn].
func (d *dataPath) SetReadDeadline(t time.Time) error {
	return d.ioError("set", d.data.SetReadDeadline(t))
}

// SetWriteDeadline implements [net.Conn].
func (d *dataPath) SetWriteDeadline(t time.Time) error {
	return d.ioError("set", d.data.SetWriteDeadline(t))
}

// CloseRead implements [Conn].
func (d *dataPath) CloseRead() error { return d.ioError("close", d.data.CloseRead()) }

// SetUrgentInline implements [Conn].
func (d *dataPath) SetUrgentInline(inline bool) error {
	return d.ioError("set", d.data.SetUrgentInline(inline))
}

// AtUrgentMark implements [Conn].
func (d *dataPath) AtUrgentMark() (bool, error) {
	at, err := d.data.AtUrgentMark()
	return at, d.ioError("read", err)
}

// Totals implements [Conn].
func (d *dataPath) Totals() (in, out uint64) { return d.data.Totals() }

// Buffers implements [Conn].
func (d *dataPath) Buffers() (local, remote int) {
	local, remote = d.data.Buffers()
	return local + int(d.traits.HeaderLen), remote + int(d.traits.HeaderLen)
}

// Link implements [Conn].
func (d *dataPath) Link() uint8 { return d.binding.LinkNumber() }

// Association implements [Conn].
func (d *dataPath) Association() transport.Association { return d.binding.Association() }

// Flush implements [Conn].
func (d *dataPath) Flush() { d.binding.Flush() }
