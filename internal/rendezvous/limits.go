package rendezvous

import "time"

// Limits of a point.
const (
	// AcceptTime is how long a client waits for the server to say that it has accepted the
	// connection before it asks for the outcome. The server accepts at once, whatever its
	// application does, so only a connection that went to another program takes that long, or one
	// to a process that gets no processor: one that nobody has accepted yet is waited for up to
	// maxAcceptTime.
	AcceptTime    = 250 * time.Millisecond
	maxAcceptTime = 3 * time.Second

	// lookTime is how long a client waits before it looks whether a process that was not asked has
	// accepted the connection: long enough for a server that is only waiting for a processor, most
	// often. maxFDs bounds the descriptors of a process that are looked through for that; it takes
	// some 2 µs for each.
	lookTime = 15 * time.Millisecond
	maxFDs   = 2048

	// CancelTime bounds the wait for the answer to a Cancel. Without one, the server is
	// stopped or dead, and the connection cannot be used: it might still expect CLC.
	CancelTime = 5 * time.Second

	// PeeringTime bounds making the acquaintance of another host before a connection; it
	// is there only for hosts that are stopped.
	PeeringTime = time.Second

	// maxAnnouncers is how many processes that share a port (SO_REUSEPORT) are asked about one
	// connection. All have to be, since the kernel chooses which one gets it: where there are more,
	// the connection is plain TCP at once. Each costs a client up to three messages.
	maxAnnouncers = 64

	// MaxAnnouncements bounds the names that are read of one port's folder, and
	// maxAnnounceFolders the folders that are remembered. announceSettled is how long after
	// a change a folder must have been read to be believed later: file systems keep time in
	// ticks of up to 10 ms.
	MaxAnnouncements   = 1024
	maxAnnounceFolders = 64
	announceSettled    = 20 * time.Millisecond

	// checkEvery is how often it is made sure that announcements are there, and maxCheckPause how
	// long it is left alone, in the end, where that fails.
	checkEvery    = 10 * time.Second
	maxCheckPause = 5 * time.Minute

	// announceTries is how often a folder is made that others remove.
	announceTries = 100

	// MaxExpected bounds the connections that one peer says it is about to make, and expectAge how
	// long that is remembered. For a peer at that bound, connections that are too old are looked
	// for once in sweepPause.
	MaxExpected = 4096
	expectAge   = 30 * time.Second
	sweepPause  = time.Second

	// maxOutbox bounds the messages that wait because a peer does not read, and the pauses
	// are those after which it is looked whether it has.
	maxOutbox      = 8192
	outboxPause    = 100 * time.Microsecond
	maxOutboxPause = 10 * time.Millisecond

	// maxIfaces bounds the interfaces that are tried to find the socket at the other end of a
	// connection: those that clients say theirs are bound to.
	maxIfaces = 8

	localAddrsAge   = time.Second // how old the list of our addresses may be
	ownerAge        = time.Second // how long the owner of a listening socket is believed
	maxOwnerEntries = 256
	sockDiagTimeout = time.Second
)
