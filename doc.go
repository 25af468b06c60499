// Package smc is Shared Memory Communications in user space: a TCP connection whose bytes
// travel through shared memory, between two programs on one host (SMC-D), negotiated in
// the connection itself and falling back to plain TCP so that nobody notices. It speaks the
// wire protocol of Linux AF_SMC, z/OS and AIX (RFC 7609 and SMCv2).
//
// It is shaped like package net. Replace net.Dial with [Dial] and net.Listen with
// [Listen] on both ends; where the other end does not do SMC, the result is a TCP
// connection like any other. [Conn.State] says which it became, and why.
//
//	l, err := smc.Listen("tcp", "127.0.0.1:8080")
//	...
//	http.Serve(l, handler)
//
// Two programs find each other through the run directory, which any user has: see
// [Config]. Nothing needs privilege or configuration.
//
// Nothing runs in the background before the first connection or listener, and nothing goes on after the last: the goroutines
// of the default host end a tenth of a second later, a [Host] of one's own ends with Close or Shutdown. In
// a bubble of testing/synctest use such a Host, or let all connections of the program be in one bubble: goroutines,
// and with them peers, belong to the bubble that was the first to need them.
package smc
