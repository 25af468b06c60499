package rnic

import "time"

const (
	// linger is how long a device without users stays open: more connections may follow soon.
	linger = time.Second

	// maxDevices bounds the open devices, and the remembered failures.
	maxDevices = 64

	// retryAfter is how long a device that could not be opened is not tried again.
	retryAfter = 5 * time.Second

	// othersDelay is how long after a change of interfaces link groups look for another device.
	othersDelay = 100 * time.Millisecond

	// probeTimeout bounds how long [Device.Refuses] waits for the peer's kernel, which answers at once.
	probeTimeout = time.Second
)
