package rdma

import (
	"time"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// Limits that the specification sets.
const (
	pkeyBits = 0x7fff // the bits of two P_Keys that must match: all but the membership, IBTA 10.9.3

	maxWriteLen = 1 << 31 // bytes of a WRITE of the peer: IBTA 9.7.4.1.6

	retryForever = 7  // RNR retry count that means no limit: IBTA 9.7.5.2.8
	maxRetry     = 7  // 3 bits
	maxTimeout   = 31 // 5 bits
	maxRNRTimer  = 31 // 5 bits

	// ackTimeoutUnit is the local ACK timeout of code 0 before shifting: IBTA 11.2.4.2.
	ackTimeoutUnit = 4096 * time.Nanosecond

	// firstQPN is the first number for queue pairs of users; 0 and 1 are for management, and
	// rxe's begin here too.
	firstQPN wire.QPN = 16

	// firstOwnQPN is the first number of a device that shares its port with nobody. Soft-RoCE has
	// the lower ones, in turn from 16, by which package smcr tells the two apart.
	firstOwnQPN wire.QPN = 1 << 16
)

// Limits of ours.
const (
	maxQueueDepth = 1 << 15 // work requests of a queue; rxe has 2^14
	maxCQDepth    = 1 << 22 // completions of a queue; Linux asks for 32,766
	maxRegion     = 1 << 40 // bytes of a memory region
	maxRegions    = 1 << 20 // of a protection domain
	maxQPs        = 1 << 16 // of a device
	maxSGE        = verbs.MaxSGE

	// The window: packets that may be unacknowledged. It starts small, doubles while all goes well
	// and halves when packets are lost. The floor is one super-packet of the socket: less would not
	// reduce the number of packets that a loss makes us repeat. The ceiling keeps a burst below the
	// 1,000 packets of a tap device's queue.
	startWindow = 64
	minWindow   = 64
	maxWindow   = 768
	// windowAcks is how many acknowledgements a window asks for: with two the window is nearly used up when
	// the first one comes, and the sender waits.
	windowAcks = 4
	// minKeptWindow is the floor toward a peer that keeps packets that come after a gap.
	minKeptWindow = 384
	// nakAgain is how many packets beyond a gap come before it is told once more: the NAK, or the
	// packet that it asked for, was lost. More than rxe can have on their way, which is 128.
	nakAgain = 192
	// lossWindow is the window after a timeout, when nothing at all came back.
	lossWindow = 2
	// windowStep is by how many packets the window grows per window acknowledged, once it has
	// been halved.
	windowStep = 16

	// The budget of a path: the packets that the queue pairs to one address may have on their way
	// together. Its ceiling equals the ceiling of one window. The floor keeps an answer coming,
	// from which to learn.
	minBudget = 2
	maxBudget = maxWindow
	// maxFlight is the same for all paths of a device; a path that has less than its part of it on
	// its way does not wait for room. It keeps acknowledgements, which come back all to one socket,
	// from filling it: they take some 1 KiB each there.
	maxFlight = 4 * maxBudget
	// turnBytes is how much a queue pair may send while others wait for their turns: a WRITE of 64
	// KiB, with a short message behind it, as SMC-R has them. turnPackets is turnBytes in packets
	// of 1024 bytes.
	turnBytes   = 64 << 10
	turnPackets = turnBytes / 1024
	// firstTurn is the turn of a queue pair whose peer has not answered yet, or no more. Peers that are gone
	// hold so little of the budget that others hardly notice.
	firstTurn = 4
	// expressPackets is how many packets a message may have that does not wait for its turn; all
	// such messages together may go beyond the budget by one expressPart-th.
	expressPackets = 2
	expressPart    = 4

	// maxRun is how many packets are sent again for one NAK by a peer that keeps others: the most of a
	// super-packet.
	maxRun = 64

	// keepAhead is how far beyond the expected packet others are kept. A power of two, so that PSNs
	// go round evenly, and no less than the largest window of peers like us.
	keepAhead = 1024
	// maxKeepers is how many queue pairs of a device can keep packets at a time. With the largest path
	// MTU, which bounds a packet that is kept, each of them has 4 MiB.
	maxKeepers = 32
	// minKept is the least memory for a packet that is kept: the smallest path MTU.
	minKept = 256

	// ackAfterPackets is how many packets of data may go out before an acknowledgement that waits,
	// and maxAckDelay how long it may wait for them. The shortest timeout that a peer of verbs is
	// likely to have is code 14, 67 ms; Linux SMC has 134 ms.
	ackAfterPackets = 16
	// ackAfterAsked is how many messages may wait for it. A peer has only so many on their way
	// (SMC-R: 16), and others behind them.
	ackAfterAsked = 4
	maxAckDelay   = 100 * time.Microsecond
	// maxHold is how long answers are held back where the peer may have gone on elsewhere: less
	// than the timeout of Linux SMC.
	maxHold = 100 * time.Millisecond
	// drainPause is between two looks whether another goroutine has left the completion handler.
	drainPause = 20 * time.Microsecond

	// The probe: when nothing has come back for a few round trips, the oldest packet is sent
	// again with the acknowledge bit, well before the verbs timeout. It does not count as a retry.
	firstProbe = 10 * time.Millisecond // while the round trip is not known
	minProbe   = 250 * time.Microsecond
)
