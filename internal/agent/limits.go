package agent

import "time"

// All limits are ours: nothing else speaks this protocol.
const (
	// firstSlot and lastSlot are the slots that are given away: the first slot has the numbers of
	// management, the last slot the number of multicast (IBTA 3.5.10), and other stacks begin with
	// the lowest.
	firstSlot, lastSlot = 1, 254
	slotBits            = 16 // of a queue pair's number are within a slot

	maxClients        = 32 // served at a time; more wait in the accept queue
	maxAccountClients = 8  // of one account

	ioTimeout = 2 * time.Second // for each message, in each direction

	maxPorts        = 256 // addresses with a shared port
	maxAccountPorts = 16  // that one account has sockets of, when it asks for another
	maxAccountSlots = 64  // of a port, that one account but root has

	// vacancyTime is how long the agent answers for a port whose last process has gone. Linux net/smc
	// tests each link that has been silent for 30 seconds, so all queue pairs of such a peer have sent
	// something by then, again and again.
	vacancyTime = 3 * time.Minute
	// lookPeriod is between two looks whether a port has lost its last process.
	lookPeriod = 2 * time.Second

	maxVacancies        = 64 // at a time
	maxAccountVacancies = maxAccountPorts

	// A room is a network namespace in which the agent introduces processes. Each has a descriptor.
	maxRooms        = 4096
	maxAccountRooms = 64
	roomBacklog     = 128  // in a long one all would wait behind those who connect again and again
	maxThreads      = 1024 // of a process, that are looked through for the namespace that was reported

	// maxThreadNamespaces are different ones of these threads: each look takes a thread of the agent's.
	maxThreadNamespaces = 16

	keeperPause = 100 * time.Millisecond // before a keeper that has ended is started again

	acceptPause = 50 * time.Millisecond // after a passing shortage, such as of descriptors
)
