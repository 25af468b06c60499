package dissect

import "time"

// Limits of the tracker. A table that is full drops the entry that was used least recently; how many
// were dropped is counted in [Summary.Evicted].
const (
	// maxConns bounds the connections that are remembered. One takes some 2 KiB, more while its handshake
	// lasts.
	maxConns = 1 << 14
	// maxFlows bounds the directions of queue pairs that are remembered.
	maxFlows = 1 << 13
	// maxGroups bounds the link groups that are remembered.
	maxGroups = 1 << 10
	// maxLinksSeen bounds the links of one group that are remembered, of all that it ever had.
	maxLinksSeen = 16
	// maxAllRegions bounds the buffers that are remembered, of all links together.
	maxAllRegions = 1 << 17
	// maxRegions bounds the buffers of one host that are remembered on one link. Hosts have at most
	// 255 (RFC 7609 p.113, SMCv2 p.85); there is room for as many that were deleted.
	maxRegions = 2 * 255
	// maxCalls bounds the LLC requests of a link group that await a reply.
	maxCalls = 16

	// maxStream bounds the data that is remembered of one direction of a handshake, in bytes: a
	// Proposal and a Confirm of the largest size.
	maxStream = 2 * 4096
	// maxHeld bounds the bytes, and maxHeldSegments the segments, that wait for one before them.
	maxHeld         = 2 * maxStream
	maxHeldSegments = 16
	// maxBuffered bounds the bytes of handshakes that are remembered, of all connections together.
	maxBuffered = 16 << 20
	// maxMessage bounds a SEND that is put together, in bytes: SMCv2 p.80 has buffers of 8192 for LLC.
	maxMessage = 8192

	// maxEarly bounds the tokens of unknown connections that are remembered, of one direction of a
	// link group.
	maxEarly = 256
	// maxSuspicions bounds those that wait for one direction of a queue pair.
	maxSuspicions = 8
	// maxReasons bounds the reasons of Declines that are counted one by one.
	maxReasons = 256
	// maxOtherLinks bounds the link types that are not understood and are named.
	maxOtherLinks = 8
	// maxProblems bounds the problems of one event.
	maxProblems = 8
)

const (
	// silence is how long something may be due before it is called a timeout. Linux net/smc waits
	// 6 s for CLC messages and 2 s for most LLC replies; RFC 7609 C.7 leaves it to the hosts.
	silence = 10 * time.Second

	// MaxGap is the largest number of PSNs missing that is taken for a gap in a sequence of packets.
	MaxGap = 1 << 20
	// maxBehind is how far, in PSNs, a packet may be behind the newest and still be taken for a
	// retransmission. Hosts have far fewer packets on the way.
	maxBehind = 1 << 15
)
