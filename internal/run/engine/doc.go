// Package engine carries connections of programs of 'gosmc run' with other hosts: it speaks CLC on their
// TCP connections, and moves the bytes between SMC-R and pairs of Unix sockets, of which the programs have
// the other ends. A connection that cannot be SMC-R stays TCP, which the engine joins to the pair.
//
// It is a process beside a supervisor, which hands connections over and knows nothing of SMC-R. One that
// ends takes its connections along, and nothing else.
package engine
