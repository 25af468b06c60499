// Package link is the data path of SMC-R over RDMA: links, the messages over them, and the
// [Carrier] of one connection. It has no protocol of control: LLC messages pass through as bytes,
// and the owner that sets up a link or learns of a peer's memory tells it here.
//
//	Group    the common state of links: alert tokens, RMBs, and news for the group's owner
//	Link     one RC queue pair with its receives and its places for sends
//	RMB      memory that the peer writes to, registered with every link of the group
//	Carrier  one connection: a send ring, the peer's RMB element, the headers last sent and received
//
// # Sending
//
// [stream.Conn] copies the bytes that an application writes into the connection's send ring. A post
// is at most two WRITEs out of it, for a peer's element that wraps round, and one CDC message after
// them on the same queue pair; the completion of the message means that those bytes are there, and
// makes room in the ring.
//
// A peer has only so many receives, so a link has only so many places for messages on their way
// (limits.go), some of which are kept for LLC. A connection that gets none waits in a queue, and
// completions serve it: in turns, with the bytes that have gathered meanwhile. A connection that
// has a message on its way lets small writes gather as well, until its completion: they cost the
// same then as one.
//
// # Failover
//
// When a link fails its owner moves each [Carrier] to another one: see [Carrier.Move]. Completions
// of the old link count no more then. A connection that has said its last word and not all of whose
// bytes have arrived waits for that, while there is another link in the group; without one its send
// ring is given back.
//
// A link that ends in order is left in the same way while it works: [Link.Leave] tells when nothing
// is on its way over it any more, nor will be.
//
// # Receiving
//
// The completion handler of a link runs on the goroutine of its device. It parses CDC messages in
// place, finds the connection by its alert token, stores their contents in the connection's inbox,
// and wakes the goroutine that waits there. LLC messages are copied into the bounded queue of
// [Group.Poll].
//
// # Locks
//
// A Carrier's comes before its Link's. Neither is held while work is posted, which may take a
// system call, nor while a function of somebody else's is called. The goroutine that posts for a
// connection marks it, and others leave to that goroutine the work that comes up meanwhile. So the
// device's goroutine waits for nobody.
//
// # Trust
//
// A peer can send any bytes in any number. Alert tokens and queue pair numbers cannot be guessed; a
// message with a token that nobody has is dropped and counted. Cursors are checked by stream when
// they are used. RMBs are memory that a peer writes at any time, even while it is read.
package link
