package text

import (
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
