package dissect

import (
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
)

// The directions of a script.
const (
	c2s = dissecttest.ToServer
	s2c = dissecttest.ToClient
)

// problemsOf returns the problems in packets, each with the number of the packet.
func problemsOf(t *testing.T, packets []Packet) []string {
	t.Helper()
	var found []string
	lines, _ := track(packets, Options{})
	for _, line := range lines {
		number, _, _ := strings.Cut(line, " ")
		for rest := line; ; {
			_, after, ok := strings.Cut(rest, " [")
			if !ok {
				break
			}
			problem, tail, _ := strings.Cut(after, "]")
			found = append(found, number+" "+problem)
			rest = tail
		}
	}
	return found
}

// wantProblems checks that packets have the given problems, by parts of their texts, and no others.
func wantProblems(t *testing.T, packets []Packet, want ...string) {
	t.Helper()
	got := problemsOf(t, packets)
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && strings.Contains(got[i], want[i])
	}
	if !ok {
		lines, _ := track(packets, Options{})
		t.Errorf("problems:\n got %q\nwant %q\nevents:\n%s", got, want, strings.Join(lines, "\n"))
	}
}
