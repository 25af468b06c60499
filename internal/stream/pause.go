//go:build amd64 || arm64

package stream

// pause tells the processor that this is a spin loop: n times PAUSE on amd64, YIELD on
// arm64. It gives a sibling hardware thread the execution units and saves power.
//
//go:noescape
func pause(n uint32)
