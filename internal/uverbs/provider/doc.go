// Package provider makes verbs devices, as package verbs has them, of RDMA devices of the kernel.
//
// A completion queue has a goroutine that sleeps in Go's poller until the kernel puts a completion
// in, and calls the handler. A device has a goroutine that reads asynchronous events.
//
// A kernel device does not do three things that software RoCE does. It places repeated WRITEs, it does
// not count placed bytes, and it acknowledges messages on its own. docs/rdma.md says what follows.
package provider
