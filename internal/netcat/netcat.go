// Package netcat is the engine of gosmc connect and gosmc listen: it joins connections with standard
// input and output as netcat does, and serves connections side by side. It tells its caller of
// connections that have ended; a [Reporter] prints that.
package netcat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/control"
)

// shutdownTime is how long connections have to end in order, when the work of a host is done.
const shutdownTime = 5 * time.Second

// A Requirement is the value of a flag: what a connection has to use. The zero value permits
// everything.
type Requirement struct{ smc.Requirement }

var requirements = []struct {
	name string
	r    smc.Requirement
}{{"smc", smc.RequireSMC}, {"smc-d", smc.RequireSMCD}, {"smc-r", smc.RequireSMCR}}

// RequirementNames returns the values that [Requirement.Set] takes.
func RequirementNames() (names []string) {
	for _, r := range requirements {
		names = append(names, r.name)
	}
	return names
}

// String returns the name of the requirement, "" for none.
func (f *Requirement) String() string {
	for _, r := range requirements {
		if r.r == f.Requirement {
			return r.name
		}
	}
	return ""
}

// Type names the value in help texts.
func (f *Requirement) Type() string { return "mode" }

// Set takes a name, in letters of any case. The error has the names that there are.
func (f *Requirement) Set(s string) error {
	for _, r := range requirements {
		if strings.EqualFold(r.name, s) {
			f.Requirement = r.r
			return nil
		}
	}
	return errors.New("want smc, smc-d or smc-r")
}

// Met says whether a connection in this mode is good enough.
func (f *Requirement) Met(m smc.Mode) bool {
	switch f.Requirement {
	case smc.RequireSMC:
		return m == smc.ModeSMCD || m == smc.ModeSMCR
	case smc.RequireSMCD:
		return m == smc.ModeSMCD
	case smc.RequireSMCR:
		return m == smc.ModeSMCR
	}
	return true
}

// unmet is the error for a connection that is not good enough.
func (f *Requirement) unmet(c *Report) error {
	why := c.Reason
	if why == "" {
		why = "it uses " + c.Mode.String()
	}
	if c.ReasonCode != 0 {
		why += " (" + c.ReasonCode.String() + ")"
	}
	if c.Advice != "" {
		why += ". " + c.Advice
	}
	return &UnmetError{fmt.Sprintf("the connection with %s does not meet --require %s: %s", c.Peer, f, why)}
}

// An UnmetError says that a connection does not meet the requirement, and why.
type UnmetError struct{ text string }

func (e *UnmetError) Error() string { return e.text }

// A Report is about a connection that has ended.
type Report struct {
	Start time.Time `json:"-"` // of the transfer, or of the refusal

	Mode       smc.Mode           `json:"mode"`
	Version    string             `json:"version"`
	EID        string             `json:"eid"`
	ReasonCode control.ReasonCode `json:"reason_code"`
	Reason     string             `json:"reason"` // why Mode is TCP, in words
	Advice     string             `json:"advice"` // the remedy for the reason
	Local      string             `json:"local"`
	Peer       string             `json:"peer"`
	PeerHost   string             `json:"peer_host"`
	PeerOS     string             `json:"peer_os"`
	BytesIn    int64              `json:"bytes_in"` // of payload
	BytesOut   int64              `json:"bytes_out"`
	Seconds    float64            `json:"seconds"`
	Error      string             `json:"error"`
}

// newReport describes c as it is now.
func newReport(c *smc.Conn) Report {
	st := c.State()
	return Report{
		Start: time.Now(),
		Mode:  st.Mode, Version: st.Version, EID: st.EID,
		ReasonCode: control.ReasonCode(st.Reason.Code), Reason: st.Reason.Text, Advice: st.Reason.Advice,
		Local: address(c.LocalAddr()), Peer: address(c.RemoteAddr()),
		PeerHost: st.PeerHost, PeerOS: st.PeerOS,
	}
}

func address(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// shutdown lets the connections of h end in order, for a moment at most.
func shutdown(h *smc.Host) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	h.Shutdown(ctx)
}
