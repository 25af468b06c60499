// Package talk is the conversation of the two ends of a connection in the cases of SMC-R: the same
// on AF_SMC sockets of a kernel and on connections of this library. Every byte is checked.
//
// The client begins with a [Script]; the server learns its part from it.
package talk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// A Conn is a connection as package net has it.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
	SetLinger(seconds int) error
}

// A Kind is a kind of conversation.
type Kind uint8

// All kinds. N is the number of a [Script].
const (
	Echo         Kind = iota + 1 // N bytes there and back, Rounds times
	Duplex                       // N bytes in both directions at the same time
	Half                         // N bytes there; the client is done writing; N bytes back; the server closes
	Unread                       // N bytes there, of which the server reads one and closes: the client is reset
	Reset                        // N bytes there; the client closes with linger 0: the server is reset
	Gone                         // N bytes there and back, then the server waits until the client's process is gone
	Urgent                       // N bytes there, of which the last is urgent, and some more; then so back; Rounds times
	UrgentInline                 // likewise, with the byte in its place in the stream
	UrgentPush                   // there only
	Both                         // as Duplex, but each side waits for the other one's bytes, and neither is done writing before both have read all
	Give                         // N bytes there; then the server says that it has them
	Take                         // N bytes back; then the client says that it has them
)

var names = map[string]Kind{
	"echo": Echo, "duplex": Duplex, "half": Half, "unread": Unread, "reset": Reset, "gone": Gone,
	"urgent": Urgent, "inline": UrgentInline, "push": UrgentPush, "both": Both, "give": Give, "take": Take,
}

// ParseKind returns the kind of a name.
func ParseKind(name string) (Kind, error) {
	if k, ok := names[name]; ok {
		return k, nil
	}
	return 0, fmt.Errorf("talk: no script %q", name)
}

