// Package dissect understands captured SMC traffic and says in words what it is: the TCP option, the
// CLC handshake, LLC and CDC messages, and the RoCEv2 packets that carry them and the data.
//
// A [Tracker] is given packets one after the other and answers each with events: one for every message
// of SMC, and one for every RoCEv2 packet that carries none. It remembers what the handshakes have said,
// so that an event knows its connection, its link and its place in the receive buffer. Package render, which
// shows events, needs nothing else of this package than what an [Event] has and leads to.
//
//	packet  ->  layers (net.go)  ->  TCP: handshake (tcp.go)    ->  Event
//	                             ->  UDP 4791: RoCEv2 (rdma.go) ->  Event
//
// A capture is nobody's friend: it may begin in the middle, have gaps, repeat packets or lie. Nothing
// here panics or grows without bound for it (see limits.go), what cannot be known is said to be unknown,
// and a gap in the capture is not taken for a fault of the hosts.
//
// The package knows only bytes and values: it opens nothing, and time is that of the packets.
package dissect
