package broker

import "time"

const (
	MaxOffers    = 4096 // that nobody has claimed; as many as the longest queue of a listener usually has
	maxTalks     = 4096 // sockets of programs that are in the middle of something
	maxListeners = 4096
	MaxRelays    = 4096
	RelayBrings  = 3   // descriptors
	MaxEvents    = 256 // that are fetched at once
	MaxAccepts   = 32  // talks that are accepted in a turn, before others get theirs
	maxNames     = 4   // that are tried for an end of which somebody else may have taken one
	// lostLetters is how long after the first letter of which a server did not know others are on
	// their way, from clients that had looked at the link before.
	lostLetters = time.Second
	// returnPause is how long nothing is done where a Return waits for a descriptor.
	returnPause = time.Millisecond
	// A listener is looked for again when an offer for it comes, and it was not for so long.
	listenerAge = time.Second
	// An offer that was accepted, and not claimed at the next look either, is joined to TCP.
	FirstLook = 20 * time.Millisecond
	LastLook  = time.Second
	// selfLook is firstLook in a program of package smc. Most often the program itself has accepted, and
	// will claim as soon as it gets a processor.
	selfLook = time.Second
)
