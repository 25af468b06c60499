//go:build !amd64 || race

package stream

import "sync/atomic"

// storeRelease stores a word that others load, after everything that this goroutine has stored before.
func storeRelease(p *atomic.Uint64, v uint64) { p.Store(v) }
