package render

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/llc"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// selection takes from a capture the events that a reader of the golden files wants to see:
// everything about connections and links, all problems and unusual events, and some of the data.
type selection struct {
	data int // events of data so far
}

func (s *selection) wants(e *dissect.Event) bool {
	m, isCDC := e.Message.(*cdc.Message)
	switch {
	case e.Family != dissect.RoCE && e.Family != dissect.CDC && e.RoCE == nil, len(e.Problems) > 0:
		return true
	case e.RoCE != nil && e.RoCE.Retransmission: // there are hundreds, all the same
	case e.RoCE != nil && e.RoCE.Gap != 0, e.Family == dissect.LLC:
		return true
	case isCDC && (m.ProducerFlags != 0 || m.ConnFlags != 0 || e.Progress == nil || e.Progress.Failover):
		return true
	}
	s.data++
	return s.data <= 40
}

// kind tells apart events with different fields.
func kind(e *dissect.Event) string {
	k := e.Family.String() + e.Name
	if m, ok := e.Message.(llc.Message); ok && m.Head().Reply {
		k += " reply"
	}
	return k
}

// TestRenderCaptures compares our output for the captures with golden files. Read the difference
// before you commit it; go test -update rewrites them.
func TestRenderCaptures(t *testing.T) {
	for _, name := range []string{"two-links", "smcd"} {
		t.Run(name, func(t *testing.T) {
			var lines Lines
			var list, verbose, hex, json []byte
			var s selection
			seen := make(map[string]bool)
			tr := dissect.New(dissect.Options{})
			emit := func(e *dissect.Event) {
				if s.wants(e) {
					list = append(lines.Append(list, e), '\n')
				}
				if k := kind(e); !seen[k] && len(e.Bytes) > 0 {
					seen[k] = true
					var title Lines
					title.Time = TimeAbsolute
					line := append(title.Append(nil, e), '\n')
					verbose = AppendVerbose(append(verbose, line...), e)
					hex = AppendHex(append(hex, line...), e)
					json = append(AppendJSON(json, e), '\n')
				}
			}
			for _, p := range dissecttest.Captured(t, name) {
				tr.Packet(p, emit)
			}
			tr.Close(emit)
			for file, got := range map[string][]byte{
				name + ".lines.txt": list, name + ".verbose.txt": verbose, name + ".hex.txt": hex, name + ".json": json,
			} {
				compareGolden(t, "testdata/"+file, string(got))
			}
		})
	}
}

// compareGolden compares text with a golden file, line by line.
func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wantLines, gotLines := strings.Split(string(b), "\n"), strings.Split(got, "\n")
	for i := range max(len(wantLines), len(gotLines)) {
		var want, line string
		if i < len(wantLines) {
			want = wantLines[i]
		}
		if i < len(gotLines) {
			line = gotLines[i]
		}
		if line != want {
			t.Errorf("%s:%d (go test -update rewrites it):\n got %s\nwant %s", file, i+1, line, want)
			return
		}
	}
}
