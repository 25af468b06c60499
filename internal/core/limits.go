package core

import "time"

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

	// AddLinkStateTimeout bounds the attempt at a second link as a whole. Package llcflow has the timers of
	// its messages, which are shorter together.
	AddLinkStateTimeout = 21 * time.Second

	// FirstContactWait is how long a connection waits for another's first contact with the same peer,
	// before it makes one of its own: a peer that stalls one handshake must not stall others.
	FirstContactWait = 2 * time.Second

	// defaultMaxConns and defaultMaxLinks are the limits of a link group of SMC-R where the release
	// does not negotiate them: Linux net/smc.
	defaultMaxConns = 255
	defaultMaxLinks = 2

	// MaxFormerLinks is how many of the links that a group has lost are remembered, for CLC messages
	// that were on their way meanwhile.
	MaxFormerLinks = 4
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
