//go:build amd64 && !race

package stream

import "sync/atomic"

// storeRelease stores a word that others load, after everything that this goroutine has stored
// before. Unlike Store of package atomic it does not wait for those stores: that costs a Write of a
// few bytes a fifth of its time, and is only needed where a load follows that must not come first.
//
//go:noescape
func storeRelease(p *atomic.Uint64, v uint64)
