package link

import "github.com/gosmc/smc/wire/cdc"

// This file has the bytes that are kept back when the peer's element is full, and asked with.
//
// Linux's net/smc says once how far its program has read, and never again: a consumer cursor that
// was on its way over a link which failed is lost. It ignores [cdc.CursorUpdateRequested] as long
// as its program reads nothing (smc_cdc_msg_recv_action sends only data, smc_tx_consumer_update is
// called by reads), and the failover validation message has no cursors. If the element was full and
// the program has read everything, then the program waits for bytes, and we wait for room.
//
// So the last probeBytes of the element are not written, as long as the application may have more
// to say. Where a connection falls silent after a failure, the carrier sends one of the bytes that
// it keeps back, as TCP probes a window of zero. The program of a peer that has read everything
// reads the byte, and with the flag that read makes the kernel send its cursor. Where the program
// does not read, the byte waits in the element, with the flag, for the time when it does. Until
// then it says nothing (observed; see docs/interop.md): a cursor that was lost and a program that
// does not read look the same, so nobody is given up for not answering. A peer whose program is
// gone has ended TCP: see Conn.awaitWord of package host. The flag is repeated in each message
// until the cursor moves, as Linux heeds the newest message only.
//
// The lost cursor may be missed long after the failure, by the first bytes for which there seems to
// be no room. So from a failure on a connection is looked at whenever it keeps bytes back, also one
// at which nobody looked any more.

// A probe is the part of the reserve that is sent while the consumer cursor stays where it is.
type probe struct {
	at      cdc.Cursor // the consumer cursor for which bytes were sent
	granted uint32     // how many; up to probeBytes
}

// consumer returns the peer's consumer cursor.
func (c *Carrier) consumer() cdc.Cursor {
	at, _, _ := cdc.UnpackConsumer(c.inCons.Load())
	return at
}

// sendable returns how many of the bytes that were put may be posted now. c.mu is held.
func (c *Carrier) sendable() uint64 {
	n := c.put - c.posted
	// Of an urgent byte the peer is told as soon as may be.
	if n == 0 || c.conn&(cdc.DoneWriting|cdc.Closed|cdc.Abort) != 0 || c.oob.state == oobPut { // rule: TestProbeEnd, TestProbeUrgent
		return n
	}
	at := c.consumer()
	used, err := cdc.Check(at, cursor(c.posted, c.size), c.size, c.size)
	if err != nil {
		return n // a cursor that the stream refuses: it ends the connection
	}
	limit := uint64(c.size - probeBytes) // elements have 16 KiB and more
	if c.probe.at == at {
		limit += uint64(c.probe.granted)
	}
	return min(n, limit-min(limit, uint64(used))) // rule: TestProbe: min(n, -> max(n,
}

// keepBack is sendable, and if that is nothing, has news of the peer look again. c.mu is held.
func (c *Carrier) keepBack() uint64 {
	n := c.sendable()
	if n > 0 || c.put == c.posted {
		return n
	}
	c.held.Store(true) // before looking again: a goroutine with news looks afterwards
	if c.resting.Load() && c.resting.Swap(false) {
		c.group.watch(c) // rule: TestProbeAfterRest
	}
	return c.sendable()
}

// grant has one of the bytes that are kept back go out. c.mu is held.
func (c *Carrier) grant() {
	if c.put == c.posted || c.sendable() > 0 {
		return
	}
	if at := c.consumer(); c.probe.at != at {
		c.probe = probe{at: at}
	}
	if c.probe.granted < probeBytes { // rule: TestProbe
		c.probe.granted++
		c.asked.Add(1)
	}
}

// probing reports whether the peer has not moved its cursor since it was asked with a byte. c.mu is held.
func (c *Carrier) probing() bool { return c.probe.granted > 0 && c.probe.at == c.consumer() }

// tell tells the connection of news of the peer: its stream, and the carrier, if bytes are kept
// back for which there may be room now.
func (c *Carrier) tell() {
	if c.held.Load() && c.held.Swap(false) { // rule: TestProbeWithoutWriter: c.held.Load() && c.held.Swap(false) -> false
		c.mu.Lock()
		c.poke()
		c.mu.Unlock()
	}
	c.wake()
}
