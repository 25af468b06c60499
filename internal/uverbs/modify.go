package uverbs

import (
	"fmt"

	"github.com/gosmc/smc/wire"
)

// qpTypeRC is the reliable connection service: IB_QPT_RC.
const qpTypeRC = 2

// A createQP is the body of CREATE_QP.
//
//	offset  size  field
//	     0     8  handle for events
//	     8     4  handle of the protection domain
//	    12     4  handle of the completion queue of sends
//	    16     4  handle of the completion queue of receives
//	    20     4  handle of a shared receive queue: none
//	    24     4  sends
//	    28     4  receives
//	    32     4  SGEs of a send
//	    36     4  SGEs of a receive
//	    40     4  bytes of data in the work request itself
//	    44     1  1: all sends are signaled
//	    45     1  service: 2 = RC
//	    46     1  1: with a shared receive queue
//	    47     1  reserved
type createQP struct {
	user               uint64
	pd, sendCQ, recvCQ uint32
	maxSend, maxRecv   uint32
}

func (c createQP) append(b []byte) []byte {
	b = host.AppendUint64(b, c.user)
	for _, v := range []uint32{c.pd, c.sendCQ, c.recvCQ, 0, c.maxSend, c.maxRecv, MaxSGE, MaxSGE, 0} {
		b = host.AppendUint32(b, v)
	}
	return append(b, 0, qpTypeRC, 0, 0)
}

// A createdQP is the answer to CREATE_QP.
type createdQP struct {
	handle             uint32
	qpn                wire.QPN
	recvRing, sendRing mmInfo
}

const createQPLen = 32 + 2*mmInfoLen

// parseCreateQP decodes the answer to CREATE_QP of rxe. After an error the handle is set if the
// answer has one.
//
//	offset  size  field
//	     0     4  handle
//	     4     4  number
//	     8    20  sizes of the queues, at least those asked for: the queues themselves say it again
//	    28     4  reserved
//	    32    16  place of the receive queue
//	    48    16  place of the send queue
func parseCreateQP(b []byte) (q createdQP, err error) {
	if err := needs("answer to CREATE_QP", b, createQPLen); err != nil {
		return q, err
	}
	q.handle = host.Uint32(b)
	qpn := host.Uint32(b[4:])
	if qpn < 2 || qpn >= 1<<24 { // rule: TestCreateQP
		return q, kernelError("a queue pair with number %#x", qpn)
	}
	q.qpn = wire.QPN(qpn)
	if q.recvRing, err = parseMMInfo(b[32:]); err != nil {
		return q, err
	}
	q.sendRing, err = parseMMInfo(b[48:])
	return q, err
}

// The attributes that MODIFY_QP sets: enum ib_qp_attr_mask.
const (
	maskState          = 1 << 0
	maskAccess         = 1 << 3
	maskPKeyIndex      = 1 << 4
	maskPort           = 1 << 5
	maskAddress        = 1 << 7
	maskPathMTU        = 1 << 8
	maskTimeout        = 1 << 9
	maskRetryCount     = 1 << 10
	maskRNRRetry       = 1 << 11
	maskRecvPSN        = 1 << 12
	maskReads          = 1 << 13
	maskMinRNRTimer    = 1 << 15
	maskSendPSN        = 1 << 16
	maskReadsResponder = 1 << 17
	maskDestQPN        = 1 << 20

	maskInit = maskState | maskPKeyIndex | maskPort | maskAccess
	maskRTR  = maskState | maskAddress | maskPathMTU | maskDestQPN | maskRecvPSN | maskReadsResponder |
		maskMinRNRTimer
	maskRTS = maskState | maskTimeout | maskRetryCount | maskRNRRetry | maskSendPSN | maskReads
)

// A modifyQP is the body of MODIFY_QP. The kernel looks at the fields that mask names.
//
//	offset  size  field
//	     0    16  GID of the peer
//	    16     4  flow label
//	    20     4  LID of the peer; reserved
//	    24     1  index of our GID
//	    25     1  hop limit
//	    26     1  traffic class
//	    27     3  of InfiniBand
//	    30     1  1: the GIDs count
//	    31     1  port
//	    32    32  the same of an alternate path
//	    64     4  handle
//	    68     4  mask
//	    72     4  key of datagrams
//	    76     4  first PSN of the peer
//	    80     4  first PSN of ours
//	    84     4  number of the peer's queue pair
//	    88     4  access
//	    92     4  indexes of partition keys
//	    96     1  state
//	    97     1  present state
//	    98     1  path MTU
//	    99     2  migration of the path; draining
//	   101     2  READs at once, by us and by the peer
//	   103     1  RNR timer
//	   104     1  port
//	   105     1  timeout
//	   106     1  retries
//	   107     1  RNR retries
//	   108     4  of an alternate path; reserved
type modifyQP struct {
	handle, mask     uint32
	state            State
	port             uint8
	access           Access
	gidIndex         uint8
	rtr              RTR
	rts              RTS
	hopLimit, global uint8
}

