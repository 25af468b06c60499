package host

// A connOwner is a host as its connections know it.
type connOwner Host

// Add implements [Owner].
func (o *connOwner) Add(c Conn) error { return (*Host)(o).add(c) }

// Forget implements [Owner].
func (o *connOwner) Forget(c Conn) { (*Host)(o).forget(c) }

// Closed implements [Owner].
func (o *connOwner) Closed(c Conn) { (*Host)(o).unused(c) }

// Failed implements [Owner].
func (o *connOwner) Failed(reason string) {
	o.counters.ended(endOfConnection, reason) // rule: TestSMCRDataLies
}

// Trace implements [Owner].
func (o *connOwner) Trace(r Record, message []byte) { o.trace.Add(&traceRecord{Record: r}, message) }
