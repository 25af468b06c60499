package conn

import "time"

// Limits of a connection, all of them ours.
const (
	// suspectAfter is how long after TCP's FIN, without a flag of the peer, that is asked whether
	// it is there, and suspectUntil bounds how much later it is asked for the last time.
	suspectAfter = 20 * time.Millisecond
	suspectUntil = 320 * time.Millisecond

	// WordTime is between two looks for the flags of a peer that has ended TCP and said nothing.
	// Where a link has failed before the first of two, they are lost. A peer that says them again
	// over another link has found out by then, and done it.
	WordTime = 15 * time.Second

	// ResetPatience is how long after a reset of TCP the flags of a peer of SMC-R may come, and the
	// bytes that it wrote before.
	ResetPatience = 20 * time.Millisecond

	// keepAliveDelay is how old a plain TCP connection becomes before keepalive is turned on, most often.
	keepAliveDelay = 100 * time.Millisecond

	// maxUnreadSweeps is for how many periods more the sweeper waits until all that was written is
	// known to be read, before it gives back the pages that it can and forgets the connection. With
	// one period to become quiet, that is less than a minute.
	maxUnreadSweeps = 3
)
