package paired

import "time"

// Limits of a point.
const (
	// AcceptTime is how long a client waits, after it has connected, until a server says that it has
	// accepted the connection. A server of package smc accepts at once, whatever its application does.
	// After that the connection is plain TCP.
	AcceptTime = 500 * time.Millisecond

	// metTime takes the place of AcceptTime, and of claimTime, once the agent has introduced the two:
	// each knows then that the other one waits.
	metTime = 3 * time.Second

	// claimTime is how long a server waits for the client of a connection. It is longer than
	// AcceptTime, so that an answer of the client comes in time.
	claimTime = AcceptTime + 100*time.Millisecond

	// guessTime is how long a client waits for the processes that it knows before it asks the agent: long
	// enough for a server that is only waiting for a processor, most often.
	guessTime = 15 * time.Millisecond

	// settleTime is how long a server waits for a message of a client that it knows before it asks the agent.
	// The client has connected already.
	settleTime = 2 * time.Millisecond

	// cancelTime bounds the wait for the answer to a Cancel.
	cancelTime = 5 * time.Second

	// maxNames is how many names are tried for an end of a pair, of which somebody else may have taken some.
	maxNames = 4

	// maxKnown bounds the processes that are asked about one connection, and maxDests the addresses for which
	// they are remembered. A service with more processes needs the agent for each connection.
	maxKnown = 8
	maxDests = 1024

	// maxExpected bounds the connections of which one peer says that it has made them, maxRivals those of
	// which several say so, and expectAge how long that is remembered by a peer at its bound.
	maxExpected = 4096
	maxRivals   = 8
	expectAge   = 30 * time.Second

	// maxDecided is how many connections that became plain TCP are remembered, for clients whose
	// message comes later.
	maxDecided = 4096

	// maxRetries bounds the messages that wait because a peer does not read, all peers together.
	// They are sent again for at most retryTime, and then the peering ends.
	maxRetries = 4096
	retryTime  = time.Second
	retryPause = 200 * time.Microsecond

	// lostTime is how long no socket to a server asks after a SYN with a token was lost.
	lostTime = 5 * time.Minute
)
