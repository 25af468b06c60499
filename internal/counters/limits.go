package counters

// Limits of ours.
const (
	// maxFallbackReasons bounds the reasons that are counted; peers can make them up.
	maxFallbackReasons = 256

	// maxEndReasons bounds the reasons why handshakes, connections and link groups have ended that
	// are counted.
	maxEndReasons = 256
)
