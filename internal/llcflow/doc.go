// Package llcflow takes the decisions of the link layer control (LLC) of SMC-R: which links a link group has,
// where the RMBs of both sides are on them, and the exchanges of LLC messages that say so. It does no I/O.
//
// A [LinkControl] is one side of a link group, from CONFIRM LINK of the first contact to the last DELETE
// LINK. It is a value like the machines of package core: it takes an event, with the time as an argument, and
// answers with a list of outputs. The caller (internal/smcr) carries them out in order. The same inputs give
// the same outputs, nothing is locked and nothing blocks.
//
//	control.go    the states of a group, the dispatch of messages, and the elements of connections
//	confirm.go    CONFIRM LINK, and the end of the first contact
//	add.go        ADD LINK and its continuations: further links
//	selection.go  between which RNICs; pairs.go has the pairs that have failed
//	retry.go      when; REQUEST ADD LINK
//	links.go      DELETE LINK, and links that fail
//	leave.go      links that end in order
//	rkey.go       CONFIRM RKEY and DELETE RKEY; rtoken.go has the RMBs of the peer
//	testlink.go   TEST LINK
//	end.go        the end of a group
//
// Package core has the table of link groups, and the handshake that begins one.
package llcflow
