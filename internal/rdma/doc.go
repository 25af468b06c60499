// Package rdma is RDMA in software: reliable connected queue pairs over UDP, as RoCEv2 defines
// them, compatible on the wire with Linux rdma_rxe and with adapters. It offers the part of verbs
// that SMC-R needs: device, protection domain, memory region, RC queue pair, completion queue; RDMA
// WRITE, and SEND with posted receives. It needs no privilege.
//
//	Device   a local IP address on UDP port 4791: its GID, MAC and MTU
//	PD       protection domain: which queue pairs may use which memory
//	MR       memory region: bytes that a peer may write to with the region's RKey
//	QP       queue pair: one end of a reliable connection
//	CQ       completion queue: the results of the work that was posted
//
// # How it is put together
//
// A queue pair is a value, [qpc], in the files qpc.go, requester.go, responder.go and window.go:
// packets and time go in, packets and completions come out. It has no lock, no clock and no socket,
// so that a simulation can run millions of packets through two of them in a second, and lose,
// repeat and reorder any of them. Around it, in device.go, rx.go, tx.go and qp.go, are the socket,
// the locks and the timers.
//
// Queue pairs to one address take turns, and have a budget of packets together: schedule.go, budget.go.
//
// Nothing runs per queue pair. A device has one goroutine, which receives, lets queue pairs answer,
// calls the handlers of completion queues, and sends the packets that may go as a result. Work that
// is posted is sent by the goroutine that posts it, as far as it is the queue pair's turn. While
// the socket is full another goroutine waits for it. A timer of a queue pair is armed only while
// something is unacknowledged.
//
// The packet formats are in wire/roce, the sockets in internal/udp.
//
// Sources: InfiniBand Architecture Specification (IBTA) volume 1, chapters 9 to 11, and its annex
// A17 for RoCEv2; Linux rdma_rxe for behaviour that was observed.
package rdma
