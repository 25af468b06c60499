package agent

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/introduce"
)

// TestStatusTable prints the status of an agent that does everything, and of those that do less.
func TestStatusTable(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.Local)
	full := Status{
		PID: 12, Started: at, Socket: "/run/a\x1b", Pins: "/sys/fs/bpf/gosmc",
		Option: OptionStatus{Enabled: true, Attached: true, Cgroup: "/sys/fs/cgroup", Counters: bpf.OptionCounters{
			SYNSent: 1, SYNNoRoom: 2, SYNFastOpen: 3, SYNSigned: 4, SYNACKSent: 5, SYNACKCookie: 6, SYNACKNoRoom: 7, SYNACKExcluded: 8,
			ClientBoth: 9, ClientAlone: 10, ServerBoth: 11, ServerAlone: 12, ListenersFull: 13,
		}},
		Pairing: PairingStatus{Enabled: true, Counters: bpf.PairingCounters{
			SYNSent: 1, SYNACKSent: 2, ClientPaired: 3, ClientUnpaired: 4, ServerPaired: 5, ServerUnpaired: 6, Reports: 7, ReportsLost: 8,
		}},
		Introductions: IntroductionStatus{Enabled: true, Namespaces: 3, Counters: introduce.Counters{
			Introduced: 1, Users: 2, Busy: 3, Unfit: 4, Clients: 5,
		}},
		Ports: []PortStatus{{Address: "192.0.2.1:4791", Namespace: 4096, Sockets: []SocketStatus{
			{FirstQPN: 0x100, QPNs: 256, Process: 77, User: 1000}, {FirstQPN: 0x200, QPNs: 256},
		}}},
		Vacant: []VacantStatus{{Address: "192.0.2.2:4791", Until: at, Answers: 2}},
		Served: Counters{Granted: 1, Refused: 2, Unfit: 3},
	}
	detached, little := full, Status{Started: at}
	detached.Option.Attached, detached.Ports = false, nil
	little.Introductions.Why, little.Pairing.Reason = "no kernel\x1b", "no program"
	var b strings.Builder
	for _, s := range []Status{full, detached, little, {Started: at}} {
		if err := s.Write(&b); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	want, err := os.ReadFile("testdata/status.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("status.txt (-want +got):\n%s", diff)
	}
}
