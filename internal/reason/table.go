package reason

import (
	"fmt"
	"io"

	"github.com/gosmc/smc/internal/roff"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire/clc"
)

// WriteList writes a line for each reason.
func WriteList(w io.Writer, list []Entry) error {
	t := text.Table{Columns: []text.Column{{Title: "Code"}, {Title: "Tag"}, {Title: "Reason"}}}
	for _, e := range list {
		t.Add(fmt.Sprintf("0x%08x", uint32(e.Code)), e.Tag, e.Reason)
	}
	return t.Write(w)
}

// Write writes all that is known of each reason.
func Write(w io.Writer, list []Entry) error {
	for i, e := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		t := text.Table{Columns: []text.Column{{}, {}}}
		t.Add("Reason", fmt.Sprintf("%s (0x%08x)", e.Tag, uint32(e.Code)))
		t.Add("", e.Reason)
		t.Add("Cause", e.Cause)
		t.Add("Remedy", e.Advice)
		found := "by either host: a Decline has the code"
		if e.Local {
			found = "by this host: no Decline has the code"
		}
		t.Add("Found", found)
		if err := t.Write(w); err != nil {
			return err
		}
	}
	return nil
}

// ManPage is the page gosmc-reasons(7), in roff.
func ManPage() string {
	var m roff.Page
	m.Head("gosmc-reasons", 7, "why connections stay TCP, and the remedies")
	m.Section("DESCRIPTION")
	m.Prose("A connection that does not leave TCP has a reason. 'gosmc ss' and 'gosmc stats' show its " +
		"code and sentence. 'gosmc reason' explains one.\n" +
		"Codes that begin with 0x7e01 are of gosmc and are never sent to a peer. The others are those of " +
		"Linux, whose tools show the same tags.")
	m.Section("REASONS")
	for _, r := range clc.Reasons() {
		m.Item(r.String(), r.Sentence)
		m.Raw(".br\nCause: " + roff.Escape(r.Cause) + "\n.br\nRemedy: " + roff.Escape(r.Advice) + "\n")
	}
	m.Section("SEE ALSO")
	m.Raw(roff.Line("gosmc-reason(1), gosmc-ss(1), gosmc-stats(1), gosmc-run(1)") + "\n")
	return m.String()
}
