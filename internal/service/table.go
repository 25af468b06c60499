package service

import (
	"fmt"
	"io"
	"strings"

	"github.com/gosmc/smc/internal/text"
)

// WritePlan prints a drop-in for the administrator, with the notes about it. The error comes from w.
func (s *System) WritePlan(w io.Writer, p *Plan) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:\n\n", s.Outside(p.Path))
	for line := range strings.Lines(p.Text) {
		fmt.Fprintf(&b, "    %s\n", text.Printable(strings.TrimSuffix(line, "\n")))
	}
	fmt.Fprintln(&b)
	for _, note := range p.Notes {
		fmt.Fprintln(&b, "Note:", text.Printable(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ClientDir names the setting that clients need besides, behind a comma, for a run directory that is
// not their default; "" for that.
func (p *Plan) ClientDir() string {
	if p.Dir == systemDir {
		return ""
	}
	return ", with GOSMC_DIR=" + text.Printable(p.Dir)
}

// WriteStatuses prints a line for each service.
func WriteStatuses(w io.Writer, list []Status) error {
	t := text.Table{Columns: []text.Column{
		{Title: "Service"}, {Title: "State"}, {Title: "Running"}, {Title: "Run directory"},
		{Title: "File"}, {},
	}}
	for _, s := range list {
		t.Add(text.Printable(strings.TrimSuffix(s.Unit, ".service")), s.State, text.OrNA(s.Running),
			text.OrNA(s.Dir), text.Printable(s.File), text.Printable(s.Why))
	}
	return t.Write(w)
}
