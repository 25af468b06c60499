package supervisor

import "time"

// Limits of ours.
const (
	maxOffers      = 4096             // that nobody has claimed; as many as the longest queue of a listener usually has
	maxTalks       = 4096             // sockets of programs that are in the middle of something
	maxOutside     = 256              // the same of other users; our own have places left
	maxOutsideUser = 128              // of these, from one user; others have places left
	maxRefused     = 256              // talks of other users that are closed unheard, which may take as long as these want: then no more are accepted
	outsideWait    = 10 * time.Second // that one stays while its claim's client is in connect
	maxListeners   = 4096
	maxPrograms    = 65536
	maxRelays      = 4096
	relayBrings    = 3        // descriptors
	maxHanded      = 64 << 20 // bytes that were in a ring, and in a socket in front of it: preload/src/hand.c
	maxTokens      = 1<<16 - 1
	maxCallers     = 256 // programs that have offered, of which a status tells

	maxAccepts = 32 // talks that are accepted in a turn, before others get theirs

	maxNames = 4 // that are tried for an end of which somebody else may have taken one

	maxLoops = 64 // programs and ports of which a supervisor tells that connections are TCP

	// Connections that are TCP for no reason are looked for so long after the start, and then ever
	// less often.
	firstLoops = 10 * time.Second
	lastLoops  = time.Hour

	boxBacklog   = 128            // ends that wait in one
	maxLetters   = 2 * boxBacklog // that are taken out of one in a turn: more than it holds, unless somebody goes on sending
	lettersBring = 2              // descriptors
	maxPasses    = 8              // times that a letterbox out of which nothing is taken is not read, while others claim: 160 ms
	// joinedAge is how long after a connection was joined to TCP others are expected to need that.
	joinedAge = time.Second

	// lostLetters is how long after the first letter of which a server did not know others are on
	// their way, from clients that had looked at the link before.
	lostLetters = time.Second
	// letterPatience is how long an end is kept while its letter is on its way: as a rule it comes
	// at once.
	letterPatience = 2 * time.Second
	// returnPause is how long nothing is done where a Return waits for a descriptor.
	returnPause = time.Millisecond
	// ownDescriptors is the number of descriptors of a supervisor that has nothing to do, and some
	// more.
	ownDescriptors = 48

	// A listener is looked for again when an offer for it comes, and it was not for so long.
	listenerAge = time.Second
	// An offer that was accepted, and not claimed at the next look either, is joined to TCP.
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second
	// At a desk it is most often the program itself that has accepted, and will claim as soon as it
	// gets a processor.
	deskLook = time.Second
)
