package bpf

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/smctest"
)

// A routed network has a client and a server in namespaces of their own, and a router between them,
// with a service address that leads to the server.
type routed struct{ client, router, server *place }

// newRouted makes the namespaces. The router translates the service addresses 10.96.0.1 and fd96::1
// to the server's, and, if masquerade is set, the client's to its own.
func newRouted(t *testing.T, p *place, masquerade bool) *routed {
	t.Helper()
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs iproute2 and nftables: %v", err)
		}
	}
	r := &routed{}
	for _, end := range []**place{&r.client, &r.router, &r.server} {
		own := *p
		own.run, own.netns = smctest.EnterNamespace(t)
		*end = &own
		own.command(t, "ip link set lo up")
		own.sysctl(t, "net.ipv6.conf.default.accept_dad", "0") // nobody else has the addresses
	}
	for i, end := range []*place{r.client, r.server} {
		r.router.command(t, fmt.Sprintf("ip link add end%d type veth peer name eth0 netns %s", i, end.netns))
		for _, line := range []struct {
			at   *place
			what string
		}{
			{r.router, "ip addr add 10.77.N.1/24 dev endN"}, {r.router, "ip addr add fd77:N::1/64 dev endN nodad"},
			{r.router, "ip link set endN up"},
			{end, "ip addr add 10.77.N.2/24 dev eth0"}, {end, "ip addr add fd77:N::2/64 dev eth0 nodad"},
			{end, "ip link set eth0 up"},
			{end, "ip route add default via 10.77.N.1"}, {end, "ip route add default via fd77:N::1"},
		} {
			line.at.command(t, strings.ReplaceAll(line.what, "N", fmt.Sprint(i)))
		}
		smctest.AwaitCarrier(t, end.run, "eth0")
	}
	r.router.sysctl(t, "net.ipv4.ip_forward", "1")
	r.router.sysctl(t, "net.ipv6.conf.all.forwarding", "1")
	for _, family := range []struct{ name, service, server string }{
		{"ip", "10.96.0.1", "10.77.1.2:7101"}, {"ip6", "fd96::1", "[fd77:1::2]:7101"},
	} {
		n := family.name
		r.router.command(t, "nft add table "+n+" nat")
		r.router.command(t, "nft add chain "+n+" nat before { type nat hook prerouting priority -100 ; }")
		r.router.command(t, "nft add rule "+n+" nat before "+n+" daddr "+family.service+" tcp dport 6379 dnat to "+family.server)
		r.router.command(t, "nft add chain "+n+" nat after { type nat hook postrouting priority 100 ; }")
		if masquerade {
			r.router.command(t, "nft add rule "+n+" nat after oifname end1 masquerade")
		}
	}
	return r
}

// command runs a program in the namespace, with arguments that have no spaces.
func (p *place) command(t *testing.T, line string) {
	t.Helper()
	var out []byte
	var err error
	words := strings.Fields(line)
	p.run(func() { out, err = exec.Command(words[0], words[1:]...).CombinedOutput() })
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
}

// TestPairsThroughNAT makes 1,000 connections each with DNAT, SNAT, and both, and some with IPv6.
// All are paired, though neither end sees the other's address.
func TestPairsThroughNAT(t *testing.T) {
	p := newPlace(t)
	for _, tt := range []struct {
		name, listen, to, clientSeen string
		masquerade                   bool
	}{
		{"DNAT", "0.0.0.0:7101", "10.96.0.1:6379", "10.77.0.2", false},
		{"SNAT", "0.0.0.0:7101", "10.77.1.2:7101", "10.77.1.1", true},
		{"DNAT and SNAT", "0.0.0.0:7101", "10.96.0.1:6379", "10.77.1.1", true},
		{"IPv6 DNAT and SNAT", "[::]:7101", "[fd96::1]:6379", "fd77:1::1", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRouted(t, p, tt.masquerade)
			l := r.server.listenFor(t, tt.listen, allOfIt)
			pr := r.client.dialFor(t, l, tt.to, allOfIt)
			pr.wantCauses(t, p, pairing.Paired, pairing.Paired)
			pr.want(t, both, both)
			if got := pr.server.RemoteAddr().String(); !strings.Contains(got, tt.clientSeen) {
				t.Errorf("the server sees the client at %s, want %s", got, tt.clientSeen)
			}
			r.client.thousandPairs(t, l, tt.to)
		})
	}
}
