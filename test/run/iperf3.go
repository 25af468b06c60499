package main

import (
	"encoding/json"
	"strconv"
	"strings"
)

var iperf3 = &program{
	name: "iperf3", what: "one stream, -R, --bidir, -P 8, -Z (sendfile), IPv6",
	packages: []string{"iperf3"},
	needs:    []string{"iperf3"},
	run: func(l *lab) {
		for _, args := range [][]string{{}, {"-R"}, {"-P", "8"}, {"-P", "8", "-R"}, {"-Z"}, {"-Z", "-R"}, {"--bidir"}, {"-6"}, {"-l", "100"}, {"-n", "300M"}} {
			port := l.port()
			host := "127.0.0.1"
			if len(args) > 0 && args[0] == "-6" {
				host = "::1"
			}
			l.serve(port, "iperf3", "-s", "-1", "-p", strconv.Itoa(port))
			all := append([]string{"-c", host, "-p", strconv.Itoa(port), "-J"}, args...)
			timed := len(args) == 0 || args[0] != "-n"
			if timed {
				all = append(all, "-t", "1")
			}
			out := l.client("iperf3", all...)
			var r struct {
				Error string
				Start struct{ Connected []struct{ Socket int } }
				End   struct {
					Sent     struct{ Bytes int64 } `json:"sum_sent"`
					Received struct{ Bytes int64 } `json:"sum_received"`
				}
			}
			l.must(json.Unmarshal([]byte(out), &r))
			what := strings.Join(append([]string{"iperf3"}, args...), " ")
			l.result(what+": error", r.Error)
			l.result(what+": streams", len(r.Start.Connected))
			l.result(what+": received", r.End.Received.Bytes > 0 && r.End.Received.Bytes <= r.End.Sent.Bytes)
			if timed { // else it is over too soon to be seen
				l.moved(port, len(r.Start.Connected)+1) // and the one for control
			}
		}
	},
}
