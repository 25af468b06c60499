package render

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire/clc"
)

func TestWriteStats(t *testing.T) {
	s := &dissect.Summary{
		Packets: 10, Bytes: 1000, First: time.Unix(100, 0), Last: time.Unix(101, 500_000_000), TCPSegments: 4, RoCEPackets: 6,
		Truncated: 1, Fragments: 2, Undecodable: 3, OtherLinkTypes: 4, Conns: 2,
		Modes:    []dissect.Count{{Name: "SMC-Rv2.1", Count: 1}, {Name: "TCP", Count: 1}},
		Reasons:  []dissect.ReasonCount{{Reason: clc.Lookup(clc.DiagNoSMCRDevice, clc.OSLinux), Count: 1}},
		Messages: []dissect.MessageCount{{Family: dissect.CLC, Name: "Proposal", Count: 2}, {Family: dissect.CDC, Name: "CDC", Count: 12345}}, Problems: []dissect.ProblemCount{{Kind: dissect.Declined, Count: 1}, {Kind: dissect.Nak, Count: 2}},
		RDMABytes: 1 << 20, Retransmissions: 5, Gaps: 6, LinkGroups: 1, Links: 2, LinksLost: 1, Failovers: 3,
	}
	s.Evicted.Conns, s.Evicted.Flows, s.Evicted.Groups = 7, 8, 9
	c := &CaptureStats{Inputs: []string{"a.pcap"}, Errors: 2, Live: true, Received: 20, Dropped: 10}
	var b strings.Builder
	if err := WriteStats(&b, s, c); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"Packets                  10\n", "Duration                 1.500000 s\n", "Moved by RDMA            1 MiB\n", "Retransmissions          5\n",
		"Failovers                3\n", "Dropped by the kernel    10\n", "Truncated by the capture 1\n", "IP fragments             2\n",
		"Connections forgotten    7\n", "Faults of the files      2\n", "\nConnections  Mode\n          1  SMC-Rv2.1\n          1  TCP\n",
		"\nDeclines  Reason\n       1  NOSMCRDEV (0x03030002): ", "\n Seen  Message\n    2  CLC Proposal\n12345  CDC\n", "\nSeen  Problem\n   1  declined\n   2  NAK\n",
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("WriteStats has no %q in\n%s", line, b.String())
		}
	}

	encoded, err := json.Marshal(NewStatsReport(s, c))
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range []string{
		`"packets":10`, `"first":"1970-01-01T00:01:40Z"`, `"modes":[{"name":"SMC-Rv2.1","count":1},{"name":"TCP","count":1}]`,
		`"declines":[{"code":50528258,"tag":"NOSMCRDEV",`, `{"family":"CLC","name":"Proposal","count":2}`, `"problems":[{"name":"declined","count":1},{"name":"NAK","count":2}]`,
		`"rdma_bytes":1048576`, `"failovers":3`, `"forgotten":{"connections":7,"queue_pairs":8,"link_groups":9}`, `"live":{"received":20,"dropped":10}`, `"input_errors":2`,
	} {
		if !strings.Contains(string(encoded), member) {
			t.Errorf("the report has no %s in %s", member, encoded)
		}
	}

	b.Reset()
	if err := WriteStats(&b, &dissect.Summary{}, &CaptureStats{}); err != nil || strings.Contains(b.String(), "First packet") || strings.Contains(b.String(), "Mode") {
		t.Errorf("WriteStats of nothing, %v:\n%s", err, b.String())
	}
	if encoded, err = json.Marshal(NewStatsReport(&dissect.Summary{}, &CaptureStats{})); err != nil || !strings.Contains(string(encoded), `"inputs":[],"packets":0,"bytes":0,"first":null`) || !strings.Contains(string(encoded), `"modes":[]`) {
		t.Errorf("the report of nothing is %s, %v", encoded, err)
	}
}
