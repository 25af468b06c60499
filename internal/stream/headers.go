package stream

import "github.com/gosmc/smc/wire/cdc"

// PeerHeader samples the header of our element, which the peer writes. The consumer cursor is
// sampled first: a window worked out from a consumer older than the producer is too small, never
// too large. Nothing is checked, it waits for nobody, and it may be called while data flows; not
// once our element may be gone.
func (c *Conn) PeerHeader() (h cdc.Header) {
	h.Consumer, h.ProducerFlags, h.ConnFlags = cdc.UnpackConsumer(c.inCons.Load())
	var urgent cdc.ProducerFlags
	h.Producer, urgent = cdc.UnpackUrgent(c.inProd.Load())
	h.ProducerFlags |= urgent
	return h
}

// OwnHeader is PeerHeader for the header that the peer has from us: not to be called after SendLast
// or Detach.
func (c *Conn) OwnHeader() cdc.Header { return c.carrier.Published() }
