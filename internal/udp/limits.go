package udp

import "time"

// Limits of the kernel.
const (
	// MaxPayload4 and MaxPayload6 are the most bytes that one datagram, or one super-packet, can
	// have: the length fields count up to 65,535, which includes the UDP header of 8 bytes and, for
	// IPv4, its own header of 20. A super-packet is bound by them too, since it is one packet until
	// it is taken apart (Linux net/ipv4/ip_output.c, IP_MAX_MTU, and net/ipv6/ip6_output.c, IP6_MAX_MTU).
	MaxPayload4 = 65535 - ipv4HeaderLen - udpHeaderLen
	MaxPayload6 = 65535 - udpHeaderLen

	// MaxSegments is the most datagrams in one super-packet: UDP_MAX_SEGMENTS. Linux 6.9 and later
	// allow 128, but super-packets of both sizes fill the 65,507 bytes from 1,024 bytes a datagram on.
	MaxSegments = 64

	ipv4HeaderLen = 20 // without options
	udpHeaderLen  = 8
)

// Our own limits.
const (
	// DefaultTxBytes is the buffer of a [TxBatch] if none is asked for: three full super-packets.
	// It stays in the second-level cache between sealing and sending.
	DefaultTxBytes = 192 << 10

	// maxTxMessages bounds the messages in a [TxBatch], and so its tables, not its bytes.
	maxTxMessages = 512

	// maxTxDatagrams bounds the datagrams in a [TxBatch], and so the time that one Send can take
	// when the kernel does not segment.
	maxTxDatagrams = 4096

	// txChunk is how many messages one system call sends. The time of a call is the time of its
	// messages, so larger chunks gain nothing, and headers of this many are 9 KiB.
	txChunk = 64

	// sendPatience bounds how long Send waits for room in a socket that is full. A sender that is
	// told of a loss after this time repairs it sooner than one that goes on waiting.
	sendPatience = 100 * time.Millisecond

	// rxBytes is the room for one message: the largest super-packet with all its headers.
	rxBytes = 64<<10 + rxHeadroom

	// rxHeadroom is before the payload of a message, for the headers that a packet socket shows.
	// The payload begins at a multiple of 64 bytes.
	rxHeadroom = 64

	// maxRxMessages bounds the messages of an [RxBatch].
	maxRxMessages = 1024

	// maxReceiveErrors bounds how many errors in a row a receiving call skips. They are news of
	// the socket that reading clears, of which there is one at a time.
	maxReceiveErrors = 16

	// defaultBuffer is the default of ReadBuffer and WriteBuffer: 60 super-packets of 64 KiB, of
	// which the kernel counts each with the memory that it holds, about a fifth more.
	defaultBuffer = 4 << 20
)
