// Package dissect decodes captured SMC traffic and describes it in words: the TCP option, the CLC
// handshake, LLC and CDC messages, and the RoCEv2 packets that carry them and the data.
//
// A [Tracker] is given packets one after the other and answers each with events: one for every
// message of SMC, and one for every RoCEv2 packet that carries none. It remembers the contents of
// the handshakes, so that an event knows its connection, its link and its place in the receive
// buffer. Package render, which shows events, needs nothing else of this package than an [Event]
// and the values to which it leads.
//
//	packet  ->  layers (net.go)  ->  TCP: handshake (tcp.go)    ->  Event
//	                             ->  UDP 4791: RoCEv2 (rdma.go) ->  Event
//
// A capture is nobody's friend: it may begin in the middle, have gaps, repeat packets or lie.
// Nothing here panics or grows without bound for it (see limits.go), unknown values are said to be
// unknown, and a gap in the capture is not taken for a fault of the hosts.
//
// The package knows only bytes and values: it opens nothing, and takes the time from the packets.
package dissect
