package metrics

import "time"

// Limits of this package; all of them are ours.
const (
	// maxHosts bounds the hosts whose counters are kept, those that have ended included. The sums
	// stay complete beyond it.
	maxHosts = 4096

	// minInterval is how long an answer is good for: more scrapes do not ask the hosts more often.
	minInterval = time.Second

	// gatherTimeout bounds the wait for all hosts of one snapshot.
	gatherTimeout = 10 * time.Second

	// Bounds of the HTTP server.
	maxHeader     = 16 << 10 // bytes
	maxScrapers   = 16       // connections at a time
	headerTimeout = 5 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
)
