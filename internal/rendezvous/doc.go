// Package rendezvous finds out which process on this machine expects SMC on which connection,
// before a byte of CLC is sent. It needs no privileges, and trusts nobody's word.
//
//	[Point]       one host's part in it: its announcements, its expectations, its requests
//	[Call]        one dial: asks for each socket before it connects, and waits for the answer
//	[Listening]   one listener: its announcement in the run directory, and the connections that it claims
//	[Message]     a message of one host to another about one connection
//
// It knows nothing of CLC, buffers or connections: it answers with the peering over which a
// connection may move to shared memory, or with the reason why it stays TCP.
//
// Point.mu is taken last: nothing is called with it held that takes another lock.
package rendezvous
