package procs

import "time"

const (
	// As long as processes end before they could be asked a supervisor that knows none looks for
	// its programs again, so many times, ever less often: for no more than two seconds.
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
	maxLooks   = 26
)
