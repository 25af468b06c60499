package stream

import (
	"io"
	"os"
	"sync"
)

var (
	writeToBuffers  = sync.Pool{New: func() any { b := make([]byte, bufferedCopy); return &b }}
	readFromBuffers = sync.Pool{New: func() any { b := make([]byte, publishChunk); return &b }}
)

// WriteTo implements [io.WriterTo]: it reads until the peer's last byte. The bytes pass
// through a buffer of our own, because w could wait for ever while it held the ring, and
// because the peer could change them after w had looked. An idle connection has no buffer.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	for {
		if err = c.await(); err == nil {
			var n int64
			var failed error
			n, err, failed = c.writeSome(w)
			if total += n; failed != nil {
				return total, failed
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// await returns when Read would.
func (c *Conn) await() error {
	c.r.mu.Lock()
	if c.r.state.Load() != 0 || !c.fill(1) {
		_, err := c.readSlow(nil) // unlocks
		return err
	}
	c.r.mu.Unlock()
	return nil
}

// writeSome is one round of WriteTo. It tells errors of our Read and of w apart.
func (c *Conn) writeSome(w io.Writer) (written int64, readErr, writeErr error) {
	buf := writeToBuffers.Get().(*[]byte)
	defer writeToBuffers.Put(buf)
	n, readErr := c.Read(*buf)
	if n == 0 {
		return 0, readErr, nil
	}
	m, writeErr := w.Write((*buf)[:n])
	switch {
	case m < 0 || m > n:
		return 0, nil, errNoProgress
	case writeErr == nil && m < n:
		writeErr = io.ErrShortWrite
	}
	return int64(m), readErr, writeErr
}

// ReadFrom implements [io.ReaderFrom]: it writes until r ends. A regular file, also
// inside an [io.LimitedReader] as net/http passes it, is read straight into the ring.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	if f, limit, ok := regularFile(r); ok {
		total, err = c.readFromFile(f, limit)
		if lr, ok := r.(*io.LimitedReader); ok {
			lr.N -= total
		}
		return total, err
	}
	buf := readFromBuffers.Get().(*[]byte)
	defer readFromBuffers.Put(buf)
	for {
		n, rerr := r.Read(*buf)
		if n > 0 {
			m, err := c.Write((*buf)[:n])
			total += int64(m)
			if err != nil {
				return total, err
			}
		}
		if rerr == io.EOF {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}

// regularFile returns the regular file that r reads, and how much of it at most. Reading it
// must not keep us waiting for long, since it happens with a lock held: so only files of
// local file systems count.
func regularFile(r io.Reader) (f *os.File, limit int64, ok bool) {
	limit = 1<<63 - 1
	if lr, isLimited := r.(*io.LimitedReader); isLimited {
		r, limit = lr.R, lr.N
	}
	f, ok = r.(*os.File)
	if !ok {
		return nil, 0, false
	}
	info, err := f.Stat()
	return f, limit, err == nil && info.Mode().IsRegular() && localFile(f)
}

// readFromFile is ReadFrom for a file, which does not keep a reader waiting for long.
func (c *Conn) readFromFile(f *os.File, limit int64) (total int64, err error) {
	raceRelease()
	for total < limit {
		n, err := c.readFileOnce(f, limit-total)
		total += int64(n)
		if err == io.EOF || err != nil && total > 0 && atEnd(f) {
			return total, nil // an error after the last byte is the next Write's affair
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// atEnd reports whether there is no more to read from f.
func atEnd(f *os.File) bool {
	left, err := bytesLeft(f)
	return err == nil && left <= 0
}

// bytesLeft returns how much there is to read from f.
func bytesLeft(f *os.File) (int64, error) {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size() - at, nil
}

// dropFile is drop for the rest of f. w.mu must be locked.
func (c *Conn) dropFile(f *os.File, limit int64, err error) (int, error) {
	left, ferr := bytesLeft(f)
	if ferr != nil {
		return 0, ferr
	}
	n, err := c.drop(int(max(0, min(left, limit, int64(c.limit())))), err)
	if n > 0 {
		f.Seek(int64(n), io.SeekCurrent)
	} else if err == nil {
		err = io.EOF
	}
	return n, err
}

// readFileOnce waits for room and fills a contiguous piece of it from f.
func (c *Conn) readFileOnce(f *os.File, limit int64) (n int, err error) {
	w := &c.w
	w.mu.Lock()
	defer func() { c.unlockWriter(err) }()
	for {
		if err := c.writeError(); err != nil {
			return c.dropFile(f, limit, err)
		}
		if err := c.pollConsumer(); err != nil {
			return 0, err
		}
		if w.free > 0 {
			break
		}
		if atEnd(f) {
			return 0, io.EOF // there is nothing that needs room
		}
		c.awaitRoom(c.limit())
	}
	room := min(int64(w.free), int64(len(c.wdata)-w.at), bufferedCopy, limit)
	n, err = f.Read(c.wdata[w.at : w.at+int(room)])
	if n > 0 {
		c.advance(n)
		c.publish()
	}
	return n, err
}
