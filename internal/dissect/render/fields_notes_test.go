package render

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
)

// Messages with values that somebody else has printed: the field has that value, and -x shows it
// beside the field's bytes.
func TestNotes(t *testing.T) {
	text, err := os.ReadFile("testdata/notes.txt")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^(.{22,}?) +(absent|[a-z][\w.]+) {2,}(.+)$`)
	messages := strings.Split(string(text), "\n== ")
	if len(messages) != 6 {
		t.Fatalf("notes.txt has %d messages, want 5", len(messages)-1)
	}
	for _, m := range messages[1:] {
		name, body, _ := strings.Cut(m, "\n")
		t.Run(name, func(t *testing.T) {
			var dump, values []string
			for l := range strings.Lines(body) {
				l = strings.TrimSpace(l)
				switch {
				case l == "":
				case line.MatchString(l):
					values = append(values, l)
				default:
					dump = append(dump, l)
				}
			}
			if len(values) < 9 || len(dump) < 2 {
				t.Fatalf("notes.txt: %d values and %d rows of bytes in %s", len(values), len(dump), name)
			}
			e := dissect.MessageEvent(nil, hexBytes(t, strings.Join(dump, " ")))
			if e.Family != dissect.CLC || e.Message == nil {
				t.Fatalf("MessageEvent = %v, %v", e.Family, e.Problems)
			}
			hex := string(AppendHex(nil, e))
			for _, l := range values {
				f := line.FindStringSubmatch(l)
				key, want := f[2], f[3]
				if _, ours, ok := strings.Cut(want, " = "); ok {
					want = ours
				}
				if key == "absent" {
					continue
				}
				checkNote(t, e, hex, key, want)
			}
		})
	}
}

// checkNote finds a value in the words of the field with the key, and in the row that -x has for it.
func checkNote(t *testing.T, e *dissect.Event, hex, key, want string) {
	t.Helper()
	f := fieldNamed(t, e, key)
	// A number may stand beside its hexadecimal form, and a name behind its number.
	word := regexp.MustCompile(`(^|[ (])` + regexp.QuoteMeta(want) + `($|[ ),.])`)
	if got := f.String(); !word.MatchString(got) {
		t.Errorf("%s = %q, want %q in it", key, got, want)
	}
	row := ""
	for l := range strings.Lines(hex) {
		if strings.Contains(l, "  "+f.Name+": ") {
			row = strings.TrimSpace(l)
			break
		}
	}
	if !word.MatchString(row) {
		t.Errorf("row of %s is %q, want %q in it", key, row, want)
	}
}
