package overlay

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseArguments(t *testing.T) {
	for _, tt := range []struct {
		command, line string
		want          Arguments
	}{
		{"build", "-o out ./...", Arguments{Rest: []string{"-o", "out", "./..."}}},
		{"build", "-C dir -tags a,b -v .", Arguments{Dir: "dir", Tags: "a,b", HasTags: true, Rest: []string{"-v", "."}}},
		{"build", "--tags=a -tags b --overlay o.json", Arguments{Tags: "b", HasTags: true, Overlay: "o.json"}},
		{"build", "-ldflags -tags=x -race -tags=y", Arguments{Tags: "y", HasTags: true, Rest: []string{"-ldflags", "-tags=x", "-race"}}},
		{"run", "-race . -tags x", Arguments{Rest: []string{"-race", ".", "-tags", "x"}}},
		{"run", "-exec sudo . -C x", Arguments{Rest: []string{"-exec", "sudo", ".", "-C", "x"}}},
		{"test", "./... -run X -tags x -args -tags y", Arguments{Tags: "x", HasTags: true, Rest: []string{"./...", "-run", "X", "-args", "-tags", "y"}}},
		{"test", "-count 1 -tags", Arguments{Rest: []string{"-count", "1", "-tags"}}},
	} {
		got := ParseArguments(tt.command, strings.Fields(tt.line))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("go %s %s (-want +got):\n%s", tt.command, tt.line, diff)
		}
	}
}

// TestSplitFlags has flags with blanks in GOFLAGS be read as the go command reads them: an overlay of the user that was overlooked would not apply.
func TestSplitFlags(t *testing.T) {
	for value, want := range map[string][]string{
		"": nil, " ": nil, "-tags=a -v": {"-tags=a", "-v"}, `'-overlay=/two blanks' "-tags=a b"`: {"-overlay=/two blanks", "-tags=a b"}, `-ldflags='-s`: {"-ldflags='-s"}, "'-x": {"-x"},
	} {
		if got := splitFlags(value); !slices.Equal(got, want) {
			t.Errorf("splitFlags(%q) = %q, want %q", value, got, want)
		}
	}
}
