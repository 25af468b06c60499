package smcr

import (
	"time"

	"github.com/gosmc/smc/wire"
)

// Limits of SMC-R. The ones that Linux net/smc sets come first.
const (
	// maxGroups bounds the link groups, those included whose first contact is under way.
	maxGroups = 4096

	// groupEndTime is how long a host that ends waits for its link groups to end in order: DELETE
	// LINK, and its acknowledgement.
	groupEndTime = time.Second

	// pendingCloseTime is how long Close waits for the acknowledgement of written bytes while none
	// comes, as Linux net/smc has it, and lastBytesTime bounds the wait as a whole.
	pendingCloseTime = 2 * time.Second
	lastBytesTime    = 30 * time.Second

	// filteredAfter is how long a link was waited for that did not come about, at least, for the
	// peer to count as one to which RDMA does not get through. That is tried again after
	// minFilteredPause, then twice as long, up to maxFilteredPause: each time one connection waits
	// two seconds. maxFilteredPeers bounds how many are remembered.
	filteredAfter    = 250 * time.Millisecond
	minFilteredPause = 10 * time.Second
	maxFilteredPause = 5 * time.Minute
	maxFilteredPeers = 1024

	// closeAskTime is how often the peer of a link group is asked whether it is there, while
	// connections that are closed await its last word. Those wait for a minute at most.
	closeAskTime = 2 * time.Second

	// knockAfter is how long nothing has come over a link whose peer is suspected to be gone,
	// before its kernel is asked. TEST LINK decides after two seconds.
	knockAfter = 20 * time.Millisecond

	// answerTime is how long a peer that was asked whether it is there may take to answer, before a
	// server has its connections make another link group. TEST LINK alone would take two seconds to
	// say so.
	answerTime = 250 * time.Millisecond

	// lastAckTime is how long a link stays after its group has ended, so that the last messages to
	// come are acknowledged. Package rdma delays acknowledgements for up to 500 microseconds.
	lastAckTime = 5 * time.Millisecond

	// lastWordTime is the same for a peer that may be soft-RoCE, unless the group was idle: Linux
	// aborts connections after its own DELETE LINK, and soft-RoCE sends that again for ever if nobody
	// acknowledges it. Programs of the peer hang in close then, and its device cannot be removed.
	// Numbers of its queue pairs are given in turn, from 16 to 2^20 (Linux rxe_param.h); those below
	// softRoCEQPNs count as such. Package rdma has none of those.
	lastWordTime          = 250 * time.Millisecond
	softRoCEQPNs wire.QPN = 1 << 16

	// maxIdleRMBs bounds the bytes of RMBs that a link group keeps for connections to come, whose
	// pages are given back, except in their first 64 KiB. A new one takes an exchange of messages
	// with the peer.
	maxIdleRMBs = 256 << 20

	// rnicPatience is how long an RNIC may be down before its links end, whose packets are sent
	// again for four seconds.
	rnicPatience = time.Second

	// shedTime is how long a connection for which there is no memory waits for the memory of an
	// idle link group, whose peer may not answer.
	shedTime = 250 * time.Millisecond

	// idleWeight is the weight of a connection beyond the bytes that it has written, where links
	// are to have the same bytes to carry.
	idleWeight = 64 << 10

	// routesPause is how long a link group does not ask the kernel for routes after it has.
	routesPause = 500 * time.Millisecond

	// stallCheck is how often the links of a group are looked at that has several, and stallWatch
	// how often while nothing comes over one of them though an acknowledgement is overdue.
	// maxStalls is how often the packets of that may be sent again, while something comes over
	// another one: with the timeout of verbs, 134 ms and four times that, some 700 ms.
	stallCheck = 300 * time.Millisecond
	stallWatch = 50 * time.Millisecond
	maxStalls  = 2
)
