package uverbs

import "time"

// abiVersion is the version of the kernel's user verbs that this package speaks:
// IB_USER_VERBS_ABI_VERSION.
const abiVersion = 6

// rxeABI is the version of the layout that rxe shares with processes: RXE_UVERBS_ABI_VERSION.
const rxeABI = 2

// Bounds of this package.
const (
	// MaxSGE is how many pieces of memory a work request can name, as in package rdma.
	MaxSGE = 2

	// MaxMessage is the size of the largest message in bytes, IBTA 9.7.
	MaxMessage = 1 << 31

	maxQueueDepth = 1 << 14   // work requests of one queue
	maxCQDepth    = 1<<20 - 1 // completions of one completion queue
	maxRing       = 128 << 20 // bytes of a queue that the kernel shares: 2^20 completions of 64 bytes, below
	maxRegion     = 1 << 40   // bytes of a memory region
	maxDevices    = 64        // that are listed
	maxPorts      = 255       // of a device; a port number has 8 bits
	maxGIDs       = 1024      // of a port that are listed; rxe has 1024 places
	maxAttribute  = 4096      // bytes of a file of sysfs
	maxTries      = 100       // of a command that a signal has interrupted, or that the kernel puts off

	// removalCheck is how often [Context.NextEvent] looks whether the device is still there. A
	// driver without support for removal during use, as rxe is one, sends no event.
	removalCheck = 500 * time.Millisecond
)
