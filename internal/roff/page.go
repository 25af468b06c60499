// Package roff writes manual pages in roff, as man(7) describes them.
package roff

import (
	"fmt"
	"strings"
)

// A Page is a manual page that is being written. The zero Page is empty. It is for one goroutine.
type Page struct{ b strings.Builder }

// String returns the page.
func (m *Page) String() string { return m.b.String() }

// Raw writes roff as it is: requests in lines of their own, and text that is escaped already.
func (m *Page) Raw(s string) { m.b.WriteString(s) }

// Head begins the page of a name in a section of the manual, 1 to 8, with its purpose in a line.
func (m *Page) Head(name string, section int, short string) {
	fmt.Fprintf(&m.b, ".TH \"%s\" %d \"\" \"gosmc\" \"gosmc manual\"\n", strings.ToUpper(name), section)
	fmt.Fprintf(&m.b, ".SH NAME\n%s \\- %s\n", name, Escape(short))
}

// Section begins a section of the page.
func (m *Page) Section(title string) { fmt.Fprintf(&m.b, ".SH %s\n", title) }

// Item writes a term and its explanation, as of a flag.
func (m *Page) Item(term, text string) {
	fmt.Fprintf(&m.b, ".TP\n.B %s\n%s\n", Escape(term), Line(text))
}

// Prose writes paragraphs, which empty lines separate. A paragraph with lines that begin with a
// space is kept as it is.
func (m *Page) Prose(s string) {
	for p := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		if strings.HasPrefix(p, " ") || strings.Contains(p, "\n ") {
			m.Block(p)
			continue
		}
		m.Raw(".PP\n")
		for line := range strings.SplitSeq(p, "\n") {
			m.Raw(Line(strings.TrimSpace(line)) + "\n")
		}
	}
}

// Block writes lines as they are.
func (m *Page) Block(s string) {
	m.Raw(".PP\n.nf\n")
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		m.Raw(Line(line) + "\n")
	}
	m.Raw(".fi\n")
}

var escapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// Escape escapes text within a line.
func Escape(s string) string { return escapes.Replace(s) }

// Line escapes a line of text, which is no request.
func Line(s string) string {
	s = Escape(s)
	if strings.HasPrefix(s, ".") {
		return `\&` + s
	}
	return s
}
