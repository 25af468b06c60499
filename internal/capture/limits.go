package capture

import "time"

const (
	// MaxPacket is the most bytes of one packet that are read. Frames on a wire have up to 9 KiB;
	// on an interface that merges segments, up to 512 KiB (Linux include/linux/netdevice.h,
	// GRO_MAX_SIZE).
	MaxPacket = 1 << 20

	// MaxInterfaces is the most interfaces of one section of a pcapng file. Files merged from many
	// others have one for each. One that is described takes 24 bytes of memory and 20 of the file.
	MaxInterfaces = 1 << 16

	// MaxSources is the most inputs of [Merge]. Each has an open file and a buffer of 64 KiB.
	MaxSources = 1024

	// firstWindow is the buffer of a file at first. It grows when a packet needs it and its bytes are
	// there. maxWindow is how far is looked ahead; the buffer grows to twice that.
	firstWindow = 64 << 10
	maxWindow   = MaxPacket + 64<<10 // with the block around it and its options

	// maxBlock is the longest pcapng block that is skipped because its length says so. Past it
	// the length is taken for a lie. Packets are far shorter, lists of names and of secrets
	// can be of megabytes.
	maxBlock = 16 << 20

	// maxEmptyReads is how often in a row a reader may give no byte and no error.
	maxEmptyReads = 100

	// blockBytes is the unit in which the kernel hands over packets of an interface, and more than
	// any packet has.
	blockBytes = 1 << 20

	// DefaultBufferBytes is the room for packets of an interface that were not yet read: half a
	// second of 250,000 RoCEv2 packets a second with 128 bytes each.
	DefaultBufferBytes = 16 << 20

	// minBufferBytes lets the kernel fill one block while the other is read. maxBufferBytes is a
	// size that a ring can have on 32-bit machines, too.
	minBufferBytes = 2 * blockBytes
	maxBufferBytes = 1 << 30

	// blockPatience is how long, in milliseconds, the kernel waits for more packets in a block. A
	// packet is seen that much later at most.
	blockPatience = 20

	// downPatience is how often an interface that is down is asked for whether it is still there: the kernel
	// tells of its removal only while it is up.
	downPatience = 500 * time.Millisecond

	// MinSnapLen is the least that can be asked for: the headers up to the TCP options must be seen
	// to tell which packets belong to SMC. 14 bytes of Ethernet, 12 of VLAN tags, 40 of IPv6, 60 of
	// TCP.
	MinSnapLen = 128

	// maxFlows is the most TCP connections that a live capture knows. The one that was not seen for
	// longest is forgotten. Each takes about 100 bytes.
	maxFlows = 1 << 16

	// handshakeBytes is how much of each direction of a TCP connection belongs to the handshake at
	// most: two messages of 4,096 bytes, the most that wire/clc takes, and a Decline, rounded up.
	handshakeBytes = 16 << 10

	// maxContinuation is the most bytes of a segment that goes on with a message. It is less than
	// the message, since the message began in another; the longest Proposal has 652 bytes.
	maxContinuation = 1024
)
