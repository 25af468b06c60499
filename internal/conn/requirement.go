package conn

import (
	"fmt"

	"github.com/gosmc/smc/wire/clc"
)

// Requirement is the condition that the mode of a connection must meet.
type Requirement uint8

// The requirements.
const (
	AnyMode Requirement = iota // plain TCP will do
	RequireSMC
	RequireSMCD
	RequireSMCR
)

var requirementNames = [...]string{AnyMode: "any", RequireSMC: "smc", RequireSMCD: "smc-d",
	RequireSMCR: "smc-r"}

func (r Requirement) String() string { return requirementNames[r] }

// Met reports whether a connection in mode m will do.
func (r Requirement) Met(m Mode) bool {
	return requirementModes[r]>>m&1 != 0
}

// requirementModes has a bit for each mode that will do.
var requirementModes = [...]uint8{
	AnyMode:     1<<ModeTCP | 1<<ModeSMCD | 1<<ModeSMCR | 1<<ModeUnix,
	RequireSMC:  1<<ModeSMCD | 1<<ModeSMCR,
	RequireSMCD: 1 << ModeSMCD,
	RequireSMCR: 1 << ModeSMCR,
}

// A FallbackError says why a connection that was required to be SMC is not. The TCP
// connection was good, and has been closed.
type FallbackError struct {
	Reason clc.Reason
	ByPeer bool  // the peer declined
	Err    error // local cause; may be nil
}

func (e *FallbackError) Error() string {
	cause := "fell back to TCP"
	if e.ByPeer {
		cause = "fell back to TCP: declined by peer"
	}
	if e.Err != nil {
		return fmt.Sprintf("smc: %s: %s: %v", cause, e.Reason.Sentence, e.Err)
	}
	return fmt.Sprintf("smc: %s: %s", cause, e.Reason.Sentence)
}

func (e *FallbackError) Unwrap() error { return e.Err }

// FallBack makes p a plain TCP connection. If that does not meet the requirement, or the owner
// takes no more connections, TCP is closed and the error says why.
func (p *Pending) FallBack(require Requirement, f Fallback) (Conn, error) {
	c := NewTCP(p, f)
	p.env.Owner.FellBack(f.Reason, p.client)
	var err error
	if !require.Met(ModeTCP) {
		err = &FallbackError{Reason: f.Reason}
	} else if err = p.env.Owner.Add(c); err == nil {
		return c, nil
	}
	p.tcp.Close()
	p.TraceFailed(err)
	return nil, p.SetupError(err)
}
