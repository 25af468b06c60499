package smc

import "runtime"

// WriteUrgent is Write of data with an urgent last byte, as send with MSG_OOB does it. The peer is
// told at once, also while it has no room for the byte, and can have that byte before earlier data.
// There is one urgent byte at a time. Over SMC, later data waits until the peer has come to the
// byte: RFC 7609 §4.7.5 and §4.7.6.
//
// The peer may be a program of another kind that uses MSG_OOB, in every mode of a Conn.
func (c *Conn) WriteUrgent(b []byte) (int, error) {
	n, err := c.c.WriteUrgent(b)
	runtime.KeepAlive(c)
	return n, err
}

// WaitUrgent waits until the peer has urgent data, and returns nil once for each time: as SIGURG
// tells of it. The byte may still be on its way then, behind others that have to be read first. It
// is the way to learn of urgent data for a program that reads it with the rest, or skips it.
//
// It obeys the read deadline, may be called while others read, and returns [io.EOF] when no more
// can come. Over plain TCP it returns only when the byte is there, and may do so again while nobody
// has read it.
func (c *Conn) WaitUrgent() error {
	err := c.c.WaitUrgent()
	runtime.KeepAlive(c)
	return err
}

// ReadUrgent returns the urgent byte, and waits for it if there is none, as recv with MSG_OOB does
// without waiting. Each is returned once, and a newer one takes the place of one that nobody has
// read. It may be called while others read, and leaves them alone. It obeys the read deadline, and
// returns [io.EOF] when no more can come. If urgent bytes stay in the stream, see SetUrgentInline,
// it fails with EINVAL.
//
// Nobody has to call it: Read passes over urgent bytes. Over plain TCP a byte that was passed over
// is gone, so a Read in another goroutine can be faster.
func (c *Conn) ReadUrgent() (byte, error) {
	value, err := c.c.ReadUrgent()
	runtime.KeepAlive(c)
	return value, err
}

// AtUrgentMark reports whether everything that was written before the urgent byte has been read, as
// SIOCATMARK does. Read never returns bytes from before and behind that place together: it stops
// there, and goes on when it is called again. It is false while a Read waits.
func (c *Conn) AtUrgentMark() (bool, error) {
	at, err := c.c.AtUrgentMark()
	runtime.KeepAlive(c)
	return at, err
}

// SetUrgentInline says whether urgent bytes stay in the stream, where Read finds them at the place
// of AtUrgentMark, as with SO_OOBINLINE. It is to be called before any arrives. The default is
// false: Read passes over them.
func (c *Conn) SetUrgentInline(inline bool) error { return c.c.SetUrgentInline(inline) }
