// Package conn has one connection: what an application reads and writes, and closes.
//
//	[Pending]  a TCP connection of which it is not known yet what will carry its bytes
//	[SMC]      a connection over SMC, of whatever fabric
//	[TCP]      one that is plain TCP, with the reason
//	[Unix]     one over a pair of Unix sockets, with a program of 'gosmc run'
//
// The last three are a [Conn]. A handshake, which is not in this package, makes one of them of a
// Pending. They know no host: an [Owner] is told of them.
//
// Locks: a connection has one, which is held while outputs of core are carried out. A call of the
// Owner may take the host's lock then, and a call of a binding those of its fabric. A host that
// holds its own lock calls only methods that take none: Mode, Association, Totals, TraceClosed.
package conn
