package rdma

import (
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// The values of package verbs, under the names that the engine and its users have for them.
type (
	Access       = verbs.Access
	Completion   = verbs.Completion
	CompletionOp = verbs.CompletionOp
	DeviceStats  = verbs.DeviceStats
	Event        = verbs.Event
	EventKind    = verbs.EventKind
	Guard        = verbs.Guard
	Op           = verbs.Op
	QPStats      = verbs.QPStats
	RTR          = verbs.RTR
	RTS          = verbs.RTS
	RecvWR       = verbs.RecvWR
	SGE          = verbs.SGE
	SendWR       = verbs.SendWR
	State        = verbs.State
	Status       = verbs.Status
)

// The constants of package verbs.
const (
	LocalWrite  = verbs.LocalWrite
	RemoteWrite = verbs.RemoteWrite

	OpSend     = verbs.OpSend
	OpSendImm  = verbs.OpSendImm
	OpWrite    = verbs.OpWrite
	OpWriteImm = verbs.OpWriteImm

	CompletedSend    = verbs.CompletedSend
	CompletedWrite   = verbs.CompletedWrite
	Received         = verbs.Received
	ReceivedWriteImm = verbs.ReceivedWriteImm

	StatusOK              = verbs.StatusOK
	StatusLocalLength     = verbs.StatusLocalLength
	StatusLocalProtection = verbs.StatusLocalProtection
	StatusFlushed         = verbs.StatusFlushed
	StatusRemoteInvalid   = verbs.StatusRemoteInvalid
	StatusRemoteAccess    = verbs.StatusRemoteAccess
	StatusRemoteOperation = verbs.StatusRemoteOperation
	StatusRetryExceeded   = verbs.StatusRetryExceeded
	StatusRNRExceeded     = verbs.StatusRNRExceeded

	StateReset = verbs.StateReset
	StateInit  = verbs.StateInit
	StateRTR   = verbs.StateRTR
	StateRTS   = verbs.StateRTS
	StateError = verbs.StateError

	EventInterfaceDown = verbs.EventInterfaceDown
	EventInterfaceUp   = verbs.EventInterfaceUp
	EventAddressGone   = verbs.EventAddressGone
	EventAddressBack   = verbs.EventAddressBack
	EventMTUChanged    = verbs.EventMTUChanged
	EventQPFailed      = verbs.EventQPFailed
	EventSendsRefused  = verbs.EventSendsRefused
	EventOthersChanged = verbs.EventOthersChanged

	MaxMessage = verbs.MaxMessage
)

// The errors of package verbs.
var (
	ErrState      = verbs.ErrState
	ErrQueueFull  = verbs.ErrQueueFull
	ErrArgument   = verbs.ErrArgument
	ErrRegion     = verbs.ErrRegion
	ErrExhausted  = verbs.ErrExhausted
	ErrCQTooSmall = verbs.ErrCQTooSmall
	ErrBusy       = verbs.ErrBusy
	ErrClosed     = verbs.ErrClosed
)

// RandomPSN returns a first packet sequence number that nobody can guess.
func RandomPSN() wire.PSN { return verbs.RandomPSN() }
