package text

import (
	"slices"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	tab := Table{Columns: []Column{{Title: "Name"}, {Title: "Value", Right: true}, {}, {Title: "Note"}}}
	tab.Add("a", "1", "", "x")
	tab.Add("µs", "1 000", "")
	tab.Add()
	tab.Add("long name", "22", "", "y")
	var b strings.Builder
	if err := tab.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"Name       Value  Note\n" +
		"a              1  x\n" +
		"µs         1 000\n" +
		"\n" +
		"long name     22  y\n"
	if b.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", b.String(), want)
	}
}

// TestTablePick has columns chosen, in an order of their own, and rows sorted by number and by text.
func TestTablePick(t *testing.T) {
	tab := Table{Columns: []Column{{Title: "Name"}, {Title: "Value", Right: true}, {Title: "Note"}}}
	tab.Add("b", "9", "x")
	tab.Below("below b")
	tab.Add("a", "10", "y")
	tab.Add("c", "9")
	for _, tt := range []struct {
		sort    int
		columns []int
		want    string
	}{
		{0, []int{1, 0}, "Value  Name\n   10  a\n    9  b\n        below b\n    9  c\n"},
		{1, []int{0, 1}, "Name  Value\na        10\nb         9\n        below b\nc         9\n"},
		{1, []int{2}, "Note\ny\nx\n        below b\n\n"},
	} {
		c := tab
		c.rows = slices.Clone(tab.rows)
		c.Sort(tt.sort)
		c.Pick(tt.columns)
		var b strings.Builder
		if err := c.Write(&b); err != nil || b.String() != tt.want {
			t.Errorf("sorted by %d, columns %v: %v\n%s\nwant:\n%s", tt.sort, tt.columns, err, b.String(), tt.want)
		}
	}
}
