// Package udp is an unconnected UDP socket for protocols that make their own datagrams and send and
// receive many of them: RoCEv2 in software. It needs Linux.
//
// Datagrams are written into one contiguous buffer, a [TxBatch], and go out with one system call.
// Runs of datagrams of one size to one destination become one message, a super-packet that the
// kernel takes apart as late as it can: in the adapter, or not at all when the receiver is on this
// machine (UDP_SEGMENT, Linux 4.18). On receipt neighbouring datagrams of one size come as one
// message with the size of its segments (UDP_GRO, Linux 5.0). A super-packet of 63 datagrams costs
// about as much as a single one.
//
// # The IPv4 identification
//
// The checksum of a RoCEv2 packet covers the identification in the IPv4 header, which a UDP socket
// neither sets nor shows. Its later value is known if the socket is not connected and forbids
// fragments, as the sockets of this package do (IP_PMTUDISC_PROBE): 0 for a plain datagram, and k
// for segment k of a super-packet, k from 0. A [Sealer] is told this value. It was measured at the
// far end of a veth pair, and the tests measure it again; for other settings it is a counter from a
// random start (Linux net/ipv4/ip_output.c, net/ipv4/af_inet.c inet_gso_segment).
//
// A receiver that must see the identification of a foreign sender needs a packet socket: see
// [HeaderMode]. With IPv6 there is nothing to know: its header has no such field.
//
// # Concurrency
//
// A [Socket] may be used by any number of goroutines at a time, a batch by one.
package udp
