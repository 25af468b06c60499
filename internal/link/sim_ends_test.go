package link

import (
	"io"

	"github.com/gosmc/smc/wire/cdc"
)

// A simConn is a connection.
type simConn struct {
	ends [2]*simEnd
}

type simEnd struct {
	*end
	name        int
	size        int // bytes to be written
	chunk       int // in Write and Read, at most: a power of two
	wrote, read int
	shut        bool // CloseWrite was called
	eof         bool
	gone        bool // Close was called
	failed      bool // by its owner
}

// pattern is byte number n of the stream that an end writes.
func (e *simEnd) pattern(n int) byte { return byte(n*7 + n>>8*13 + e.name*31) }

// write and read are the steps of the application; they report whether it has done anything.
func (w *world) write(side int, x *simEnd) bool {
	if x.failed || x.gone || x.shut {
		return false
	}
	if x.wrote == x.size {
		x.shut = true
		if err := x.CloseWrite(); err != nil {
			w.failf("CloseWrite: %v", err)
		}
		x.SendFlags(cdc.DoneWriting)
		return true
	}
	_, unread := x.Queues()
	_, most := x.Buffers()
	n := min(most-unread, int(x.carrier.room()), x.size-x.wrote, 1+w.rng.IntN(1<<w.rng.IntN(x.chunk)))
	if n <= 0 {
		return false
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = x.pattern(x.wrote + i)
	}
	if got, err := x.Write(b); got != n || err != nil {
		w.failf("connection %d: Write(%d) = %d, %v", x.name, n, got, err)
	}
	x.wrote += n
	return true
}

func (w *world) read(side int, sc *simConn) bool {
	x, from := sc.ends[side], sc.ends[1-side]
	if x.gone || x.eof {
		return false
	}
	have, _ := x.Queues()
	if have == 0 && x.PeerFlags()&(cdc.DoneWriting|cdc.Closed|cdc.Abort) == 0 {
		return false
	}
	b := make([]byte, 1+w.rng.IntN(1<<w.rng.IntN(x.chunk)))
	n, err := x.Read(b)
	for i, c := range b[:n] {
		if c != from.pattern(x.read+i) || x.read+i >= from.wrote {
			w.failf("connection %d: byte %d of %d is not what was written", x.name, x.read+i, from.wrote)
		}
	}
	x.read += n
	switch {
	case err == io.EOF:
		if x.read != from.size {
			w.failf("connection %d: the end after %d bytes of %d", x.name, x.read, from.size)
		}
		x.eof = true
	case err != nil && !x.failed:
		w.failf("connection %d: Read: %v", x.name, err)
	case err != nil:
		x.eof = true
	}
	return true
}

// finish closes an end that has nothing more to do.
func (w *world) finish(x *simEnd) bool {
	if x.gone || !x.failed && (!x.eof || !x.shut) {
		return false
	}
	x.gone = true
	w.say("connection %d is closed", x.name)
	x.Conn.Close()
	if x.failed {
		x.Conn.Detach()
	} else {
		x.SendLast(cdc.Closed)
	}
	x.carrier.Detach()
	return true
}
