package ring

import "time"

const (
	// bulkAfter is how many bytes a direction carries in-band before many bytes are a reason for a
	// ring. To make one costs as much as to send some 100 KiB in-band.
	bulkAfter = 256 << 10

	large  = 16 << 10 // a write that is worth a ring, after bulkAfter
	streak = 16       // writes without a read that are, too
	turns  = 64       // writes that come after a read are worth one without bulkAfter

	// makeBytes is the size of a ring that this end makes. More would not stay in a processor's cache.
	makeBytes = 256 << 10

	// giftBytes is the size of each ring of the agent's memory, as internal/introduce makes it.
	giftBytes = 256 << 10

	leastBytes = 4 << 10  // of a ring that a peer makes
	mostBytes  = 16 << 20 // the same

	// maxBytes bounds the data of all rings that the process has mapped. Directions beyond it stay
	// in-band.
	maxBytes = 512 << 20

	// maxRings bounds their number: each is a mapping, of which a process has some 65,000.
	maxRings = 4096

	// smallMark is the largest write that is sent as a whole with the first mark, so that no other
	// write comes into the middle of it.
	smallMark = 2 << 10

	// markRoom is more of a socket's buffer than a mark and a token take.
	markRoom = 8 << 10

	// patience is how many writes a ring waits for a reader that may have earlier bytes to read.
	patience = 1 << 16

	// missedMost is how many times a reader may not have its ring from the beginning, until none is
	// offered any more.
	missedMost = 64

	drainTurns = 256 // of giving the processor to a reader that is about to have read everything

	// piece is how much of a large write is copied before the reader hears of it.
	piece = 64 << 10

	// round is the memory that a ring uses beyond its largest write as long as its reader keeps up.
	round = 16 << 10

	// fullTokens bounds the tokens that are sent at once for a full ring. Two are enough.
	fullTokens = 64

	// vain is how many times in a row a peer may have a call look again for nothing. One that keeps
	// to the rules does so once or twice.
	vain = 1000

	// goneTime is how long a peer may have been gone before a write that sends no token notices.
	goneTime = 4 * time.Millisecond

	// spinTime is how long a reader looks into an empty ring before it sleeps, where that has paid.
	// To be woken on another processor takes half of that on a virtual machine, and the other end may have
	// to be, too.
	spinTime = 100 * time.Microsecond

	spinPays   = 8  // looks in a row that find nothing until looking is seldom
	spinTries  = 4  // looks in a row then: the first one finds an end that sleeps still
	spinSeldom = 64 // waits between these
)
