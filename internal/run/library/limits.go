package library

import "time"

const (
	// A copy of the library: how long a program waits for a process that removes one, which takes
	// milliseconds, and how often it looks for programs that use it.
	holdTimeout = 2 * time.Second
	holdPause   = 2 * time.Millisecond
	copyLooks   = 8
	copyPause   = 20 * time.Millisecond
	writeTries  = 100 // of a file, while others remove its directory at the same time
)
