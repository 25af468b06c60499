package launch

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/proto"
)

// noPeers is the value of [proto.EnvPeers] without peers: TCP option 254 alone says who speaks SMC-R.
const noPeers = "-"

// WithPeers is an environment that has [proto.EnvPeers] if the operator wants programs of 'gosmc run' to
// speak SMC-R with other hosts, and they can: with a UEID, or in version 1.
func WithPeers(environ []string, s *config.Settings) []string {
	environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		return strings.HasPrefix(e, proto.EnvPeers+"=")
	})
	peers, err := config.ParsePeers(s.Peers)
	if err != nil || !s.BetweenHosts || len(s.UEIDs) == 0 && !s.SMCRv1 { // rule: TestWithPeers
		return environ
	}
	return append(environ, proto.EnvPeers+"="+cmp.Or(peers.Library(), noPeers))
}
