package ism

import "sync/atomic"

// Stats are the counters of a device. Those marked "now" go up and down; the others count since Open.
type Stats struct {
	PeersDialed   int64 // now
	PeersAccepted int64 // now
	DMBs          int64 // now, in use
	CachedDMBs    int64 // now, released and kept to be used again
	Bytes         int64 // now, of all DMBs, at their full size
	Windows       int64 // now, in use
	MappedBytes   int64 // now, of all memory of peers that is mapped here

	DMBsReused        uint64 // NewDMB calls that the cache has answered
	DMBsEvicted       uint64 // DMBs that left the cache unused
	DMBsRevoked       uint64 // DMBs that were destroyed while the peer had them
	WindowsAttached   uint64 // Attach calls that have asked the peer
	WindowsReattached uint64 // Attach calls that have found the memory here
	Rings             uint64 // ring functions called
	BadTokens         uint64 // attach requests of peers that were refused
	OtherUsers        uint64 // peerings that were refused because of the user, on either side
	Refused           uint64 // peerings that we have refused, for any reason
	Violations        uint64 // peerings that were ended because the peer broke the rules
}

// stats has the counters that Stats reports.
type stats struct {
	dmbs, cached, windows                     atomic.Int64
	reused, evicted, revoked                  atomic.Uint64
	attached, reattached                      atomic.Uint64
	rings                                     atomic.Uint64
	badTokens, otherUsers, refused, violation atomic.Uint64
}

// Stats returns the counters. They are not read at one instant.
func (d *Device) Stats() Stats {
	s := &d.stats
	d.mu.Lock()
	dialed, accepted := len(d.dialed), len(d.accepted)
	d.mu.Unlock()
	return Stats{
		PeersDialed:       int64(dialed),
		PeersAccepted:     int64(accepted),
		DMBs:              s.dmbs.Load(),
		CachedDMBs:        s.cached.Load(),
		Bytes:             d.budget.Load(),
		Windows:           s.windows.Load(),
		MappedBytes:       d.mapped.Load(),
		DMBsReused:        s.reused.Load(),
		DMBsEvicted:       s.evicted.Load(),
		DMBsRevoked:       s.revoked.Load(),
		WindowsAttached:   s.attached.Load(),
		WindowsReattached: s.reattached.Load(),
		Rings:             s.rings.Load(),
		BadTokens:         s.badTokens.Load(),
		OtherUsers:        s.otherUsers.Load(),
		Refused:           s.refused.Load(),
		Violations:        s.violation.Load(),
	}
}
