package engine

import "time"

const (
	// firstTime is how long after it was accepted a connection whose program speaks first is kept for the
	// Proposal of its client. preload/src/hosts.c has half of it for clients that do not wait in connect.
	firstTime = 500 * time.Millisecond
	// piece is how much is moved at a time.
	piece = 64 << 10
	// drainTime is how long bytes of a peer have to reach a program that cannot send to it any more.
	drainTime = 2 * time.Second
	// lastWait bounds the wait for peers when all programs have ended.
	lastWait = 10 * time.Second
)
