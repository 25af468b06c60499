package capture

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
)
