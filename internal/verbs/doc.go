// Package verbs is the seam between SMC-R and RDMA devices: the part of RDMA verbs that package link
// needs, as interfaces, and the values that pass through them.
//
// Package rdma implements the interfaces in software. Package uverbs/provider implements them on
// devices of the kernel. Package rnic opens a device of one of them for an address of this machine.
//
// The interfaces have no method that allocates for each message. A completion queue calls a handler.
// Software RoCE calls it on the goroutine that receives packets, and a kernel device on a goroutine
// that reads the completion channel.
//
// Some methods are hints that devices of hardware cannot follow: [QP.AnswerFirst] and
// [QP.HoldAnswers]. Others are interfaces of their own, which a region or a device may not
// implement: [Guarded], [Counted]. docs/rdma.md lists the guarantees that are missing then.
//
// Sources: InfiniBand Architecture Specification (IBTA) volume 1, chapters 10 and 11.
package verbs
