package netcat

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/gosmc/smc"
)

// Streams are the standard streams that a connection is joined with.
type Streams struct {
	In       io.Reader // is read by one goroutine, until its end or that of the process
	Terminal bool      // In is a terminal: the end of the peer is the end of the connection
	Out      io.Writer
}

// An input hands standard input to one connection after the other. One goroutine reads it,
// so that a chunk that arrives after a connection has ended goes to the next one. That goroutine ends
// with standard input, or with the process.
type input struct {
	terminal bool
	chunks   chan []byte   // closed at the end of the input
	free     chan []byte   // buffers to use again
	ended    chan struct{} // closed with chunks: the end was seen
	err      error         // why the input ended, if not by EOF; valid once ended is closed
}

const (
	inputChunk   = 256 << 10 // bytes read at a time
	inputBuffers = 2         // one is read into while the other is written
)

func newInput(r io.Reader, terminal bool) *input {
	in := &input{
		terminal: terminal,
		chunks:   make(chan []byte),
		free:     make(chan []byte, inputBuffers),
		ended:    make(chan struct{}),
	}
	for range inputBuffers {
		in.free <- make([]byte, inputChunk)
	}
	go func() {
		defer close(in.chunks)
		defer close(in.ended)
		for {
			b := <-in.free
			n, err := r.Read(b)
			if n > 0 {
				in.chunks <- b[:n]
			} else {
				in.free <- b
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					in.err = err
				}
				return
			}
		}
	}()
	return in
}

// copyTo writes chunks to w until the input or w ends, or stop is closed. eof says that the input ended.
func (in *input) copyTo(w io.Writer, stop <-chan struct{}) (n int64, eof bool, err error) {
	for {
		select {
		case <-stop:
			return n, false, nil
		case b, ok := <-in.chunks:
			if !ok {
				return n, true, in.err
			}
			m, err := w.Write(b)
			n += int64(m)
			in.free <- b[:cap(b)]
			if err != nil {
				return n, false, err
			}
		}
	}
}

// transfer joins c with standard input and output, as netcat does: the end of the input is
// passed on with CloseWrite, and the connection is over when both directions have ended. At a
// terminal the peer's end is enough, because nobody would think of typing end-of-file. transfer closes c.
func transfer(ctx context.Context, c *smc.Conn, in *input, out io.Writer, r *Report) error {
	defer c.Close()
	unhook := context.AfterFunc(ctx, func() { c.Close() })
	defer unhook()
	start := time.Now()

	stop := make(chan struct{})
	stopSending := sync.OnceFunc(func() { close(stop) })
	sent := make(chan error, 1)
	go func() {
		n, eof, err := in.copyTo(c, stop)
		r.BytesOut = n
		if eof && err == nil {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	n, receiveErr := io.Copy(out, c)
	r.BytesIn = n
	if receiveErr != nil || in.terminal || ctx.Err() != nil {
		stopSending()
		c.Close() // a Write may wait for a peer that does not read
	}
	select {
	case sendErr := <-sent:
		if receiveErr == nil && !errors.Is(sendErr, net.ErrClosed) {
			receiveErr = sendErr
		}
	case <-ctx.Done():
		c.Close()
		stopSending()
		<-sent
	}
	r.Seconds = time.Since(start).Seconds()
	if err := ctx.Err(); err != nil {
		receiveErr = err
	}
	if receiveErr != nil {
		r.Error = receiveErr.Error()
	}
	return receiveErr
}
