package transport

import (
	"fmt"
	"net/netip"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/clc"
)

// A Fabric is one that a host can carry connections over.
type Fabric interface {
	// Mode is the mode of its connections.
	Mode() core.Mode

	// Status appends the status of each link group.
	Status(list []control.StatusGroup) []control.StatusGroup
}

// A Network is a fabric between machines: its peers are those that speak CLC over TCP.
type Network interface {
	Fabric

	// NewPath returns the path for a connection between two addresses. The caller calls Close when
	// the handshake is over.
	NewPath(role core.Role, local, remote netip.Addr) NetworkPath

	// DeleteLink ends a link of a group, as an operator asks. The error is a [NoGroupError] if the
	// group is none of this fabric.
	DeleteLink(group uint32, num uint8) error

	// Memory returns the size of all buffers, and of those into which peers write.
	Memory() (all, received int64)

	// Close ends all link groups, in order as far as that does not take long, and closes the
	// devices. With forGood none is opened afterwards.
	Close(forGood bool)
}

// A NetworkPath is the path of a [Network].
type NetworkPath interface {
	Path

	// Refuse has the path carry nothing, for a reason that the peer is told.
	Refuse(why clc.Diagnosis)

	// Close ends the use of devices by the handshake.
	Close()
}

// A NoGroupError says that a fabric has no link group of a number.
type NoGroupError struct {
	Group uint32
	Mode  core.Mode
}

func (e *NoGroupError) Error() string {
	return fmt.Sprintf("there is no link group %08x of %v", e.Group, e.Mode)
}
