package proto

// EnvSocket is the variable by which the library finds its supervisor: the path of a socket.
const EnvSocket = "GOSMC_RUN"

// EnvRingAfter is the variable with how many bytes a direction carries in-band before it may have a
// ring only to carry more, where the policy does not say it.
const EnvRingAfter = "GOSMC_RUN_RING_AFTER"

// EnvMemory is the variable with the memory that a program's rings may have if the policy does not
// set it, in bytes.
const EnvMemory = "GOSMC_RUN_MEMORY"

// EnvShortAfter is the variable with how many connections of a program to a server have to be
// short, one after another, before others stay TCP, where the policy does not say it.
const EnvShortAfter = "GOSMC_RUN_SHORT_AFTER"

// EnvPeers is the variable with the peers whose connections an engine carries, as Peers.Library of package
// config has them, or "-" for those alone that have TCP option 254. Without it there are none.
const EnvPeers = "GOSMC_RUN_PEERS"

// ModeUnix is the mode of a connection that was moved to a pair of Unix sockets.
const ModeUnix = "Unix"