const modifyQPLen = 112

func (m modifyQP) append(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, modifyQPLen)...)
	f := b[start:]
	copy(f, m.rtr.RemoteGID[:])
	f[24], f[25], f[30], f[31] = m.gidIndex, m.hopLimit, m.global, m.port
	host.PutUint32(f[64:], m.handle)
	host.PutUint32(f[68:], m.mask)
	host.PutUint32(f[76:], uint32(m.rtr.RecvPSN))
	host.PutUint32(f[80:], uint32(m.rts.SendPSN))
	host.PutUint32(f[84:], uint32(m.rtr.RemoteQPN))
	host.PutUint32(f[88:], uint32(m.access))
	f[96], f[98], f[103], f[104] = uint8(m.state), uint8(m.rtr.PathMTU), m.rtr.MinRNRTimer, m.port
	f[105], f[106], f[107] = m.rts.Timeout, m.rts.RetryCount, m.rts.RNRRetry
	return b
}

// RTR has the attributes that a queue pair needs before it can receive: IBTA 11.2.4.2.
type RTR struct {
	RemoteGID   wire.GID
	RemoteQPN   wire.QPN
	PathMTU     wire.MTU // at most the active MTU of the port; the smaller one of both sides
	RecvPSN     wire.PSN // of the peer's first packet
	MinRNRTimer uint8    // code, 5 bits: how long the peer waits when no receive is posted
	Port        uint8    // of the device, from 1
	GIDIndex    uint8    // our GID: its place in the port's table
}

// RTS has the attributes that a queue pair needs before it can send: IBTA 11.2.4.2.
type RTS struct {
	SendPSN    wire.PSN // of our first packet
	Timeout    uint8    // local ACK timeout, 4.096 us << Timeout, 5 bits; 0: wait forever
	RetryCount uint8    // timeouts and sequence NAKs without progress before giving up, 0 to 7
	RNRRetry   uint8    // the same for a peer that has no receive posted; 7: no limit
}

// hopLimit is the time to live of packets.
const hopLimit = 64

// Init moves the queue pair from RESET to INIT. access is the peer's.
func (q *QP) Init(port uint8, access Access) error {
	if port == 0 || port > q.pd.c.limits.Ports || access&^allAccess != 0 {
		return argError("port %d, access %#x", port, uint32(access))
	}
	return q.modify(StateReset, modifyQP{mask: maskInit, state: StateInit, port: port, access: access})
}

// ReadyToReceive moves the queue pair from INIT to RTR. The kernel resolves the address of the
// peer.
func (q *QP) ReadyToReceive(a RTR) error {
	if a.Port == 0 || a.Port > q.pd.c.limits.Ports || a.RemoteQPN >= 1<<24 || a.RecvPSN >= 1<<24 ||
		!validMTU(a.PathMTU) || a.MinRNRTimer >= 1<<5 || a.RemoteGID.IsZero() {
		return argError("attributes of RTR: %+v", a)
	}
	return q.modify(StateInit, modifyQP{
		mask: maskRTR, state: StateRTR, port: a.Port, gidIndex: a.GIDIndex, rtr: a,
		hopLimit: hopLimit, global: 1,
	})
}

// ReadyToSend moves the queue pair from RTR to RTS.
func (q *QP) ReadyToSend(a RTS) error {
	if a.SendPSN >= 1<<24 || a.Timeout >= 1<<5 || a.RetryCount > 7 || a.RNRRetry > 7 {
		return argError("attributes of RTS: %+v", a)
	}
	return q.modify(StateRTR, modifyQP{mask: maskRTS, state: StateRTS, rts: a})
}

// Fail moves the queue pair to ERR. Work is flushed: each work request gives a completion.
func (q *QP) Fail() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	return q.modifyLocked(modifyQP{mask: maskState, state: StateError})
}

// modify makes a transition from a state.
func (q *QP) modify(from State, m modifyQP) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return ErrClosed
	case q.state != from: // rule: TestState
		return fmt.Errorf("uverbs: to %v from %v: %w", m.state, q.state, ErrState)
	}
	return q.modifyLocked(m)
}

func (q *QP) modifyLocked(m modifyQP) error {
	m.handle = q.handle
	if err := q.pd.c.command(cmdModifyQP, m.append(nil), nil); err != nil {
		return err
	}
	q.state = m.state
	return nil
}

// State returns the state that this side has set. The kernel may have gone to ERR, which
// completions tell.
func (q *QP) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}
