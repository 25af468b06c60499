package host

import "time"

// Limits of a host. What a specification or the kernel sets comes first, with its source.
const (
	// clcTimeout bounds the wait for one CLC message, and handshakeTimeout the whole
	// handshake on the server. Linux net/smc waits 6 seconds for a message.
	clcTimeout       = 6 * time.Second
	handshakeTimeout = 10 * time.Second

	// Buffer sizes that can be asked for: the size code has 4 bits (RFC 7609 p.100), of
	// which we use 16 KiB to 8 MiB.
	minBuffer = 16 << 10
	maxBuffer = 8 << 20

	// Where memory is short, the default buffer is such that the default budget has room for
	// budgetedBuffers of them, but not smaller than minDefaultBuffer, with which SMC-D is
	// still faster than TCP.
	budgetedBuffers  = 256
	minDefaultBuffer = 128 << 10

	// maxConnsPerGroup is what we offer; SMCv2 allows 16 to 255.
	maxConnsPerGroup = 255

	// maxGroups bounds the link groups, those included whose first contact is under way.
	maxGroups = 4096

	// groupSweepEvery is how often, at most, idle link groups are looked for.
	groupSweepEvery = time.Second

	// rendezvousWait is how long a client waits for the server to say that it has
	// accepted the connection before it asks what became of it. The server accepts at
	// once, whatever its application does, so only a connection that went to another
	// program takes that long, or one to a process that gets no processor: one that nobody
	// has accepted yet is waited for up to acceptWait.
	acceptWait     = 3 * time.Second
	rendezvousWait = 250 * time.Millisecond

	// cancelWait bounds the wait for the answer to a Cancel. Without one, the server is
	// stopped or dead, and the connection cannot be used: it might still expect CLC.
	cancelWait = 5 * time.Second

	// maxAnnouncers is how many listeners on one port are asked about one connection.
	maxAnnouncers = 8

	// maxAnnouncementsRead bounds the names that are read of one port's folder, and
	// maxAnnounceFolders the folders that are remembered. announceSettled is how long after
	// a change a folder must have been read to be believed later: file systems keep time in
	// ticks of up to 10 ms.
	maxAnnouncementsRead = 1024
	maxAnnounceFolders   = 64
	announceSettled      = 20 * time.Millisecond

	// announceTries is how often a folder is made that others remove.
	announceTries = 100

	// maxExpected bounds the connections that one peer says it is about to make, and
	// expectAge how long that is remembered.
	maxExpected = 4096
	expectAge   = 30 * time.Second

	// maxOutbox bounds the messages that wait because a peer does not read, and the pauses
	// are those after which it is looked whether it has.
	maxOutbox      = 8192
	outboxPause    = 100 * time.Microsecond
	maxOutboxPause = 10 * time.Millisecond

	// maxHandshakes bounds the handshakes that a listener runs at once; above, connections
	// stay TCP.
	maxHandshakes = 1024

	// acceptBacklog is how many connections a listener keeps ready for Accept before it
	// leaves further ones to the kernel's queue.
	acceptBacklog = 128

	// peeringTimeout bounds making the acquaintance of another host before a connection; it
	// is there only for hosts that are stopped.
	peeringTimeout = time.Second

	// fabricRetry is how long a host that could not open its device, or use its run
	// directory, does without before it tries again.
	fabricRetry = 5 * time.Second

	// maxTidied is how many files of each kind a host looks at for left-overs of dead
	// processes, and tidyAge how old they must be.
	maxTidied = 64
	tidyAge   = time.Minute

	// maxFallbackReasons bounds the reasons that are counted; peers can make them up.
	maxFallbackReasons = 256

	localAddrsAge   = time.Second // how old the list of our addresses may be
	ownerAge        = time.Second // how long the owner of a listening socket is believed
	maxOwnerEntries = 256
	sockDiagTimeout = time.Second

	// sweepEvery is how often connections that wrote something are looked at; one that
	// has been quiet for a whole period gives its pages back. Nothing runs while all are
	// clean.
	sweepEvery = 10 * time.Second

	// maxTraceSample bounds the connections in one sample of cursors.
	maxTraceSample = 1024

	// maxUnreadSweeps is for how many periods more the sweeper waits until all that was
	// written is known to be read, before it gives back what it can and forgets the
	// connection. With one period to become quiet, that is less than a minute.
	maxUnreadSweeps = 3
)
