// Package supervisor is the part of 'gosmc run' beside the program: it supervises the connections that
// the library of package preload moves.
//
// A supervisor is a process with a socket in the run directory. Programs tell it on which sockets
// they listen. Others offer it one end of a Unix socket pair before they connect there. A program
// that has accepted a connection asks it for that end. Once both programs have theirs the
// supervisor has no part in the connection. An end that nobody asks for, because a program without
// our library has accepted, is joined to TCP here, so that no byte is lost.
//
// Everything is one loop over epoll in one goroutine, as programs wait for its answers.
// docs/shared-memory.md, section 9, has the messages.
package supervisor
