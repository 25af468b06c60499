package introduce

import "time"

// All limits are ours: nothing else speaks this protocol. docs/agent.md lists those of the agent.
const (
	// MaxClients bounds the processes that are connected to an agent, and maxAccountClients those
	// of one account. Each has one descriptor and one goroutine.
	MaxClients        = 8192
	maxAccountClients = 512

	// maxWaiting bounds the questions that wait at an agent, maxAccountWaiting those of one
	// account, and maxClientWaiting those of one process. A question holds no descriptor, unless a
	// client asks for a pair.
	maxWaiting        = 16384
	maxAccountWaiting = 2048
	maxClientWaiting  = 1024
	// maxHeld bounds the ends of pairs that an agent holds for servers that have not asked, and
	// maxAccountHeld those of one account. Each is a descriptor.
	maxHeld        = 8192
	maxAccountHeld = 1024

	// roomPause is between two attempts to tell an agent something that it has to know.
	roomPause = 5 * time.Millisecond

	// returnTime is how long a keeper waits for clients that do not read, all together.
	returnTime = time.Second

	// requestRate is how many messages of one account an agent serves in a second, and
	// requestBurst how many may come at once. Processes that know each other ask no more, so most
	// programs need one for each peer.
	requestRate  = 5000
	requestBurst = 10000

	// connectCost is how many messages a connection counts as.
	connectCost = 10

	// An account that goes on although it is refused is read more slowly, or its messages would take the
	// agent's processor all the same: each conversation pauses for floodPause after each message.
	floodPause = 100 * time.Millisecond

	// maxClosing bounds the descriptors of an account that the agent is about to close. The close of some
	// files takes as long as their owner wants. closingTime is how long a process waits for room before
	// it is dropped, and closingPause is between two looks.
	maxClosing   = 64
	closingTime  = 2 * time.Second
	closingPause = time.Millisecond

	// maxUnread is how many bytes a process may have unread before it is introduced to nobody more, as the
	// kernel counts: some 40 messages. Each has a socket, which costs the agent's control group 2 KB.
	maxUnread = 32 << 10

	// MaxWait is the longest time that a question waits for the other end's.
	MaxWait = 3 * time.Second

	// helloTime bounds how long a process that has connected may take for its Hello.
	helloTime = 2 * time.Second

	// dialTime bounds how long a process waits for the agent's Welcome.
	dialTime = 2 * time.Second

	// connectPause is how long a process waits before it connects again to an agent whose queue is full.
	connectPause = time.Millisecond

	// closeTime bounds how long an agent that ends waits for the descriptors of processes.
	closeTime = time.Second

	// acceptPause is the pause of a listener after a shortage, such as of descriptors.
	acceptPause = 50 * time.Millisecond

	// MaxUsers bounds the users and groups in a policy, all lists together.
	MaxUsers = 256
)
