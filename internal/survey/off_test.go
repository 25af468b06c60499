package survey

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/rundir"
)

// TestDirsOfSockets has run directories be found by the control sockets that programs have in them.
func TestDirsOfSockets(t *testing.T) {
	const head = "0000000000000000: 00000002 00000000 00010000 0001 01 4711 "
	text := strings.Join([]string{
		"Num       RefCount Protocol Flags    Type St Inode Path",
		head + rundir.Path("/run/gosmc-redis", rundir.Control) + "/0123456789abcdef",
		head + rundir.Path("/run/two  blanks", rundir.Control) + "/0123456789abcdef",
		head + rundir.Path("/run/gosmc", rundir.Run) + "/0123456789abcdef",
		head + "/run/gosmc/00000000000000000000000000000000/ctl/x", // of another boot
		head + "@gosmc-run/x", head, "",
	}, "\n")
	if got := dirsOfSockets(text); !slices.Equal(got, []string{"/run/gosmc-redis", "/run/two  blanks"}) {
		t.Errorf("dirsOfSockets = %q", got)
	}
}

// TestRemember has a list stay as it is if another one cannot be written.
func TestRemember(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	remember(list, []string{"/a b", "/c"})
	if err := os.Mkdir(list+".new", 0o755); err != nil {
		t.Fatal(err)
	}
	remember(list, []string{"/d"})
	if text, err := os.ReadFile(list); err != nil || string(text) != "/a b\n/c\n" {
		t.Errorf("the list is %q, %v", text, err)
	}
}
