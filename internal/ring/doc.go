// Package ring is our end of a connection with a program of 'gosmc run': a pair of Unix sockets.
//
// Each direction begins in-band, as bytes of the socket, and may go over to a ring in memory that both
// programs map. docs/shared-memory.md, section 10, has the layout, the states and the rules;
// preload/src/ring.h and the files beside it are the other end.
//
// The other process can write anything into that memory at any time. So each word is loaded once and
// checked as a copy, and only values that were masked are places. A peer that breaks the rules loses its
// connection: ECONNRESET.
//
// This end differs from a program of 'gosmc run' in two ways, since nobody polls its descriptor and no other
// process has it. A reader arms its ring only before it sleeps, so it needs no rule for looking without a
// token. And it never leaves a ring by itself.
package ring
