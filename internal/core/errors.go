package core

import (
	"fmt"

	"github.com/gosmc/smc/wire/clc"
)

// A ProtocolError reports that the peer broke the protocol. The TCP connection must be ended:
// RFC 7609 C.6 allows no fallback, because the two sides no longer agree on the meaning of the
// bytes.
type ProtocolError struct {
	Message string // the received message, as "CLC Accept"
	State   string // the awaited message, or the connection's state
	Err     error  // the fault of the message
}

// Error gives the message, the state and the cause.
func (e *ProtocolError) Error() string {
	return fmt.Sprintf("core: peer broke the protocol: %s in state %s: %v", e.Message, e.State, e.Err)
}

// Unwrap returns the cause.
func (e *ProtocolError) Unwrap() error { return e.Err }

// A TimeoutError reports that the peer stayed silent for longer than the handshake allows. The
// TCP connection must be ended: RFC 7609 C.5.
type TimeoutError struct {
	Awaited string // the missing message, as "CLC Accept"
}

// Error names the message that did not come.
func (e *TimeoutError) Error() string { return "core: timeout waiting for " + e.Awaited }

// Timeout reports true, so that a [net.Error] wrapped around e can say so.
func (e *TimeoutError) Timeout() bool { return true }

// Temporary reports false.
func (e *TimeoutError) Temporary() bool { return false }

// A LinkLostError reports that the first link of a link group failed when the peer may have taken
// it for confirmed, so that nothing could be declined any more: RFC 7609 C.3. The TCP connection
// must be ended.
type LinkLostError struct {
	Why clc.Diagnosis
}

// Error says so.
func (e *LinkLostError) Error() string {
	return fmt.Sprintf("core: link failed after CONFIRM LINK: %v", e.Why)
}
