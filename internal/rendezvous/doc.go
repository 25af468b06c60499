// Package rendezvous finds out who on this machine expects SMC on which connection, before a byte
// of CLC is sent: without privileges, and without trusting what anybody says.
//
//	[Point]       one host's part in it: what it has announced, what it expects, what it has asked
//	[Call]        one dial: asks for each socket before it connects, and waits for the answer
//	[Listening]   one listener: its announcement in the run directory, and the connections that it claims
//	[Message]     what two hosts say to each other about one connection
//
// It knows nothing of CLC, buffers or connections: it answers with the peering over which a
// connection may move to shared memory, or with the reason why it stays TCP.
//
// Point.mu is taken last: nothing is called with it held that takes another lock.
package rendezvous
