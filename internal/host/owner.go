package host

import (
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/wire/clc"
)

// A connOwner is a host as its connections know it.
type connOwner Host

// Add implements [Owner].
func (o *connOwner) Add(c conn.Conn) error { return (*Host)(o).add(c) }

// Forget implements [Owner].
func (o *connOwner) Forget(c conn.Conn) { (*Host)(o).forget(c) }

// Closed implements [Owner].
func (o *connOwner) Closed(c conn.Conn) { (*Host)(o).unused(c) }

// FellBack implements [Owner].
func (o *connOwner) FellBack(r clc.Reason) { o.counters.fallback(r) }

// Failed implements [Owner].
func (o *connOwner) Failed(reason string) {
	o.counters.ended(endOfConnection, reason) // rule: TestSMCRDataLies
}

// Trace implements [Owner].
func (o *connOwner) Trace(r conn.Record, message []byte) {
	o.trace.Add(&traceRecord{Record: r}, message)
}
