// Package stream is the data path of an SMC connection: cursors and rings, waiting and
// waking. It decides nothing; it is given memory and functions, and moves bytes.
//
// A [Conn] has a consumer and a producer. The consumer reads from the local element (a
// DMB element on SMC-D, an RMB element on SMC-R), which only the peer writes; the
// producer writes to the peer's element. Each element starts with a 32-byte header that
// the writing side keeps up to date (Linux net/smc, see package cdc): its producer
// cursor, saying how far it has written into this element, and its consumer cursor,
// saying how far it has read from its own. So every header has one writer and one
// reader, and neither ever takes a lock that the other side could hold.
//
//	      our element (peer writes)                peer's element (we write)
//	+--------+---------------------+      +--------+---------------------+
//	| header | data                |      | header | data                |
//	+--------+---------------------+      +--------+---------------------+
//	   |  peer's producer cursor ----> Read          ^  our producer cursor <---- Write
//	   |  peer's consumer cursor ----> Write         ^  our consumer cursor <---- Read
//
// That is SMC-D. A [Carrier] has the memory to which the producer writes, and gets the header to
// the peer. An [Inbox] is where the peer's header arrives. On SMC-R the producer puts bytes into a
// send ring, from which they are written into the peer's element, and the header travels in CDC
// messages; the rules of the cursors are the same.
//
// # Waiting
//
// A reader that finds nothing, or a writer that finds no room, first spins for as long as recent
// waits were short. Then it sets its word in the sleep flags, looks again, and parks its goroutine.
// The other side stores its cursor, then looks at that word. Both do a store followed by a load of
// the word that the other one stores, with sequentially consistent operations, so at least one of
// them sees the other: no wakeup is lost, and while both sides are awake no doorbell is rung at
// all.
//
// # Urgent data
//
// One byte at a time is urgent: see urgent.go. It goes through the ring as any other, and a flag in
// the word of the producer cursor marks it; the writer puts nothing behind it before the reader has
// come to it. A reader that takes it apart gets a copy, made when the cursor is first seen. While
// there is a mark, or somebody waits for one, reads take their slow path, so that others pay
// nothing.
//
// # Trust
//
// The peer can write to both elements and to the sleep flags at any moment. Every shared
// word is loaded once, checked as a copy, and only the copy is used; positions, sizes
// and counts that index memory are private. A peer that lies can only spoil the bytes
// that it owns, or get its connection aborted.
package stream
