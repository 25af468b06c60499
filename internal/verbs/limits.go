package verbs

// MaxSGE is how many pieces of memory a work request has: a ring has two.
const MaxSGE = 2

// MaxMessage is the longest message in bytes. IBTA allows 2 GiB; at the smallest path MTU those are
// 2^23 packets, half of the sequence space, too many to tell old from new.
const MaxMessage = 1 << 30
