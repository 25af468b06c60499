package verbs

import "strconv"

// A State is the state of a queue pair: IBTA 10.3.1. The states for draining, SQD and SQE, are left
// out: SMC has no use for them.
type State uint8

// All states.
const (
	// StateReset: just made, or reset. Nothing may be posted, packets are dropped.
	StateReset State = iota
	// StateInit: receives may be posted, packets are dropped.
	StateInit
	// StateRTR, ready to receive: the peer is known and its requests are answered.
	StateRTR
	// StateRTS, ready to send: all work is done.
	StateRTS
	// StateError: work that was posted has been flushed, and work that is posted now is flushed
	// too. Packets are dropped; the peer is told after [QP.Fail].
	StateError
)

// String returns the name as ibv_devinfo and rdma(8) spell it.
func (s State) String() string {
	switch s {
	case StateReset:
		return "RESET"
	case StateInit:
		return "INIT"
	case StateRTR:
		return "RTR"
	case StateRTS:
		return "RTS"
	case StateError:
		return "ERR"
	}
	return "state(" + strconv.Itoa(int(s)) + ")"
}
