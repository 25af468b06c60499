// Package supervisor is the part of 'gosmc run' beside the program: it supervises the connections that
// the library of package preload moves.
//
// A supervisor is a process with a socket in the run directory. Programs tell it on which sockets
// they listen; its broker (package broker) has these, and the ends that others offer. A program that
// has accepted a connection asks for the end, or takes it out of a letterbox by itself. Programs that
// have another user by now ask at a door of their own. The supervisor ends with the last of its
// programs.
//
// Everything is one loop over epoll in one goroutine, as programs wait for its answers.
// docs/shared-memory.md, section 9, has the messages.
package supervisor
