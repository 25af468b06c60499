package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/text"
)

// Write prints the findings, with remedies below them.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		mark := map[string]string{OK: "ok  ", Warn: "WARN", Fail: "FAIL"}[f.Level]
		b.WriteString(mark + "  " + text.Printable(f.Text) + "\n")
		if f.Fix != "" {
			b.WriteString("      -> " + text.Printable(f.Fix) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteFixes prints the remedies of warnings and failures.
func (r *Report) WriteFixes(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		if f.Fix != "" && f.Level != OK {
			b.WriteString(text.Printable(f.Fix) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Write prints the explanation. all says that programs outside 'gosmc run' are meant, too.
func (r *Explanation) Write(w io.Writer, all bool) error {
	var b strings.Builder
	for _, e := range r.Servers {
		fmt.Fprintf(&b, "%s: %s of 'gosmc run' connects by %s\n",
			text.Printable(e.Server), text.Printable(cmp.Or(r.Program, "a program")), e.Mode)
		for _, s := range e.Steps {
			answer := map[bool]string{true: "yes", false: "no"}[s.OK]
			fmt.Fprintf(&b, "  %-3s  %s\n", answer, text.Printable(s.What))
		}
		if !all {
			continue
		}
		fmt.Fprintf(&b, "  A program with package smc connects by %s.\n",
			e.Library.Mode+text.Printable(prefixed(": ", e.Library.Reason)))
		if e.Listen == "" {
			fmt.Fprintf(&b, "  A program here that listens there is announced.\n")
		} else {
			fmt.Fprintf(&b, "  A program here that listens there is not announced: %s.\n",
				text.Printable(e.Listen))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// Verdict is the error of an explanation: status 3 unless some address would leave TCP.
func (r *Explanation) Verdict() error {
	var last string
	for _, e := range r.Servers {
		if e.Mode != "TCP" {
			return nil
		}
		last = e.Reason
	}
	return exit.With(exit.FellBack, errors.New(r.Address+" would be TCP: "+last))
}
