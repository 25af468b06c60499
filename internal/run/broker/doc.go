// Package broker brings the two ends of pairs of Unix sockets together. Clients offer one end of a pair
// before they connect to a listener that was announced. The program that has accepted the connection
// claims that end. An end that nobody claims, because a program that does not know us has accepted,
// is joined to TCP, so that no byte is lost.
//
// A program of package smc has a broker for its own listeners: [Open]. It accepts for itself and claims
// without a message. The supervisor of 'gosmc run' has a broker for the listeners of other programs.
// Once both programs have their ends the broker has no part in the connection.
//
// Everything is one loop over epoll in one goroutine, as programs wait for its answers.
// docs/shared-memory.md, section 9, has the messages.
package broker
