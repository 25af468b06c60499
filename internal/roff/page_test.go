package roff

import "testing"

// TestPage writes a page with each of its parts. Text must not become requests.
func TestPage(t *testing.T) {
	var p Page
	p.Head("gosmc-x", 1, "it's short")
	p.Section("DESCRIPTION")
	p.Prose("One\n.line.\n\n  --a  kept\n\nTwo.")
	p.Item("-v, --verbose", `a\b`)
	p.Raw(".br\n")
	p.Block("gosmc ~\n.TH\n")
	const want = `.TH "GOSMC-X" 1 "" "gosmc" "gosmc manual"
.SH NAME
gosmc-x \- it\(aqs short
.SH DESCRIPTION
.PP
One
\&.line.
.PP
.nf
  \-\-a  kept
.fi
.PP
Two.
.TP
.B \-v, \-\-verbose
a\eb
.br
.PP
.nf
gosmc \(ti
\&.TH
.fi
`
	if got := p.String(); got != want {
		t.Errorf("the page is\n%s\nwant\n%s", got, want)
	}
}
