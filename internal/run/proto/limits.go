package proto

import "time"

const (
	// Letterboxes is how many a supervisor has. Ends of different connections come into different
	// ones mostly, so that a program that takes the first end of one gets its own.
	Letterboxes = 16
	// TalkTimeout bounds how long a program of package smc waits for a supervisor;
	// preload/src/supervisor.c has the same.
	TalkTimeout = 2 * time.Second
)
