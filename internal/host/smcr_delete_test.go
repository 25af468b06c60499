package host

import (
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/smctest"
)

// TestSMCRDeleteLink has operators delete links, as the control socket asks for it: of either side,
// and links that cannot be deleted.
func TestSMCRDeleteLink(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		r, _ := newTwinRig(t, nil)
		c, s := r.connect()
		checkSMCR(t, c, s)
		r.awaitRedundancy("symmetric")
		h := map[string]*Host{"server": r.server, "client": r.client}[by]
		id := h.Status().Groups[0].ID
		no := func(group uint32, num uint8, want string) {
			t.Helper()
			if err := (*controlView)(h).DeleteLink(group, num); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, link %d of group %08x: %v, want %q", by, num, group, err, want)
			}
		}
		no(id+77, 1, "no link group")
		no(id, 3, "no link 3, but 1, 2")
		no(id, 0, "no link 0, but 1, 2")
		if err := control.LinkDeleter((*controlView)(h)).DeleteLink(id, 1); err != nil {
			t.Error(err)
		}
		smctest.Eventually(t, patience, "the link has ended", func() bool { return r.redundancy() == "single" && r.failovers() == 2 })
		no(id, 2, "it ends with its connections")
		checkExchange(t, c, s)
	}
}
