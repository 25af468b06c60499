package ism

import "sync/atomic"

// A tray is where a peer leaves letters: signals that wake nobody. A letter is known before
// anything that the peer sends or does afterwards, because a reader that looks there first empties
// the tray. The tray spares the peer a system call and this process a wakeup, for news that is of
// no use before something else has happened.
//
// It is part of a bell's memory, see [bellSegment]:
//
//	offset  size  field
//	   320     4  put      by the peer: letters that it has put in so far
//	   324     4  sent     by the peer: signals that it has sent by socket so far
//	   328   120  reserved
//	   448     4  taken    by the owner: letters that it has taken out so far
//	   452    60  reserved
//	   512  2048  letters  32 of 64 bytes: put % 32 is where the next one goes
//	  2560  1536  reserved
//
// A letter has its length, 0 to 60, in its first byte, 3 reserved bytes, and the payload. It is
// written before put is counted up, and read before taken is. The numbers wrap. Only a peer whose
// Hello has optionTray uses the tray, and counts the signals that it sends.
type tray struct {
	put     atomic.Uint32
	sent    atomic.Uint32
	_       [120]byte
	taken   atomic.Uint32
	_       [60]byte
	letters [trayLetters][letterLen]byte
	_       [1536]byte
}

const (
	trayLetters  = 32
	letterLen    = 64
	letterHeader = 4
	maxLetter    = letterLen - letterHeader

	// optionTray in a Hello says that the sender has a tray, puts letters into the tray of a
	// receiver which says so too, and counts its signals.
	optionTray = 1
)

// leave puts a letter in and reports whether there was room. The caller is the only one, and counts
// in put. The owner of the tray may write anything there at any time.
func (t *tray) leave(put *uint32, payload []byte) bool {
	if len(payload) > maxLetter || *put-t.taken.Load() >= trayLetters {
		return false
	}
	l := &t.letters[*put%trayLetters]
	l[0] = byte(len(payload))
	copy(l[letterHeader:], payload)
	*put++
	t.put.Store(*put)
	return true
}

// take copies the next letter to buf, if there is one. The caller is the only one, and counts in
// taken. The peer may write anything there at any time.
func (t *tray) take(taken *uint32, buf *[maxLetter]byte) (payload []byte, err error) {
	n := t.put.Load() - *taken
	if n == 0 {
		return nil, errAgain
	}
	if n > trayLetters {
		return nil, violation("%d letters in a tray for %d", n, trayLetters)
	}
	l := &t.letters[*taken%trayLetters]
	size := l[0]
	if size > maxLetter {
		return nil, violation("letter of %d bytes, at most %d", size, maxLetter)
	}
	copy(buf[:], l[letterHeader:])
	*taken++
	t.taken.Store(*taken)
	return buf[:size], nil
}

// Leave is [Peer.Send] for a signal that is of no use before the other side learns of something
// else: it wakes nobody. The other side gets it when it next polls, or with the next signal,
// whichever it is of the one or the other kind.
func (p *Peer) Leave(payload []byte) error {
	if p.conn.leave(payload) {
		return nil
	}
	return p.Send(payload)
}

// leave puts a letter into the peer's tray, if it has one and there is room.
func (c *conn) leave(payload []byte) bool {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	return c.sendFD >= 0 && c.tray != nil && c.tray.leave(&c.put, payload)
}

// emptyTray delivers the letters that the peer has left. It runs with conn.recvMu held.
func (p *Peer) emptyTray() error {
	if !p.trays || p.conn.recvFD < 0 { // after close the memory may be gone
		return nil
	}
	for range trayLetters {
		payload, err := p.bell.seg.tray.take(&p.taken, &p.letter)
		if err == errAgain {
			return nil
		}
		if err != nil {
			return err
		}
		p.dev.handler.Signal(p, payload)
	}
	return nil // it fills the tray faster than we can empty it
}

// poll delivers every signal that was sent before the call.
func (p *Peer) poll() {
	if !p.trays {
		p.receive()
		return
	}
	p.conn.recvMu.Lock()
	if p.closing() {
		p.conn.recvMu.Unlock()
		return
	}
	err := p.emptyTray()
	// A number that the peer has not counted to costs us a system call.
	bySocket := err == nil && p.conn.recvFD >= 0 && p.bell.seg.tray.sent.Load() != p.received
	p.conn.recvMu.Unlock()
	switch {
	case err != nil:
		p.fail(err)
	case bySocket:
		p.receive()
	}
}
