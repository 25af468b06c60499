package ism

import "time"

// Sizes that the layout in docs/shared-memory.md fixes. Changing one needs a new [version].
const (
	// SlotCount is the number of doorbell slots in one bell segment, and so the number of DMBs
	// that a device can own toward one peer at a time.
	SlotCount = 32768

	// MaxSignal is the largest payload of a signal, in bytes.
	MaxSignal = 256

	// HeaderLen is the length in bytes of the CDC area at the start of a DMB element, which is
	// zeroed before the element is used again: Linux net/smc.
	HeaderLen = 32
)

// MaxPeers bounds the peerings of a device, dialled and accepted together. Each has three
// descriptors and two goroutines.
const MaxPeers = 1024

// The processes of one other user, or of a range of users that one may own (subuid(5)), have a part of
// a device, so that others are served, too: as many peerings that they have begun, and one part in
// strangerShare of the memory.
const (
	maxStrangerPeers = 128
	strangerShare    = 4
)

// Our own limits. None is negotiated; a peer may have others.
const (
	// maxHelloing bounds accepted connections whose Hello has not come yet, so that a process that
	// can connect cannot pin descriptors.
	maxHelloing = 64

	// helloTimeout bounds how long a process that has connected may take for its Hello. It is on
	// the same machine; the only delay is that it is busy or stopped.
	helloTimeout = 2 * time.Second

	// dialTimeout bounds connecting (the backlog of the other device may be full) and Hello.
	dialTimeout = 5 * time.Second

	// dialRetry is the longest pause before a full backlog is tried again.
	dialRetry = 50 * time.Millisecond

	// maxHangups is how often a device that ends connections without a word is dialled, at growing
	// intervals: 1+2+4+8+16+32+50+50+50 ms. Dying takes a process less.
	maxHangups = 10

	// acceptBackoff is the longest pause of the listener when the process is out of descriptors.
	acceptBackoff = time.Second

	// maxUnattached bounds the DMBs of one peer that were made and not yet attached. Each holds a
	// descriptor until then; it is the number of handshakes in progress.
	maxUnattached = 4096

	// maxAttaching bounds the Attach messages of ours that await their answer on one peering, so
	// that the answers of the peer always fit its socket buffer. Further calls wait their turn.
	maxAttaching = 64

	// maxQueuedReplies bounds the answers, some with descriptors, that wait because the peer does
	// not read. A peer which keeps to maxAttaching stays far below; beyond, it is dropped.
	maxQueuedReplies = 128

	// maxQueued bounds all control messages that wait because the peer does not read: one Revoke
	// for each of our slots and one Drop for each of the peer's. Beyond, the peer is dropped.
	maxQueued = 2 * SlotCount

	// maxBadTokens is how many attach requests for tokens that never were may come on one
	// peering. A token has 64 random bits, so nobody arrives here by accident.
	maxBadTokens = 8

	// maxRetired is how many tokens of destroyed DMBs are remembered, so that a request that
	// crossed the destruction is not taken for a guess.
	maxRetired = 256

	// maxBatch bounds the messages handled in one go on one peering, in [Device.Poll] and between
	// two looks at the state of the peering. A socket buffer of the default size, 208 KiB, holds
	// fewer than 300 messages.
	maxBatch = 1024

	// maxIdleDMBs, maxIdleBytes and maxIdleTime bound the cache of released DMBs of one peer.
	// The oldest goes first.
	maxIdleDMBs  = 256
	maxIdleBytes = 256 << 20
	maxIdleTime  = 10 * time.Second

	// maxIdleWindows bounds the windows that are kept mapped for a peer that neither uses nor
	// revokes them. An honest one revokes all but maxIdleDMBs of those it has released itself.
	maxIdleWindows = 4096

	// After blockAfter waits in a row that were shorter than shortWait, the side of a peering that
	// follows waits on the processor of the other. It waits in the kernel, with a thread of its
	// own, for at most blockTime at a time. At most maxBlockers threads of a process do that.
	blockAfter  = 4
	shortWait   = 150 * time.Microsecond
	blockTime   = time.Millisecond
	maxBlockers = 2

	// crowdTime is how long the bell goroutine keeps the lead after several have waited at a time.
	crowdTime = 10 * time.Millisecond

	// maxWindow is the largest element of a peer that is mapped, in bytes: the largest that gosmc
	// makes. A peer may announce 512 MiB, every page of which we would pay for.
	maxWindow = 8 << 20

	// minFreeFDs is how many descriptors must be left for a peering to be accepted: it takes six,
	// two of which it keeps, and the program needs some for itself.
	minFreeFDs = 16

	// foreignCloseTime is how long the close of a descriptor that a peer has sent is waited for. At
	// most maxClosing, and one or two for each peer that there is, may go on after that: each has a
	// thread.
	foreignCloseTime = 20 * time.Millisecond
	maxClosing       = 64

	// maxUnread is more messages than there can be in the buffer of a socket. Each takes 768 bytes of it
	// or more, of twice net.core.wmem_max.
	maxUnread = 1024

	// maxFDs is the room for descriptors that a received message has: one more than any
	// message carries, so that too many are seen.
	maxFDs = 3
)

// DefaultBudget is the value of Config.Budget that zero stands for, in bytes.
const DefaultBudget = 4 << 30
