package rnic

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// TestAlternatives looks at which addresses may be ends of further links.
func TestAlternatives(t *testing.T) {
	cables := smctest.NewCables(t, 4)
	cables.IP(0, "addr add 10.99.0.77/24 dev cable0") // of the same interface
	cables.IP(0, "addr add 10.98.0.1/24 dev cable1")  // another network
	cables.IP(0, "addr flush dev cable2")
	cables.IP(0, "addr add 10.98.0.3/24 dev cable2")
	cables.IP(0, "link set cable3 down")
	first, same := cables.Addr[0][0], cables.Addr[1][0]
	other, third := netip.MustParseAddr("10.98.0.1"), netip.MustParseAddr("10.98.0.3")
	for _, tt := range []struct {
		name   string
		config Config
		want   []netip.Addr
	}{
		{"the same network", Config{}, []netip.Addr{first, same}},
		{"one link", Config{Links: 1}, []netip.Addr{first}},
		{"eight links", Config{Links: 8}, []netip.Addr{first, same}},
		{"the same PNETID", Config{PNET: map[string]string{"cable0": "NET1", "cable2": "NET1"}}, []netip.Addr{first, third}},
		{"another PNETID", Config{PNET: map[string]string{"cable0": "NET1", "cable1": "NET2", "cable2": "NET2"}}, []netip.Addr{first}},
		{"PNETIDs of others", Config{PNET: map[string]string{"cable2": "NET2"}}, []netip.Addr{first, same}},
		{"the configured ones", Config{Allowed: prefixes(t, []string{"10.98.0.0/16", first.String()})}, []netip.Addr{first, other, third}},
		{"only this one", Config{Allowed: prefixes(t, []string{first.String()})}, []netip.Addr{first}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Namespace = cables.Run[0]
			h := newSet(t, tt.config)
			n, err := h.Acquire(first)
			if err != nil {
				t.Fatal(err)
			}
			defer n.Release()
			var got []netip.Addr
			for _, r := range h.Alternatives(n, clc.V2) {
				got = append(got, r.GID.Addr())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("alternatives = %v, want %v", got, tt.want)
			}
		})
	}
}
