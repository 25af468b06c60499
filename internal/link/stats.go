package link

import "sync/atomic"

// Stats counts the messages and bytes of a link.
type Stats struct {
	SentCDC, ReceivedCDC uint64 // messages
	SentLLC, ReceivedLLC uint64
	SentBytes            uint64 // by WRITE
	UnknownToken         uint64 // CDC messages of no connection, dropped
	Stale                uint64 // CDC messages that were overtaken, dropped
	Malformed            uint64 // messages that are neither, dropped
}

// counters is [Stats] while it is counted.
type counters struct {
	sentCDC, receivedCDC, sentLLC, receivedLLC, sentBytes, unknownToken, stale, malformed atomic.Uint64
}

// Stats returns the link's counters.
func (l *Link) Stats() Stats {
	c := &l.stats
	return Stats{
		SentCDC: c.sentCDC.Load(), ReceivedCDC: c.receivedCDC.Load(),
		SentLLC: c.sentLLC.Load(), ReceivedLLC: c.receivedLLC.Load(),
		SentBytes: c.sentBytes.Load(), UnknownToken: c.unknownToken.Load(),
		Stale: c.stale.Load(), Malformed: c.malformed.Load(),
	}
}
