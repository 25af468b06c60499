// Package uverbs uses the RDMA devices of the kernel in pure Go, by /dev/infiniband/uverbsN.
//
// It speaks ABI 6 of the kernel's user verbs: commands by write(2), and one query by ioctl(2). It
// needs no cgo and no libibverbs. Creating objects is the same for every driver. The data path is
// not: each driver shares queues of its own layout with the process. This package knows the layout
// of rxe, the kernel's software RoCE, and refuses other drivers with [ErrUnsupported]. docs/rdma.md
// lists the tested combinations.
//
// # Objects
//
// [Devices] lists the devices from sysfs, which needs no privilege. [Open] opens one and returns a
// [Context]. A context has protection domains ([PD]), memory regions ([MR]), completion queues
// ([CQ]) and queue pairs ([QP]) of the reliable connection service. [Context.Close] releases
// everything; so does the end of the process.
//
// # Goroutines and locks
//
// The package starts no goroutine. All methods may be called by several goroutines. The locks, in
// their order: QP.mu, CQ.mu, Context.mu, and Context.fdMu, which keeps the descriptor open during a
// command.
//
// # Trust
//
// Addresses, sizes and indexes of the kernel are checked before use, as a peer's are. A queue that
// is not a power of two, or lies outside its mapping, or an index outside the queue, is [ErrKernel]
// and no access to memory. Identifiers of work requests in shared memory are sequence numbers of
// this package, so a completion for work that was not posted is found. The virtual addresses of
// regions are random, and tell a peer nothing about this process.
package uverbs
