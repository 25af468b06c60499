// Package host joins the parts of SMC: it runs the decisions of core over TCP connections that the
// rendezvous has found a peering for, and the data path of stream over the Emulated-ISM fabric, and
// serves the control socket.
//
//	[Host]      one SMC instance: device, peers, limits, counters
//	[Dialer]    a TCP connection, asked for at the rendezvous, then the client's handshake
//	[Listener]  accepts TCP connections, and does the server's handshake on those expected
//
// A handshake makes a connection of package conn, in any mode.
//
// Locks, in the order in which they are taken: the lock of a connection, then the lock of an SMC-R
// link group, then Host.mu, then the locks of the tables of link groups, of the fabric and of
// stream. A callback from the fabric or from stream holds none of its own.
package host
