package stream

import "time"

const (
	// publishChunk is how many bytes Write copies before it lets the peer see them, so
	// that a large write is copied in and copied out at the same time.
	publishChunk = 64 << 10

	// noMemoryLen is the size of the buffer that stands in for the buffer of a peer which is gone.
	noMemoryLen = 4 << 10

	// bufferedCopy is the size of the pooled buffers of WriteTo, and how much ReadFrom takes
	// from a file at a time.
	bufferedCopy = 256 << 10

	// blockedSlack bounds how much room a blocked writer waits for: the smallest of the bytes that
	// it wants to write, 1/16 of the buffer and this. Less would be the silly window syndrome; more
	// would leave the pipeline empty.
	blockedSlack = 64 << 10

	// DefaultSpin is the longest that a Read or Write spins before it parks.
	DefaultSpin = 50 * time.Microsecond

	// A connection begins without spinning: many live for one exchange with a peer that is
	// not waiting. After trialSleeps sleeps in a row, each shorter than shortSleep (most of
	// which is the time it takes to wake somebody), it tries to spin.
	trialSleeps = 8
	shortSleep  = 150 * time.Microsecond

	// spinCredit is how much time a connection may spend on futile spins before it stops
	// spinning. It is long enough for the system to notice that both ends are busy on one
	// processor while another one is idle, and to move one of them. A spin that finds
	// something earns spinEarned back.
	spinCredit = 5 * time.Millisecond
	spinEarned = 100 * time.Microsecond

	// trialHits is how many spins of a trial have to find something. At most maxTrials waiters
	// of a process are on trial at a time, two being both directions of a connection whose
	// ends are in one process; a trial that is not over after trialTime holds up nobody.
	trialHits = 64
	maxTrials = 2
	trialTime = 100 * time.Millisecond

	// crowd is how many others may be parked, waiting for the same peer, for a waiter to spin: the
	// other direction of its connection.
	crowd = 1

	// trialPause is how long a waiter that was not worth it does not try again, and how long
	// nobody in the process does; the latter doubles up to trialPauseMax while trials fail.
	trialPause    = 10 * time.Millisecond
	trialPauseMax = time.Second

	// After promptWaits waits that ended within the first promptLooks looks, a reader that writes
	// nothing lets the writer go on for lingerTime before it takes the bytes that have come. A wait
	// that takes longer halves their number.
	promptWaits = 32
	promptLooks = 8
	lingerTime  = 2 * time.Microsecond

	// spinYield is how often a spinning goroutine lets others run, and yieldBusy is how
	// long that may take before we conclude that the processors are wanted elsewhere.
	spinYield = 2 * time.Microsecond
	yieldBusy = 3 * time.Microsecond
)
