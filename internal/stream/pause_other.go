//go:build !amd64 && !arm64

package stream

import "sync/atomic"

// pause passes a little time where there is no instruction for it: an atomic load is
// not optimised away and disturbs nobody.
func pause(n uint32) {
	for range n {
		pauseWord.Load()
	}
}

var pauseWord atomic.Uint32
