package supervisor

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/proto"
)

// TestLibraryPolicy has the library and package config agree on which connections a policy refuses.
func TestLibraryPolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy")
	compile(t, "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", path, "testdata/policy.c")
	ports := []string{"80", "8000-8999", "1-65535", "443-443", "any", "none", "!80", "!8080", "!8000-8100", "!any"}
	addresses := []string{
		"127.0.0.1", "127.0.0.0/8", "10.0.0.0/9", "0.0.0.0/0", "::1", "2001:db8::/33", "::/0", "any", "none",
		"!127.0.0.1", "!127.0.0.0/30", "!::1", "!2001:db8::/47", "!192.0.2.255/31", "!any",
	}
	programs := []string{"policy", "other", "!other", "any", "none"}
	servers := []string{"127.0.0.1", "127.0.0.2", "127.0.0.5", "10.127.0.1", "10.128.0.1", "192.0.2.254", "::1", "::2", "2001:db8::1", "2001:db8:2::1", "2001:db8:8000::1", "::", "0.0.0.0"}
	random := rand.New(rand.NewPCG(1, 2))
	some := func(from []string, most int) (list []string) {
		for range random.IntN(most + 1) {
			list = append(list, from[random.IntN(len(from))])
		}
		return list
	}
	for range 200 {
		listen, connect := config.Filter{Ports: some(ports, 3), Addresses: some(addresses, 3)}, config.Filter{Ports: some(ports, 3), Addresses: some(addresses, 3)}
		names := some(programs, 2)
		if random.IntN(2) == 0 {
			names = nil
		}
		s := config.Settings{Programs: names, Listen: listen, Connect: connect}
		p, err := config.NewPolicy(listen, connect, names, "policy")
		if err != nil {
			t.Fatal(err)
		}
		var questions, want strings.Builder
		for range 50 {
			server := netip.AddrPortFrom(netip.MustParseAddr(servers[random.IntN(len(servers))]), []uint16{1, 80, 443, 7999, 8000, 8080, 8999, 65535}[random.IntN(8)])
			fmt.Fprintf(&questions, "l %s %d c %s %d\n", server.Addr(), server.Port(), server.Addr(), server.Port())
			for _, why := range []string{p.Listen.RefusesListener(server), p.Connect.Refuses(server)} {
				if why == "" {
					want.WriteString("1\n")
				} else {
					want.WriteString("0\n")
				}
			}
		}
		cmd := exec.Command(path)
		cmd.Env, cmd.Stdin = s.Environ(), strings.NewReader(questions.String())
		if got, err := cmd.Output(); err != nil || string(got) != want.String() {
			t.Fatalf("with %q: %v\n%s\nanswers %q, want %q", s.Environ(), err, questions.String(), got, want.String())
		}
	}
	// A value that is not understood, or is too much, refuses everything.
	for _, env := range []string{
		"GOSMC_LISTEN_PORTS=http", "GOSMC_LISTEN_PORTS=80-", "GOSMC_CONNECT_PORTS=9-8", "GOSMC_CONNECT_PORTS=123456", "GOSMC_CONNECT_ADDRESSES=1.2.3.4/33",
		"GOSMC_LISTEN_ADDRESSES=localhost", "GOSMC_CONNECT_ADDRESSES=::/129", "GOSMC_PROGRAMS=" + strings.Repeat("x", 64), "GOSMC_CONNECT_PORTS=" + strings.Repeat("1,", 65),
	} {
		cmd := exec.Command(path)
		cmd.Env, cmd.Stdin = []string{env}, strings.NewReader("l 127.0.0.1 1 c 127.0.0.1 1\n")
		if got, err := cmd.Output(); err != nil || string(got) != "0\n0\n" {
			t.Errorf("with %.60s: answers %q, %v; want none allowed", env, got, err)
		}
	}
}

// TestLibraryDisabledWords has the library and package config take the same words of GOSMC_DISABLED for no.
func TestLibraryDisabledWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy")
	compile(t, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/policy.c")
	for _, word := range strings.Fields("0 1 no No NO yes YES off OFF on On false False FALSE true True f F t T n maybe 00") {
		want := "0\n"
		if yes, _ := config.ParseDisabled(word); yes {
			want = "1\n"
		}
		cmd := exec.Command(path)
		cmd.Stdin = strings.NewReader("d " + word + " 0\n")
		if got, err := cmd.Output(); err != nil || string(got) != want {
			t.Errorf("%q: the library answers %q, %v; want %q", word, got, err, want)
		}
	}
}

// TestSupervisorPolicy has a supervisor take no offer for an address that its policy leaves out.
func TestSupervisorPolicy(t *testing.T) {
	for address, want := range map[string]proto.Status{"!127.0.0.1": proto.StatusNo, "127.0.0.1": proto.StatusOK} {
		t.Setenv(config.Variables[config.ListenAddress], address)
		if _, got := newTestSupervisor(t).tryOffer(t); got != want {
			t.Errorf("an offer for 127.0.0.1 with %s: status %d, want %d", address, got, want)
		}
	}
}
