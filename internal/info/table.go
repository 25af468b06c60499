package info

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/text"
)

// NextStep names the command that comes next for somebody who has run nothing yet.
func (r *Report) NextStep() string {
	switch {
	case !r.Capabilities.SMCDv2.Available:
		return "'gosmc doctor' names the remedy"
	case len(r.Programs) == 0:
		return "start a server and its clients by 'gosmc run PROGRAM', or try 'gosmc demo'"
	}
	return fmt.Sprintf("'gosmc ss' shows the connections, 'gosmc ss --why' the reasons for TCP; "+
		"programs under gosmc run: %d", len(r.Programs))
}

// Verdict says in a sentence or two what programs of this user can do.
func (r *Report) Verdict() string {
	c, text := r.Capabilities, "Programs of one user on this machine can leave TCP."
	if !c.SMCDv2.Available {
		text = "Programs here stay with TCP: " + cmp.Or(c.SMCDv2.Why, r.Error)
	}
	switch {
	case c.SMCRv2.Available:
		text += " They can use SMC-R with other machines."
	case len(r.UEIDs) == 0:
		text += " SMC-R with other machines is off, as no UEID is configured; that is normal."
	default:
		text += " SMC-R with other machines cannot be used: the table says why."
	}
	return text
}

// Write prints the report for people.
func (r *Report) Write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n\n", text.Printable(r.Verdict())); err != nil {
		return err
	}
	t := text.Table{Columns: []text.Column{{}, {}}}
	t.Add("Host name", text.OrNA(r.HostName))
	for _, l := range r.Machine.Lines() {
		t.Add(l[0], l[1])
	}
	t.Add("Memory", text.Bytes(r.MemoryTotal))
	t.Add("Open files", fmt.Sprintf("%d, at most %d", r.OpenFiles.Soft, r.OpenFiles.Hard))
	dir := text.OrNA(r.Dir)
	switch {
	case r.DirMode != "":
		dir += " (" + r.DirMode + ")"
	case r.Dir != "":
		dir += " (does not exist)"
	}
	t.Add("Run directory", dir)
	file := text.Printable(r.ConfigFile)
	if _, err := os.Stat(r.ConfigFile); errors.Is(err, os.ErrNotExist) {
		file += " (does not exist)"
	}
	t.Add("Configuration", file)
	if r.ConfigError != "" {
		t.Add("", "left out: "+text.Printable(r.ConfigError))
	}
	t.Add("Hosts running", strconv.Itoa(r.Hosts))
	if len(r.Programs) > 0 {
		t.Add("By gosmc run", inventory.ProgramNames(r.Programs))
	}
	for _, program := range slices.Sorted(maps.Keys(r.Left)) {
		t.Add("Left to TCP", program+": "+r.Left[program])
	}
	t.Add("SEID", text.OrNA(r.SEID))
	t.Add("UEIDs", text.OrNA(strings.Join(r.UEIDs, ", ")))
	t.Add("GID", text.OrNA(r.GID))
	if err := t.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := r.writeCapabilities(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return r.writeLimits(w)
}

func (r *Report) writeCapabilities(w io.Writer) error {
	can := text.Table{Columns: []text.Column{{Title: "Capability"}, {Title: "Available"}, {Title: "Why not"}}}
	c, advice := r.Capabilities, ""
	for _, row := range []struct {
		name string
		c    control.Capability
	}{
		{"SMC-D v2 (shared memory)", c.SMCDv2},
		{"SMC-D v1", c.SMCDv1},
		{"SMC-R v2 (RDMA)", c.SMCRv2},
		{"SMC-R v1", c.SMCRv1},
		{"TCP option 254", c.TCPOption},
		{"Local rendezvous", c.LocalRendezvous},
		{"Pairing of sockets", r.Pairing},
	} {
		available := "no"
		if row.c.Available {
			available = "yes"
		}
		can.Add(row.name, available, text.Printable(row.c.Why))
		if row.c.Advice != "" && row.c.Advice != advice {
			advice = row.c.Advice // the same for all that it stands in the way of
			can.Add("", "", text.Printable(advice))
		}
	}
	return can.Write(w)
}

func (r *Report) writeLimits(w io.Writer) error {
	limits := text.Table{Columns: []text.Column{
		{Title: "Limit"}, {Title: "Value", Right: true}, {Title: "In use", Right: true},
	}}
	for _, l := range r.Limits {
		used := "n/a"
		if l.Used >= 0 {
			used = text.Unit(l.Used, l.Unit)
		}
		limit := "none"
		if l.Limit >= 0 {
			limit = text.Unit(l.Limit, l.Unit)
		}
		limits.Add(text.OrNA(l.Name), limit, used)
	}
	return limits.Write(w)
}
