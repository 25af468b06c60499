package stream

import "time"

const (
	// publishChunk is how many bytes Write copies before it lets the peer see them, so
	// that a large write is copied in and copied out at the same time.
	publishChunk = 64 << 10

	// bufferedCopy is the size of the pooled buffers of WriteTo and ReadFrom.
	bufferedCopy = 256 << 10

	// blockedSlack bounds how much room a blocked writer waits for: the smaller of what
	// it wants to write, 1/16 of the buffer and this. Less would be the silly window
	// syndrome; more would leave the pipeline empty.
	blockedSlack = 64 << 10

	// DefaultSpin is the longest that a Read or Write spins before it parks.
	DefaultSpin = 50 * time.Microsecond

	// spinBackoff is how many waits after a futile spin do not spin; it doubles with each
	// further one, up to spinBackoffMax. A new connection begins as after a futile spin:
	// many live for one exchange with a peer that is not waiting.
	spinBackoff    = 4
	spinBackoffMax = 64

	// spinYield is how often a spinning goroutine lets others run, and yieldBusy is how
	// long that may take before we conclude that the processors are wanted elsewhere.
	spinYield = 2 * time.Microsecond
	yieldBusy = 3 * time.Microsecond
)
