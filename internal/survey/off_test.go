package survey

import (
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
		head + rundir.Path("/run/gosmc", rundir.Run) + "/0123456789abcdef",
		head + "/run/gosmc/00000000000000000000000000000000/ctl/x", // of another boot
		head + "@gosmc-run/x", head, "",
	}, "\n")
	if got := dirsOfSockets(text); !slices.Equal(got, []string{"/run/gosmc-redis"}) {
		t.Errorf("dirsOfSockets = %q", got)
	}
}
