package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// readable reports whether a descriptor becomes readable in a time.
func readable(fd int, wait time.Duration) (yes bool, err error) {
	for end := time.Now().Add(wait); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, time.Until(end)).Milliseconds()))
		if err != unix.EINTR { // as the runtime interrupts threads
			return n == 1, err
		}
	}
}
