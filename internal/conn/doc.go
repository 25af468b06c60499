// Package conn has one connection, which an application reads, writes and closes.
//
//	[Pending]  a TCP connection whose transport is not known yet
//	[SMC]      a connection over SMC, of whatever fabric
//	[TCP]      one that is plain TCP, with the reason
//	[Unix]     one over a pair of Unix sockets, with a program of 'gosmc run'
//
// The last three are a [Conn]. A handshake, which is not in this package, makes one of them of a
// Pending. They know no host: an [Owner] is told of them.
//
// Locks: a connection has one, which is held while outputs of core are carried out. A call of the
// Owner may take the host's lock then, and a call of a binding the locks of its fabric. A host that
// holds its own lock calls only methods that take none: Mode, Association, Totals, TraceClosed.
package conn
