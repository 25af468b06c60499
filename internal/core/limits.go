package core

import (
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// Limits that the specifications set.
const (
	// maxConnsFloor is the least that a host may allow: "the valid range for maximum
	// connections per LG is 16 to 255" (SMCv2 p.43). More does not fit the field.
	maxConnsFloor = 16
	// maxLinksFloor and maxLinksCeiling bound the links of a link group in version 2.1:
	// "the valid range for Maximum Links per LG is 1 or 2" (SMCv2 p.43).
	maxLinksFloor   = 1
	maxLinksCeiling = 2
)

// Limits that are ours, most of them after Linux.
const (
	// HandshakeTimeout bounds each wait for a CLC message. RFC 7609 C.5 asks for such a timer and
	// leaves its length open; Linux net/smc waits 6 seconds.
	HandshakeTimeout = 6 * time.Second

	// PeerCloseWaitTimeout bounds PeerCloseWait1 and PeerCloseWait2 once the application has
	// closed. RFC 7609 p.85 asks for a timer "similar to the TCP FINWAIT2 state"; TCP
	// implementations take 60 seconds. While the application has only shut down writing, it waits
	// for the peer by its own choice and there is no timer, as in TCP.
	PeerCloseWaitTimeout = 60 * time.Second

	// PeerFinCloseWaitTimeout bounds PeerFinCloseWait, for the same reason.
	PeerFinCloseWaitTimeout = 60 * time.Second

	// PeerAbortWaitTimeout bounds PeerAbortWait (RFC 7609 p.87). It is short because an abort
	// is answered by the SMC layer of the peer, not by its application.
	PeerAbortWaitTimeout = 5 * time.Second
)

// Limits of the handshake that are ours.
const (
	// PrepareTimeout bounds the time in which the caller makes buffers ready, for all candidates
	// together. It is shorter than the HandshakeTimeout of the peer, which waits meanwhile, so
	// that a Decline still finds the peer listening.
	PrepareTimeout = 4 * time.Second

	// LinkTurnTimeout bounds the time in which the caller sends CONFIRM LINK or its reply.
	// LinkWaitTimeout bounds the wait for the peer's. It must be "long enough to allow the
	// other peer to have a write complete timeout and 2-3 retransmits of an SMC Decline"
	// (RFC 7609 C.7), so it is longer than the other.
	LinkTurnTimeout = 2 * time.Second
	LinkWaitTimeout = 5 * time.Second

	// AddLinkStateTimeout bounds the attempt at a second link as a whole. LinkControl has the timers of its
	// messages, which are shorter together.
	AddLinkStateTimeout = 2*AddLinkReplyTimeout + ConfirmLinkTimeout + deleteTries*LLCTimeout + 2*time.Second

	// defaultMaxConns and defaultMaxLinks are the limits of a link group of SMC-R where the release
	// does not negotiate them: Linux net/smc.
	defaultMaxConns = 255
	defaultMaxLinks = 2
)

// An idle link group is forgotten by the server first: Linux net/smc. Its client waits 10 seconds
// longer. Ours waits longer still, because the two sides may release their last connection as far
// apart as the timers of a close let them. Where an application keeps an end of a connection for
// even longer, the next one finds the groups out of sync, and falls back once.
const (
	ServerGroupIdleTimeout = 600 * time.Second
	ClientGroupIdleTimeout = ServerGroupIdleTimeout + PeerCloseWaitTimeout + groupIdleMargin
	groupIdleMargin        = 10 * time.Second
)

// Timers of the link layer control of SMC-R. RFC 7609 C.7 leaves their lengths open. Unless a
// comment says otherwise, they have the lengths of Linux net/smc.
const (
	// LLCTimeout is how long an answer may take.
	LLCTimeout = 2 * time.Second

	// AddLinkTimeout is how long a client waits for the server's ADD LINK on first contact: Linux
	// net/smc waits 2 seconds, and looks 1 second longer for a Decline.
	AddLinkTimeout = 3 * time.Second

	// AddLinkReplyTimeout is how long a server waits for the answer on first contact. A client
	// that keeps to RFC 7609 never takes so long, and with one that does not the connection ends.
	AddLinkReplyTimeout = 5 * time.Second

	// ConfirmLinkTimeout is how long CONFIRM LINK on a further link may take, and its reply.
	ConfirmLinkTimeout = 5 * time.Second

	// deleteTries is how often DELETE LINK is sent over a link before that counts as failed too.
	// Ours; Linux net/smc, which drops requests that cross its own, tries once.
	deleteTries = 2

	// wishTries is how often a client that has others sends it without hesitation: "Server queues
	// the DELETE LINK message and processes it after the ADD LINK exchange completes" (RFC 7609
	// p.57), which may take two answers and ConfirmLinkTimeout. From the second time on the link
	// over which it asks is tested besides; and as long as that is good the client goes on asking,
	// after wishTries each time half as often as before, wishBackoff times. Linux net/smc as a
	// server answers when all that it has sent over the lost link has completed, which with
	// soft-RoCE takes as long as its path is dead.
	wishTries   = 6
	wishBackoff = 5

	// LinkLeaveTimeout is how long connections may take to leave a link that ends in order. It is
	// shorter than LLCTimeout, in which the server that has ordered it awaits the answer. Ours.
	LinkLeaveTimeout = time.Second

	// AddLinkRetry is how long a server waits with another attempt at a further link, RFC 7609 C.8;
	// each time twice as long, up to AddLinkRetryMax. Before that, where a group has lost its
	// second link, it tries, or a client asks, every AddLinkPause, singleTries times: the loss of
	// the other link would be the end of the group. AddLinkPause is the least time between two
	// attempts; the reason for the second does not matter. If the link between two RNICs did not
	// hold more than freeFlaps times, the pause is twice as long each time, up to AddLinkPauseMax;
	// a link that has held for linkSteady was no failure. All ours: Linux net/smc tries when a port
	// comes up, or a link is lost.
	AddLinkRetry    = 10 * time.Second
	AddLinkRetryMax = 5 * time.Minute
	AddLinkPause    = time.Second
	AddLinkPauseMax = time.Minute
	linkSteady      = 10 * time.Second
	singleTries     = 60
	freeFlaps       = 4

	// FailedPairMemory is how long two RNICs between which a link has failed are tried after
	// others, and maxFailedPairs of how many pairs that is known: all that 8 RNICs of either side
	// can make. Ours.
	FailedPairMemory = time.Hour
	maxFailedPairs   = llc.MaxGIDs * llc.MaxGIDs

	// maxFormer is how many of the links that a group has lost are remembered, for CLC messages
	// that were on their way meanwhile.
	maxFormer = 4

	// GroupEndTimeout bounds the end of a group: the completion of the last send, or the peer's answer.
	GroupEndTimeout = LLCTimeout

	// TestLinkInterval is how long nothing may be heard from a peer before it is asked.
	TestLinkInterval = 30 * time.Second
	// TestLinkTimeout is how long the answer may take.
	TestLinkTimeout = LLCTimeout

	// RKeyTimeout bounds CONFIRM RKEY with all its tries. It is no longer than PrepareTimeout, as a
	// connection waits for it. Ours; Linux net/smc tries once.
	RKeyTimeout = PrepareTimeout
	rkeyTries   = 2
	// rkeyRetryDelay is how long the peer's change of links may take before we ask again.
	rkeyRetryDelay = 100 * time.Millisecond
	// rkeyAgainDelay is how long we wait before a peer that knows an RMB, but not on all links, is
	// told of it again, where it has refused or has not answered; twice as long each time, up to
	// rkeyAgainMax. Ours.
	rkeyAgainDelay = 5 * time.Second
	rkeyAgainMax   = 5 * time.Minute

	// FirstContactWait is how long a connection waits for another's first contact with the same peer,
	// before it makes one of its own: a peer that stalls one handshake must not stall others.
	FirstContactWait = 2 * time.Second
)
