package host

import (
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/smcr"
	"github.com/gosmc/smc/internal/smctest"
)

// TestSMCRSpread has connections of which one writes much more than the others, takes a link away and gives it back: by either policy they
// are spread at first, and again.
func TestSMCRSpread(t *testing.T) {
	const count, heavy = 6, 4 << 20
	for _, tt := range []struct {
		spread string
		want   []int // connections on the links in the end, the fewest first
	}{
		{"", []int{3, 3}},
		{smcr.SpreadConnections, []int{3, 3}},
		{smcr.SpreadBytes, []int{1, 5}},
	} {
		t.Run(tt.spread, func(t *testing.T) {
			r, cables := newTwinRig(t, func(c, s *Config) { c.SMCRSpread, s.SMCRSpread = tt.spread, tt.spread })
			first, firstPeer := r.connect()
			checkSMCR(t, first)
			r.awaitRedundancy("symmetric")
			var pairs [count][2]conn.Conn
			pairs[0] = [2]conn.Conn{first, firstPeer}
			for i := 1; i < count; i++ {
				pairs[i][0], pairs[i][1] = r.connect()
				checkSMCR(t, pairs[i][0])
			}
			spread := func(h *Host) []int {
				var on []int
				for _, l := range groupsOf(h)[0].Links {
					on = append(on, l.Conns)
				}
				slices.Sort(on)
				return on
			}
			for _, h := range []*Host{r.client, r.server} {
				if got := spread(h); !slices.Equal(got, []int{3, 3}) {
					t.Errorf("connections that have written nothing are spread as %v, want half on each link", got)
				}
			}
			for i, end := range pairs[1] { // which is heavy at both ends
				go func() { end.Write(make([]byte, heavy)) }()
				readN(t, pairs[1][1-i], heavy)
			}
			cables.IP(0, "link set cable1 down")
			r.awaitRedundancy("single")
			cables.IP(0, "link set cable1 up")
			r.awaitRedundancy("symmetric")
			for _, h := range []*Host{r.client, r.server} {
				smctest.Eventually(t, patience, "all are spread", func() bool { return slices.Equal(spread(h), tt.want) })
				if got := h.Status().Groups[0].Spread; tt.spread != "" && got != tt.spread || got == "" {
					t.Errorf("the policy %q is shown as %q", tt.spread, got)
				}
			}
			for _, p := range pairs {
				checkExchange(t, p[0], p[1])
				p[0].Close()
				p[1].Close()
			}
		})
	}
	if _, err := New(Config{SMCRSpread: "luck"}); err == nil || !strings.Contains(err.Error(), "luck") {
		t.Errorf("a policy that is none: %v", err)
	}
}

// readN reads so many bytes.
func readN(t testing.TB, c conn.Conn, n int) {
	t.Helper()
	b := make([]byte, 64<<10)
	for n > 0 {
		k, err := c.Read(b[:min(len(b), n)])
		if n -= k; err != nil {
			t.Fatal(err)
		}
	}
}
