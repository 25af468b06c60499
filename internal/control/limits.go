package control

import "time"

// All limits are ours: nothing else speaks this protocol.

// MaxConns is how many connections there are in one [Status]. The rest is counted in its ConnectionsOmitted.
const MaxConns = 8192

// MaxGroups is how many link groups there are in one [Status].
const MaxGroups = 2048

// MaxTallies is how many tallies there are in one [Status]: as many as a supervisor has room for.
const MaxTallies = 32768

// Bounds of the control socket.
const (
	maxName    = 64      // bytes; with /proc/self/fd/N/ it stays within sun_path (108)
	maxRequest = 4 << 10 // bytes in a request line
	// bytes in a response line: MaxConns of some 600 bytes and MaxGroups of 1,500, with room
	maxResponse    = 16 << 20
	maxLinks       = 16               // links of one link group: twice the limit of RFC 7609 §2.2.2
	maxList        = 4096             // entries in any other list of a Status
	maxClients     = 8                // clients served at a time; more wait in the accept queue
	maxRequests    = 64               // requests answered on one socket
	ioTimeout      = 5 * time.Second  // for each read and each write, on both sides
	staleTemporary = 10 * time.Second // a socket in the making that is older and refuses is left over
)

// Bounds of a [Gather].
const (
	maxNames          = 64 << 10              // names looked at in one ctl directory, which users may share
	maxSockets        = 8192                  // hosts of a user there
	maxLanes          = 64                    // users whose hosts are asked at a time
	gatherConcurrency = 4                     // hosts of a user asked at a time
	userTime          = 3 * ioTimeout         // for all hosts of a user in a directory
	maxUserBytes      = 128 << 20             // in the answers of a user's hosts
	maxBytes          = 512 << 20             // in the answers of all hosts
	queueRetry        = 10 * time.Millisecond // while a host's accept queue is full, and when it has hung up
	// of one host that hangs up; when it ends, its socket closes within the second
	maxAsks     = 3
	readInitial = 64 << 10        // bytes of buffer for a response
	closeTime   = 1 * time.Second // for a question to end that is given up
)

// Bounds of the trace of one host.
const (
	// traceHistory is how many events are kept while nobody listens: the events of some twenty
	// connections.
	traceHistory = 256
	// traceQueue is how many are kept as long as somebody does. A listener that falls further
	// behind loses events.
	traceQueue = 4096
	// maxTraceListeners bounds the listeners at a time.
	maxTraceListeners = 8
	// maxTraceText bounds the text of an event, in bytes.
	maxTraceText = 1024
)

// Bounds of a trace over the control socket.
const (
	minTraceCursors = 10 * time.Millisecond
	maxTraceCursors = time.Hour
	// traceBatch is how many events are encoded before they are written.
	traceBatch = 64
	// traceStall is how long a listener may read nothing. A host does not wait for it: an event
	// that it does not read in time is lost to it.
	traceStall = time.Minute
	// traceFarewell bounds the wait for a listener to take the last events of a host that is closed.
	traceFarewell = 200 * time.Millisecond
)

// Bounds of a client that follows.
const (
	maxTraceLine = 64 << 10 // bytes in a line of a trace: a CLC message in base64 and some text, with room
	// traceDeathWait is how long a process may take to end after its sockets have.
	traceDeathWait = time.Second
)