// String returns the name.
func (k Kind) String() string {
	for name, kind := range names {
		if kind == k {
			return name
		}
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// A Script is one conversation. As the first bytes of a connection it is
//
//	offset  size  field
//	     0     1  kind
//	     1     1  1: soft
//	     2     2  zero
//	     4     4  rounds, big-endian
//	     8     8  n, big-endian
//	    16     8  seed, big-endian
type Script struct {
	Kind   Kind
	Rounds int
	N      int
	Seed   uint64

	// Soft lets the server of a Reset see the end of the stream in its place: a reader on a socket
	// of AF_SMC is not told of an abort, nor does linger 0 make one (Linux net/smc).
	Soft bool

	// Await, if not nil, is called with Both when this side has written and read all, and tells it
	// that it may say so. It is not sent along.
	Await func()
}

const scriptLen = 24

// maxN is the longest conversation that a server lets itself in for.
const maxN = 1 << 30

func (s Script) append(b []byte) []byte {
	soft := byte(0)
	if s.Soft {
		soft = 1
	}
	b = append(b, byte(s.Kind), soft, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(s.Rounds))
	b = binary.BigEndian.AppendUint64(b, uint64(s.N))
	return binary.BigEndian.AppendUint64(b, s.Seed)
}

// Client is the client's part. It closes c. Of kind [Gone] it returns with c open, for the process to end.
func Client(c Conn, s Script) error {
	if s.Kind != Gone {
		defer c.Close()
	}
	if _, err := c.Write(s.append(nil)); err != nil {
		return fmt.Errorf("first write: %w", err)
	}
	switch s.Kind {
	case Echo:
		for i := range max(s.Rounds, 1) {
			if err := exchange(c, s.N, s.Seed+uint64(i)); err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
		}
		return closeBoth(c)
	case Duplex:
		return duplex(c, s.N, s.Seed, s.Seed+1)
	case Both:
		return both(c, s, s.Seed, s.Seed+1)
	case Half:
		if err := send(c, s.N, s.Seed); err != nil {
			return err
		}
		if err := c.CloseWrite(); err != nil {
			return fmt.Errorf("done writing: %w", err)
		}
		if err := receive(c, s.N, s.Seed+1); err != nil {
			return err
		}
		return expectEnd(c)
	case Unread:
		for range 10_000 { // bytes the server does not read fill the buffers, and then it is gone
			if err := send(c, s.N, s.Seed); err != nil {
				return expectReset("write", err)
			}
		}
		return errors.New("writes to a server that has closed without reading succeed")
	case Reset:
		if err := send(c, s.N, s.Seed); err != nil {
			return err
		}
		var b [1]byte
		if _, err := io.ReadFull(c, b[:]); err != nil { // the server has it all
			return err
		}
		if err := c.SetLinger(0); err != nil {
			return fmt.Errorf("linger: %w", err)
		}
		return c.Close()
	case Gone:
		return exchange(c, s.N, s.Seed)
	case Urgent, UrgentInline, UrgentPush:
		return urgent(c, s, true)
	case Give:
		if err := give(c, s); err != nil {
			return err
		}
		return closeBoth(c)
	case Take:
		if err := take(c, s); err != nil {
			return err
		}
		return closeBoth(c)
	}
	return fmt.Errorf("no client for %v", s.Kind)
}

// Serve is the server's part. It closes c. await is as in [Script].
func Serve(c Conn, await func()) (Script, error) {
	defer c.Close()
	var b [scriptLen]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return Script{}, fmt.Errorf("first read: %w", err)
	}
	s := Script{
		Kind: Kind(b[0]), Rounds: int(binary.BigEndian.Uint32(b[4:])),
		N: int(binary.BigEndian.Uint64(b[8:])), Seed: binary.BigEndian.Uint64(b[16:]), Soft: b[1] == 1,
		Await: await,
	}
	if s.N < 0 || s.N > maxN {
		return s, fmt.Errorf("%d bytes", s.N)
	}
	return s, serve(c, s)
}

func serve(c Conn, s Script) error {
	switch s.Kind {
	case Echo, Gone:
		err := echo(c)
		if s.Kind == Gone {
			if err == nil || errors.Is(err, syscall.ECONNRESET) { // the kernel of a dead process closes in order
				return nil
			}
		}
		return err
	case Duplex:
		return duplex(c, s.N, s.Seed+1, s.Seed)
	case Both:
		return both(c, s, s.Seed+1, s.Seed)
	case Half:
		if err := receive(c, s.N, s.Seed); err != nil {
			return err
		}
		if err := expectEnd(c); err != nil {
			return err
		}
		return send(c, s.N, s.Seed+1)
	case Unread:
		var b [1]byte
		_, err := io.ReadFull(c, b[:])
		return err
	case Reset:
		if err := receive(c, s.N, s.Seed); err != nil {
			return err
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		if s.Soft && err == io.EOF {
			return nil
		}
		return expectReset("read", err)
	case Urgent, UrgentInline, UrgentPush:
		return urgent(c, s, false)
	case Give:
		if err := take(c, s); err != nil {
			return err
		}
		return expectEnd(c)
	case Take:
		if err := give(c, s); err != nil {
			return err
		}
		return expectEnd(c)
	}
	return fmt.Errorf("no server for %v", s.Kind)
}

// give sends the bytes of a script, and waits for the word of the other side that it has them.
func give(c Conn, s Script) error {
	if err := send(c, s.N, s.Seed); err != nil {
		return err
	}
	return receive(c, 1, s.Seed)
}

// take is the other side of that.
func take(c Conn, s Script) error {
	if err := receive(c, s.N, s.Seed); err != nil {
		return err
	}
	return send(c, 1, s.Seed)
}

// exchange sends n bytes and reads them back, at the same time: they may be more than the buffers hold.
func exchange(c Conn, n int, seed uint64) error {
	sent := make(chan error, 1)
	go func() { sent <- send(c, n, seed) }()
	if err := receive(c, n, seed); err != nil {
		c.Close() // ends the other half
		<-sent
		return err
	}
	return <-sent
}

func echo(c Conn) error {
	b := make([]byte, 64<<10)
	for {
		n, err := c.Read(b)
		if n > 0 {
			if _, err := c.Write(b[:n]); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("read: %w", err)
		}
	}
}

func duplex(c Conn, n int, send0, receive0 uint64) error {
	sent := make(chan error, 1)
	go func() {
		err := send(c, n, send0)
		if err == nil {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	err := receive(c, n, receive0)
	if err == nil {
		err = expectEnd(c)
	}
	if err != nil {
		c.Close()
	}
	return errors.Join(err, <-sent)
}

// bothPiece is how much a side sends before it has the bytes that the other one has sent. Twice as
// much is on its way at most, which is less than the send buffer of Linux: see docs/interop.md.
const bothPiece = 16 << 10

// both is duplex in pieces, and the ends follow when each side has told the other one that it has all.
func both(c Conn, s Script, send0, receive0 uint64) error {
	out, in := pattern{state: send0}, pattern{state: receive0}
	for done := 0; done < s.N; done += bothPiece {
		n := min(bothPiece, s.N-done)
		if err := out.send(c, done, n, s.N); err != nil {
			return err
		}
		if err := in.receive(c, done, n, s.N); err != nil {
			return err
		}
	}
	if s.Await != nil {
		s.Await()
	}
	if err := send(c, 1, send0); err != nil {
		return err
	}
	if err := receive(c, 1, receive0); err != nil {
		return err
	}
	return closeBoth(c)
}

// closeBoth ends a conversation with an echo server: nothing more comes.
func closeBoth(c Conn) error {
	if err := c.CloseWrite(); err != nil {
		return fmt.Errorf("done writing: %w", err)
	}
	return expectEnd(c)
}

func expectEnd(c Conn) error {
	n, err := c.Read(make([]byte, 1))
	if n != 0 || err != io.EOF {
		return fmt.Errorf("at the end %d bytes, %v; want EOF", n, err)
	}
	return nil
}

func expectReset(what string, err error) error {
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return fmt.Errorf("%s: %v; want a reset", what, err)
}

// piece is how much is made and checked at a time.
const piece = 256 << 10

// send writes n bytes that follow from the seed.
func send(c Conn, n int, seed uint64) error {
	p := pattern{state: seed}
	return p.send(c, 0, n, n)
}

// send writes the next n bytes, at a place of all.
func (p *pattern) send(c Conn, at, n, all int) error {
	b := make([]byte, min(n, piece))
	for done := 0; done < n; {
		k := min(n-done, len(b))
		p.fill(b[:k])
		if w, err := c.Write(b[:k]); err != nil {
			return fmt.Errorf("write at %d of %d: %w", at+done+w, all, err)
		}
		done += k
	}
	return nil
}

// receive reads n bytes and checks them.
func receive(c Conn, n int, seed uint64) error {
	p := pattern{state: seed}
	return p.receive(c, 0, n, n)
}

// receive reads n bytes, at a place of all, and checks that they are the next ones.
func (p *pattern) receive(c Conn, at, n, all int) error {
	b, want := make([]byte, min(n, piece)), make([]byte, min(n, piece))
	for done := 0; done < n; {
		k := min(n-done, len(b))
		if r, err := io.ReadFull(c, b[:k]); err != nil {
			return fmt.Errorf("read at %d of %d: %w", at+done+r, all, err)
		}
		p.fill(want[:k])
		for i := range k {
			if b[i] != want[i] {
				return fmt.Errorf("byte %d of %d is %#x, want %#x", at+done+i, all, b[i], want[i])
			}
		}
		done += k
	}
	return nil
}

// A pattern is a stream of bytes that follows from its seed: splitmix64.
type pattern struct {
	state uint64
	word  uint64
	left  int // bytes of word
}

func (p *pattern) fill(b []byte) {
	for i := range b {
		if p.left == 0 {
			p.state += 0x9e3779b97f4a7c15
			z := p.state
			z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
			z = (z ^ z>>27) * 0x94d049bb133111eb
			p.word, p.left = z^z>>31, 8
		}
		b[i] = byte(p.word)
		p.word >>= 8
		p.left--
	}
}
