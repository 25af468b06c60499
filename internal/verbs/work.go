package verbs

import (
	"strconv"
	"sync/atomic"

	"github.com/gosmc/smc/wire"
)

// An Op is the operation of a send work request.
type Op uint8

// All operations.
const (
	OpSend     Op = iota + 1 // to a receive that the peer has posted
	OpSendImm                // the same with 32 bits of immediate data
	OpWrite                  // into the peer's memory; the peer is not told
	OpWriteImm               // the same, and the peer is told by a receive and 32 bits
)

// String returns "SEND", "RDMA WRITE" and so on.
func (o Op) String() string {
	switch o {
	case OpSend:
		return "SEND"
	case OpSendImm:
		return "SEND with immediate"
	case OpWrite:
		return "RDMA WRITE"
	case OpWriteImm:
		return "RDMA WRITE with immediate"
	}
	return "op(" + strconv.Itoa(int(o)) + ")"
}

// IsWrite reports whether the operation writes to memory of the peer.
func (o Op) IsWrite() bool { return o == OpWrite || o == OpWriteImm }

// HasImm reports whether the operation carries immediate data.
func (o Op) HasImm() bool { return o == OpSendImm || o == OpWriteImm }

// An SGE is a piece of local memory: Len bytes from virtual address Addr of region MR, which has to
// be of the queue pair's protection domain. With Len zero it stands for nothing.
type SGE struct {
	MR   MR
	Addr uint64
	Len  uint32
}

// A SendWR is work for the send queue. The memory it names must stay unchanged until it has
// completed: a packet that is lost is made again from it.
type SendWR struct {
	ID        uint64 // comes back in the Completion
	Op        Op
	Signaled  bool        // completes with a Completion also when all went well
	Solicited bool        // sets the SE bit in the last packet of a SEND or a WRITE with immediate
	Local     [MaxSGE]SGE // the bytes to send, in this order; at most [MaxMessage] bytes
	Remote    uint64      // for WRITE: the virtual address at the peer
	RKey      wire.RKey   // for WRITE: the peer's region
	Imm       uint32      // for operations with immediate data
}

// Length returns the bytes of the message.
func (w *SendWR) Length() uint64 { return uint64(w.Local[0].Len) + uint64(w.Local[1].Len) }

// A RecvWR is room for one SEND, or for the news of one WRITE with immediate data. The memory
// belongs to the queue pair until the receive has completed.
type RecvWR struct {
	ID    uint64
	Local [MaxSGE]SGE // filled in this order
}

// Length returns the bytes of the room.
func (w *RecvWR) Length() uint64 { return uint64(w.Local[0].Len) + uint64(w.Local[1].Len) }

// A CompletionOp is the kind of operation that has completed.
type CompletionOp uint8

// All kinds of completions. The kinds of the send queue come first.
const (
	CompletedSend CompletionOp = iota + 1
	CompletedWrite
	Received         // a SEND of the peer
	ReceivedWriteImm // a WRITE with immediate data of the peer
)

// String returns the verbs' name, such as "IBV_WC_RDMA_WRITE" without its prefix.
func (o CompletionOp) String() string {
	switch o {
	case CompletedSend:
		return "SEND"
	case CompletedWrite:
		return "RDMA_WRITE"
	case Received:
		return "RECV"
	case ReceivedWriteImm:
		return "RECV_RDMA_WITH_IMM"
	}
	return "op(" + strconv.Itoa(int(o)) + ")"
}

// IsRecv reports whether a receive completed.
func (o CompletionOp) IsRecv() bool { return o == Received || o == ReceivedWriteImm }

// A Status says how work ended: IBTA 11.6.2. Any but StatusOK means that the queue pair is in
// [StateError].
type Status uint8

// All values.
const (
	StatusOK              Status = iota
	StatusLocalLength            // a message was longer than the receive posted for it
	StatusLocalProtection        // the local memory is no longer registered
	StatusFlushed                // not done, because the queue pair went to error first
	StatusRemoteInvalid          // the peer found the request invalid
	StatusRemoteAccess           // the peer found the RKey, the range or the access wrong
	StatusRemoteOperation        // the peer had an error of its own
	StatusRetryExceeded          // the peer does not answer
	StatusRNRExceeded            // the peer posts no receive
)

// String returns the words of ibv_wc_status_str.
func (s Status) String() string {
	switch s {
	case StatusOK:
		return "success"
	case StatusLocalLength:
		return "local length error"
	case StatusLocalProtection:
		return "local protection error"
	case StatusFlushed:
		return "work request flushed"
	case StatusRemoteInvalid:
		return "remote invalid request error"
	case StatusRemoteAccess:
		return "remote access error"
	case StatusRemoteOperation:
		return "remote operation error"
	case StatusRetryExceeded:
		return "transport retry counter exceeded"
	case StatusRNRExceeded:
		return "RNR retry counter exceeded"
	}
	return "status(" + strconv.Itoa(int(s)) + ")"
}

// A Completion is the result of a work request. Fields after Status are meaningful for receives
// that went well; after an error only ID, QP and Status are.
type Completion struct {
	ID        uint64
	QP        QP
	Op        CompletionOp
	Status    Status
	Len       uint32 // bytes received, by the SEND or the WRITE
	Imm       uint32 // if HasImm
	HasImm    bool
	Solicited bool // the peer set the SE bit

	// Turn orders receives by their arrival: it is larger than the Turn of all receives that the
	// peer, or a peer of that one, knew to have arrived when it sent this. The receives may have
	// arrived over any device of this process. Two that arrived at about the same time may have the
	// same. It is exact for software RoCE. Of a kernel device it orders the calls of Poll.
	Turn uint64
}

// Turns counts deliveries of receives, of all devices of this process: see [Completion].
var Turns atomic.Uint64
