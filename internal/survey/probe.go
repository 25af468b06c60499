package survey

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/rundir"
)

// A Probe has the capabilities of a program that is started here and now.
type Probe struct {
	// of a host made for the occasion: as it sees itself, whether or not others could ask it
	control.Status
	Others int // hosts that are live in its run directory
}

// NewProbe makes a host in its default settings, has it listen, which takes the resources of the
// system that a host takes, asks it, and closes it. The error says why it can have no shared
// memory, or cannot be asked by others, with the remedy; the Probe holds all that can be said then.
func NewProbe(ctx context.Context) (*Probe, error) {
	p := new(Probe)
	h, err := host.New(host.Config{})
	if err != nil {
		return p, err
	}
	if _, err := os.Stat(h.Dir()); errors.Is(err, fs.ErrNotExist) {
		defer rundir.RemoveEmpty(h.Dir()) // it may be misspelt, and looking leaves nothing behind
	}
	defer h.Close()
	l, err := h.Listen(ctx, "tcp", "127.0.0.1:0", host.ListenOptions{})
	if err == nil {
		defer l.Close()
	}
	p.Status = h.Status()
	p.Dir = h.Dir()
	if err != nil {
		return p, err
	}
	if c := p.Capabilities.SMCDv2; !c.Available {
		return p, errors.New(strings.TrimSpace(c.Why + " " + c.Advice))
	}
	answers := Ask(ctx, p.Dir)
	found := false
	for _, st := range answers.Hosts {
		if st.PID == os.Getpid() && st.GID == p.GID {
			found = true
			p.PID, p.UID, p.Name = st.PID, st.UID, st.Name
		} else {
			p.Others++
		}
	}
	if found {
		return p, nil
	}
	why := []string{fmt.Sprintf("a host works here, but does not answer in %s", p.Dir)}
	for _, e := range answers.Errors {
		why = append(why, e.Path+": "+e.Text)
	}
	return p, errors.New(strings.Join(why, "; "))
}

// Look makes a host in its default settings and asks it, without its taking more from the system
// than that needs. The error says that the configuration file, or the environment, is not
// understood.
func Look() (*control.Status, error) {
	if _, err := config.Load(); err != nil {
		return nil, err
	}
	h, err := host.New(host.Config{})
	if err != nil {
		return nil, err
	}
	return h.Names(), h.Close()
}
