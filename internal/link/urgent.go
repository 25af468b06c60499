package link

import "github.com/gosmc/smc/wire/cdc"

// outOfBand is the state of urgent data that messages have to tell. There is at most one byte at a
// time: stream puts nothing after it before the peer has it.
//
//	oobNone     nothing
//	oobPending  every message says that some will come
//	oobPut      so do the messages of the bytes before it; the message of its last byte says
//	            that it is there, and no other one does
type outOfBand struct {
	state oobState
	end   uint64 // of the connection's stream, behind the urgent byte, once it is put
	said  bool   // a message has said something of it
	again bool   // and that one may be sent once more
}

type oobState uint8

const (
	oobNone oobState = iota
	oobPending
	oobPut
)

// ProduceUrgent implements [stream.Carrier]. It is news that does not wait for more.
func (c *Carrier) ProduceUrgent(to cdc.Cursor, flags cdc.ProducerFlags) (rang bool) {
	c.mu.Lock()
	c.put += uint64(cdc.Diff(cursor(c.put, c.size), to, c.size))
	if c.oob.state != oobPending {
		c.oob = outOfBand{} // the one before is there
	}
	switch {
	case flags&cdc.UrgentPresent != 0:
		c.oob.state, c.oob.end = oobPut, c.put
	case flags&cdc.UrgentPending != 0:
		c.oob.state = oobPending
	default:
		c.oob.state = oobNone
	}
	c.urgent = true
	c.poke()
	c.mu.Unlock()
	return false
}

// flags returns the flags of a message after which size bytes more are there, up to posted.
//
// Linux net/smc forgets a byte that it has when a message without new data says that there is one
// to come. News that may have arrived before a link failed is therefore repeated with
// [cdc.UrgentPresent] alone, which is nothing new to a peer that has the byte.
func (o *outOfBand) flags(posted uint64, size uint32) cdc.ProducerFlags {
	var f cdc.ProducerFlags
	switch {
	case o.state == oobPending:
		f = cdc.UrgentPending
	case o.state == oobPut && posted == o.end && size > 0:
		f = cdc.UrgentPending | cdc.UrgentPresent
	case o.state == oobPut && posted < o.end: // rule: TestUrgentFlags
		f = cdc.UrgentPending
	}
	if f != 0 {
		o.said = true
		if o.again && o.state == oobPut {
			f &^= cdc.UrgentPending // rule: TestMoveUrgent
		}
	}
	return f
}

// published are the flags once everything has been said.
func (o *outOfBand) published() cdc.ProducerFlags {
	switch o.state {
	case oobPending:
		return cdc.UrgentPending
	case oobPut:
		return cdc.UrgentPending | cdc.UrgentPresent
	}
	return 0
}
