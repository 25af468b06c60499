package handshake

import "time"

// Limits of handshakes. Limits that a specification or the kernel sets come first, with their
// source.
const (
	// CLCTimeout bounds the wait for one CLC message, and ServerTimeout the whole handshake on the
	// server. Linux net/smc waits 6 seconds for a message.
	CLCTimeout    = 6 * time.Second
	ServerTimeout = 10 * time.Second

	// maxConfirmWait bounds the wait for a Confirm of a client of SMC-R that other connections of
	// its peer keep from its turn. lateConfirmWait bounds the wait for a client that has a link
	// with us, while its link group lives. Like an idle connection, such a client costs a place and
	// a buffer.
	maxConfirmWait  = 2 * time.Minute
	lateConfirmWait = 10 * time.Minute

	// MaxOfListener bounds the handshakes that a listener runs at once; above, connections stay
	// TCP. maxAcceptsOfPeer bounds the handshakes of one peer: 500 at once are to succeed with a
	// slow peer, and a listener has places for other peers.
	MaxOfListener    = 1024
	maxAcceptsOfPeer = MaxOfListener * 3 / 4

	// evictAfter is how long a client of another machine may take for its handshake while others
	// wait for its place.
	evictAfter = time.Second

	// MinConnsPerGroup and MaxConnsPerGroup bound the number that we offer: "the valid range for
	// maximum connections per LG is 16 to 255" (SMCv2 p.43).
	MinConnsPerGroup = 16
	MaxConnsPerGroup = 255
)
