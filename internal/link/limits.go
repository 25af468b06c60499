package link

import "time"

// Numbers that peers count on.
const (
	// receives is how many messages a peer can send before we have looked at the first: as Linux has it.
	receives = 48

	// sends is how many messages may be on their way, CDC and LLC together. A Linux peer posts 48
	// receives, and sends no more than 16 itself.
	sends = 16

	// receiveLen is the longest message that is taken. LLC messages of version 2 may be of several KiB.
	receiveLen = 8 << 10
)

// Limits of ours.
const (
	// llcReserve is how many of sends CDC leaves to LLC: an answer to TEST LINK must not wait for
	// connections.
	llcReserve = 2
	cdcSends   = sends - llcReserve

	// llcSends is how many LLC messages may be on their way, each in a buffer of its own.
	llcSends = 4

	// maxLLCQueue is how many LLC messages may wait to be sent, and how many may wait to be polled. Exchanges
	// are one at a time, so that a handful is usual.
	maxLLCQueue = 64

	// maxPost is how many bytes one post takes at most. It is the turn that a queue pair has among
	// others, see package rdma, and the number of bytes that stream lets the peer see at a time.
	maxPost = 64 << 10

	// corkBytes is how many bytes go out at once though a message of the connection is on its way.
	// Fewer wait for its completion, and more may join them.
	corkBytes = 16 << 10

	// probeBytes is how much of the peer's element is kept free as long as more may be written, to
	// ask with: see probe.go. A cache line, so that the bytes after it are aligned as before.
	probeBytes = 64

	// DefaultSendBuffer is the size of a send ring unless the owner says, where the peer's element
	// is not smaller. It covers the bytes that a device has on their way; pages that are never
	// written take no memory.
	DefaultSendBuffer = 1 << 20
	minSendBuffer     = 16 << 10
	maxSendBuffer     = 512 << 20

	// keptBytes is how much of a buffer keeps its pages for the next connection: for one that says
	// little they are all it needs, and to give pages back and touch others takes longer than to
	// clear these.
	keptBytes = 64 << 10

	// maxIdleRings is how many bytes of send rings of former connections a group keeps for new
	// ones, counting only the parts that have pages.
	maxIdleRings = 4 << 20

	// maxTokens is how many connections a group can have. A link group has 255 at most; those that end
	// take a while.
	maxTokens = 1 << 12

	// drainTime is how long a message that the peer knows to have arrived is waited for where that
	// matters: another goroutine may be about to take it, and have no processor.
	drainTime = 100 * time.Millisecond

	// maxOvertaken is how many messages of a group may wait for others. The connection of one more ends.
	maxOvertaken = 1 << 12

	// maxHeard is how many validation messages that nothing has followed are remembered for a
	// connection, though their links have failed since. Others are as many as there are links.
	maxHeard = 8

	// pollBatch is how many completions are taken at a time.
	pollBatch = 32
)

// How a link's memory is laid out: heads of receives, places for CDC messages, buffers for LLC
// messages, tails of receives. An idle link touches the first page only.
const (
	headLen = 64 // a CDC message, or a short LLC message, in a cache line
	tailLen = receiveLen - headLen
	cdcLen  = 64

	headsAt = 0
	cdcAt   = headsAt + receives*headLen
	llcAt   = cdcAt + cdcSends*cdcLen + (llcReserve * cdcLen) // on a page
	tailsAt = llcAt + llcSends*receiveLen
	areaLen = tailsAt + receives*tailLen
)
