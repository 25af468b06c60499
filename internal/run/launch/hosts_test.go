package launch

import (
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/proto"
)

// TestWithPeers has programs know peers if the operator wants that, and there is a UEID or version 1.
func TestWithPeers(t *testing.T) {
	before := []string{"A=1", proto.EnvPeers + "=of another"}
	for _, tt := range []struct {
		settings config.Settings
		want     string
	}{
		{config.Settings{}, ""},
		{config.Settings{Peers: []string{"192.0.2.0/24"}, UEIDs: []string{"A"}}, ""},
		{config.Settings{Peers: []string{"192.0.2.0/24"}, BetweenHosts: true}, ""},
		{config.Settings{UEIDs: []string{"A"}, BetweenHosts: true}, "-"},
		{config.Settings{BetweenHosts: true}, ""},
		{
			config.Settings{Peers: []string{"192.0.2.0/24", "[2001:db8::/32]:443"}, UEIDs: []string{"A"}, BetweenHosts: true},
			"00000000000000000000ffffc0000200/78/0000,20010db8000000000000000000000000/20/01bb",
		},
		{
			config.Settings{Peers: []string{"192.0.2.7:80"}, SMCRv1: true, BetweenHosts: true},
			"00000000000000000000ffffc0000207/80/0050",
		},
	} {
		want := []string{"A=1"}
		if tt.want != "" {
			want = append(want, proto.EnvPeers+"="+tt.want)
		}
		if got := WithPeers(before, &tt.settings); !slices.Equal(got, want) {
			t.Errorf("WithPeers of %+v = %q, want %q", tt.settings, got, want)
		}
	}
}
