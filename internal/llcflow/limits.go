package llcflow

import (
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/llc"
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
	// the other link would be the end of the group. A client with a fresh RNIC asks freshTries
	// times like that, after it has asked at once. AddLinkPause is the least time between two
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
	freshTries      = 5
	freeFlaps       = 4

	// FailedPairMemory is how long two RNICs between which a link has failed are tried after
	// others, and maxFailedPairs of how many pairs that is known: all that 8 RNICs of either side
	// can make. Ours.
	FailedPairMemory = time.Hour
	maxFailedPairs   = llc.MaxGIDs * llc.MaxGIDs

	// GroupEndTimeout bounds the end of a group: the completion of the last send, or the peer's answer.
	GroupEndTimeout = LLCTimeout

	// TestLinkInterval is how long nothing may be heard from a peer before it is asked.
	TestLinkInterval = 30 * time.Second
	// TestLinkTimeout is how long the answer may take.
	TestLinkTimeout = LLCTimeout

	// RKeyTimeout bounds CONFIRM RKEY with all its tries. It is no longer than [core.PrepareTimeout], as a
	// connection waits for it. Ours; Linux net/smc tries once.
	RKeyTimeout = core.PrepareTimeout
	rkeyTries   = 2
	// rkeyRetryDelay is how long the peer's change of links may take before we ask again.
	rkeyRetryDelay = 100 * time.Millisecond
	// rkeyAgainDelay is how long we wait before a peer that knows an RMB, but not on all links, is
	// told of it again, where it has refused or has not answered; twice as long each time, up to
	// rkeyAgainMax. Ours.
	rkeyAgainDelay = 5 * time.Second
	rkeyAgainMax   = 5 * time.Minute
)
