// Package core takes the decisions of SMC: the CLC handshake, the life of a connection, and
// which connections share a link group. It does no I/O. The LLC messages of link groups are in
// internal/llcflow.
//
// Every machine here is a value that takes an event and answers with a list of things to do. The
// current time is an argument, random numbers and identifiers are arguments; nothing is locked and
// nothing blocks. The same state and the same input give the same output, so that a report of a
// fault is a list of inputs. A machine belongs to one goroutine at a time, or to the caller's lock;
// the caller (internal/host) carries the outputs out in the order of the list.
//
//	[Handshake]  the CLC handshake over the TCP connection, up to [Established], [FallBack] or [EndTCP]
//	[Conn]       one connection on shared memory, from the handshake's end to the release of its buffers
//	[Groups]     the link groups: which peers we know, and which connection makes first contact
//
// Payload does not pass through this package, and neither do CDC messages that only move cursors.
package core
