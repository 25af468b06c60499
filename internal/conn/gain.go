package conn

import (
	"sync/atomic"
	"time"
)

// A Verdict is told, at most once, whether a connection gained by leaving TCP.
type Verdict interface {
	// Grown says that it has carried as much as the move cost.
	Grown()

	// Short says that it has ended, and has not.
	Short()
}

// A connection gains when it has carried this much. Making one costs some 100 µs of processor time
// more than TCP; a turn, a write and a read that comes after it, saves 10 to 20 µs, and the copying
// of a kilobyte a quarter of a microsecond.
const (
	gained     = 64                     // points; of these
	turnPoints = 8                      // a turn has so many
	readPoints = 1                      // and another read so many
	gainBytes  = 256 << 10              // so many bytes, read and written, are enough
	copyBytes  = 16 << 10               // of a connection whose turns were not counted: fewer
	copyAge    = 100 * time.Millisecond // in less time are too short
)

// A gain weighs the bytes that a connection carries until it is known whether it was right to move
// it.
type gain struct {
	verdict Verdict       // not nil while points are below gained
	points  atomic.Uint32 // gained and more: it is decided, or nobody wants to know
	written atomic.Uint64 // bytes, when something was read last
	copied  atomic.Bool   // by WriteTo, which does not tell its turns
}

// begin has v be told; nil: nobody.
func (g *gain) begin(v Verdict) {
	if g.verdict = v; v == nil {
		g.points.Store(gained)
	}
}

// isOpen reports whether it is not decided.
func (g *gain) isOpen() bool { return g.points.Load() < gained }

// read weighs one read. in and out are the bytes so far.
func (g *gain) read(in, out uint64) {
	points := uint32(readPoints)
	if g.written.Swap(out) != out {
		points = turnPoints // rule: TestGain
	}
	if in+out >= gainBytes { // rule: TestGain
		points = gained
	}
	if sum := g.points.Add(points); sum >= gained && sum-points < gained {
		g.verdict.Grown()
	}
}

// end decides about a connection that the application has closed.
func (g *gain) end(in, out uint64, age time.Duration) {
	if g.points.Swap(gained) >= gained { // rule: TestGain
		return
	}
	switch bytes := in + out; {
	case bytes >= gainBytes:
		g.verdict.Grown() // rule: TestGain
	case g.copied.Load() && (bytes >= copyBytes || age >= copyAge): // rule: TestGain
	default:
		g.verdict.Short()
	}
}
