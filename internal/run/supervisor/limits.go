package supervisor

import "time"

// Limits of ours.
const (
	maxOutside     = 256 // the same of other users; our own have places left
	maxOutsideUser = 128 // of these, from one user; others have places left
	// talks of other users that are closed unheard, which may take as long as these want: then no more are
	// accepted
	maxRefused  = 256
	outsideWait = 10 * time.Second // that one stays while its claim's client is in connect
	maxPrograms = 65536
	maxHanded   = 64 << 20 // bytes that were in a ring, and in a socket in front of it: preload/src/hand.c
	maxTokens   = 1<<16 - 1
	maxCallers  = 256 // programs that have offered, of which a status tells

	maxLoops = 64 // programs and ports of which a supervisor tells that connections are TCP

	// Connections that are TCP for no reason are looked for so long after the start, and then ever
	// less often.
	firstLoops = 10 * time.Second
	lastLoops  = time.Hour

	boxBacklog = 128 // ends that wait in one
	// that are taken out of one in a turn: more than it holds, unless somebody goes on sending
	maxLetters   = 2 * boxBacklog
	lettersBring = 2 // descriptors
	// times that a letterbox out of which nothing is taken is not read, while others claim: 160 ms
	maxPasses = 8
	// joinedAge is how long after a connection was joined to TCP others are expected to need that.
	joinedAge = time.Second

	// letterPatience is how long an end is kept while its letter is on its way: as a rule it comes
	// at once.
	letterPatience = 2 * time.Second
	// ownDescriptors is the number of descriptors of a supervisor that has nothing to do, and some
	// more.
	ownDescriptors = 48

	// maxWatching is how many supervisors of a run directory have an inotify for the configuration
	// file: a quarter of those that a user may have as a rule (fs.inotify.max_user_instances, 128).
	maxWatching = 32
	// spareWatching is how many inotifies a supervisor leaves to the programs of its user at least.
	spareWatching = 8
	// minWatching is how many descriptors a supervisor may have to have one for an inotify: there is
	// not one to spare for programs and connections below.
	minWatching = 4 * ownDescriptors
	// maxNotes is how often events of an inotify are read in a turn.
	maxNotes = 16
	// followEvery is how long after a look at the configuration file a supervisor that does something
	// looks again.
	followEvery = time.Second

	// maxIntroduced bounds the connections with tokens that are being dealt with at a time, or joined to
	// TCP, those of clients and those of servers. Each has up to introducedBring descriptors.
	maxIntroduced   = 1024
	introducedBring = 5
	// maxDestinations bounds the servers that are remembered, for knownAge if they have taken ends. Others
	// are left alone for leastShunned at first, and mostShunned at last.
	maxDestinations = 1024
	knownAge        = time.Minute
	leastShunned    = 500 * time.Millisecond
	mostShunned     = time.Minute
	// reachTime is how long a server may take until it accepts; then its connection is joined to TCP.
	reachTime = 2 * time.Second
	// firstTime is how long a client waits whose server has not taken ends before: as a rule it hears by
	// then whether this one does.
	firstTime = 10 * time.Millisecond
	// answerTime is how long the agent may take beyond the time that it is to wait for the other end.
	// fateTime is how long a client's TCP socket is kept for a server that does not tell of its end. An agent
	// that is stopped for longer is waited for no more.
	answerTime = 250 * time.Millisecond
	fateTime   = time.Minute
	// partTime is how long a client's TCP socket is kept until the server has reset it.
	partTime = 2 * time.Second
	// meetTime is how long a server waits for one client's word at most, leastWait at least. All that wait
	// in vain may take vainMost, and one in vainShare of the time.
	meetTime  = 100 * time.Millisecond
	leastWait = time.Millisecond
	vainMost  = 500 * time.Millisecond
	vainShare = 10

	// carryBrings is how many descriptors a connection with another host takes while it is handed on.
	carryBrings = 5
	// An engine has as many connections at most, and engineFiles descriptors besides theirs.
	maxCarried  = 16384
	engineFiles = 64
	// maxHandovers is how many connections may wait for an engine that does not take them at once, and
	// handOverTime how long the end of a supervisor waits for that.
	maxHandovers = 1024
	handOverTime = 5 * time.Second
	// enginePause is how long after the start of an engine another one is started, if that has ended.
	enginePause = time.Second
)
