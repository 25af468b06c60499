package host

import "time"

// Limits of a host. Limits that a specification or the kernel sets come first, with their source.
const (
	// localPatience is how much longer a process of this machine that lives and is silent is waited
	// for: on a busy machine 1,400 connections that are made at once take more than
	// handshake.CLCTimeout, and would be reset where TCP goes on.
	localPatience = 30 * time.Second

	// Buffer sizes that can be asked for: the size code has 4 bits (RFC 7609 p.100), of
	// which we use 16 KiB to 8 MiB.
	minBuffer = 16 << 10
	maxBuffer = 8 << 20

	// Where memory is short, the default buffer is such that the default budget has room for
	// budgetedBuffers of them, but not smaller than minDefaultBuffer, with which SMC-D is
	// still faster than TCP.
	budgetedBuffers  = 256
	minDefaultBuffer = 128 << 10

	// roomTick is how often clients of other machines that wait for the place of another one look.
	roomTick = 10 * time.Millisecond

	// acceptBacklog is how many connections a listener keeps ready for Accept before it
	// leaves further ones to the kernel's queue.
	acceptBacklog = 128

	// paceTime is how long a listener that accepts only for calls of Accept does not accept another
	// connection because of one that is in its handshake, which takes a fraction of that.
	paceTime = 20 * time.Millisecond

	// quietTime is how long a shared listener stays announced while its application does not call
	// Accept. A client that asks in that time waits for the rest of it, so it is no longer than a
	// dial may take without being noticed. An application is back in Accept in far less, unless it
	// serves connections one after the other.
	quietTime = 50 * time.Millisecond

	// drainTime is how long a listener that was closed goes on with the connections it had taken.
	drainTime = time.Second

	// idleLinger is how long a host that nobody uses keeps its resources of the system. It is
	// longer than the 100 ms after which gosmc dump looks for new hosts again, so that none is
	// missed. Checks for leaked goroutines wait some 400 ms.
	idleLinger = 150 * time.Millisecond

	// fabricRetry is how long a host that could not open its device, or use its run
	// directory, does without before it tries again.
	fabricRetry = 5 * time.Second

	// sweepEvery is how often connections that wrote something are looked at; one that
	// has been quiet for a whole period gives its pages back. Nothing runs while all are
	// clean.
	sweepEvery = 10 * time.Second

	// maxTraceSample bounds the connections in one sample of cursors.
	maxTraceSample = 1024

	// defaultSMCRLinks is how many symmetric links a link group has at most: as Linux net/smc.
	defaultSMCRLinks = 2
)

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)
