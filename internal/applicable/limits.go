package applicable

import "time"

// Limits of ours: a machine may have any number of processes and connections.
const (
	maxEnds       = 1 << 16 // ends of connections that are followed at a time
	maxEnded      = 1 << 16 // ends heard of between two looks
	maxPairs      = 4096
	maxNamespaces = 1024
	maxListeners  = 1 << 16
	maxOwned      = 1 << 19 // sockets of all processes
	maxProcesses  = 1 << 14 // processes with a TCP connection
	maxPIDs       = 64      // processes of one side of a pair whose processor time counts

	minEvery = 250 * time.Millisecond // between two looks
	costly   = 10                     // a look rests so many times as long as it took
)

// Limits of the classes of traffic.
const (
	shortLife     = time.Second // mean lifetime of short connections
	shortBytes    = 256 << 10   // a direction has no ring below; mean of both directions together
	shortEnded    = 8           // connections that have ended; fewer say nothing
	bulkSegment   = 8 << 10     // mean bytes of a segment
	idleMessages  = 10          // segments in a second, of both directions
	idleBytes     = 100 << 10   // in a second
	busyProcess   = 0.3         // processors; below, a process waits most of the time
	fewConns      = 2           // fewer than so many at a time: a client that waits for each answer
	manyConns     = 16
	capLow        = 0.75 // uncertainty of the bound that processor time sets
	capHigh       = 1.25
	ownWork       = 0.75 // of a busy server's time outside the kernel; beyond, it does more than in its row
	leftOfKernel  = 0.1  // of the time in the kernel is left without TCP
	minWorthwhile = 1.1  // gains below are not worth a change
)
