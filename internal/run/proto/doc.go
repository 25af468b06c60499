// Package proto is the protocol between the programs of 'gosmc run', programs of package smc and
// supervisors: messages, names of sockets and files, and the checks of sockets that are handed over.
// The library of package preload has the same in C: preload/src/preload.h. docs/shared-memory.md,
// section 9, has the messages and their order.
package proto
