package supervisor

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// BenchmarkUsers compares connections that the agent introduces between two users with TCP of the
// same two users, over the loopback interface of one network namespace, in one run: the medians of
// rounds that take turns. It runs for as long as -benchtime says in rounds: -benchtime 7x.
func BenchmarkUsers(b *testing.B) {
	n := newSpeedNet(b)
	compareSpeed(b, n.pod(0, podUserA), n.pod(1, podUserB))
}

// newSpeedNet is a podNet with both ends in one namespace, and testdata/speed.c as program.
func newSpeedNet(b *testing.B) *podNet {
	b.Setenv("GOSMC_RUN_SHORT_AFTER", "16") // as 'gosmc run' has it
	n := &podNet{t: b, addr: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	n.needs()
	n.program = filepath.Join(n.dir(), "speed")
	compile(b, "-O2", "-Wall", "-Wextra", "-Werror", "-o", n.program, "testdata/speed.c")
	run, _ := smctest.EnterNamespace(b)
	n.run = [2]func(func()){run, run}
	var out []byte
	var err error
	run(func() { out, err = exec.Command("ip", "link", "set", "lo", "up").CombinedOutput() })
	if err != nil {
		b.Skipf("ip: %v: %s", err, out)
	}
	n.prepare()
	return n
}

// compareSpeed compares connections of a client and a server with TCP.
func compareSpeed(b *testing.B, server, client *smctest.Process) {
	at := netip.MustParseAddr("127.0.0.1")
	ports := map[string]string{
		"bare ": serveAt(server, at, "bare serve %v"), "": serveAt(server, at, "serve %v"),
	}
	for _, tt := range []struct {
		how     string
		size, n int
		is      string
	}{
		{"turns", 64, 5000, "64 B round trip"},
		{"turns", 4096, 3000, "4 KiB round trip"},
		{"stream", 64, 100000, "64 B writes"},
		{"stream", 1024, 50000, "1 KiB writes"},
		{"stream", 65536, 2000, "64 KiB writes"},
		{"connect", 0, 1000, "connect and close"},
		{"connect", 64, 1000, "connect, one request"},
	} {
		b.Run(tt.is, func(b *testing.B) {
			took := make(map[string][]float64)
			moved := 0
			for range b.N {
				for _, way := range []string{"bare ", ""} {
					client.Say("%s%s 127.0.0.1 %s %d %d", way, tt.how, ports[way], tt.size, tt.n)
					var ns float64
					var are int
					line := strings.TrimSpace(client.Hear("took"))
					if _, err := fmt.Sscanf(line, "%f moved %d", &ns, &are); err != nil {
						b.Fatalf("%q: %v", line, err)
					}
					took[way] = append(took[way], ns)
					moved += are
				}
				time.Sleep(10 * time.Millisecond)
			}
			for _, list := range took {
				slices.Sort(list)
			}
			tcp, pair := took["bare "][b.N/2], took[""][b.N/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(tcp, "tcp-ns")
			b.ReportMetric(pair, "pair-ns")
			b.ReportMetric(pair/tcp, "of-tcp")
			b.ReportMetric(float64(moved)/float64(b.N), "moved")
		})
	}
}
