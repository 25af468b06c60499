package introduce

import "time"

// All limits are ours: nothing else speaks this protocol. docs/agent.md lists those of the agent.
const (
	// MaxClients bounds the processes that are connected to an agent, and maxAccountClients those of one
	// account. Each has one descriptor and one goroutine.
	MaxClients        = 8192
	maxAccountClients = 512

	// maxWaiting bounds the questions that wait at an agent, maxAccountWaiting those of one account, and
	// maxClientWaiting those of one process. A question holds no descriptor.
	maxWaiting        = 16384
	maxAccountWaiting = 2048
	maxClientWaiting  = 1024

	// requestRate is how many messages of one account an agent serves in a second, and requestBurst
	// how many may come at once. Processes that know each other ask no more, so most programs need one
	// for each peer.
	requestRate  = 5000
	requestBurst = 10000

	// MaxWait is the longest time that a question waits for the other end's.
	MaxWait = 3 * time.Second

	// helloTime bounds how long a process that has connected may take for its Hello.
	helloTime = 2 * time.Second

	// dialTime bounds how long a process waits for the agent's Welcome.
	dialTime = 2 * time.Second

	// closeTime bounds how long an agent that ends waits for the descriptors of processes.
	closeTime = time.Second

	// acceptPause is the pause of a listener after a shortage, such as of descriptors.
	acceptPause = 50 * time.Millisecond

	// MaxUsers bounds the users and groups in a policy, all lists together.
	MaxUsers = 256
)
