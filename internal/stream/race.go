//go:build race

package stream

import (
	"runtime"
	"unsafe"
)

// The race detector does not see shared mappings, so it cannot know that the actions of a goroutine
// before Write happened before the Read that returns those bytes. Package net tells it with one
// word for all connections; so do we.
var raceSync byte

func raceAcquire() { runtime.RaceAcquire(unsafe.Pointer(&raceSync)) }
func raceRelease() { runtime.RaceReleaseMerge(unsafe.Pointer(&raceSync)) }
