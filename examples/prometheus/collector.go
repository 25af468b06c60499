// Package prometheus exports the numbers of an [smc.Host] with github.com/prometheus/client_golang,
// under the names and labels that 'gosmc metrics' uses, so that dashboards and alert rules fit both.
// Copy it into a program: it is no part of package smc, which links no other module.
package prometheus

import (
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/wire/clc"
)

// Descriptions of the metrics. Names, labels and texts are as in 'gosmc metrics'.
var (
	connections = desc("connections_total", "Connections, by the mode in which they carry bytes "+
		"and the role of the end that counts.", "mode", "role")
	fallbacks = desc("fallbacks_total", "Connections that stayed TCP, by the code of the reason "+
		"and the side that counts. 'gosmc reason CODE' explains a code.", "code", "side")
	bytes = desc("connection_bytes_total", "Payload of connections; "+
		"of modes whose bytes are counted.", "mode", "direction")
	handshakes = desc("handshakes_total", "Handshakes that made an SMC connection, "+
		"and those that ended their TCP connection.", "result")
	took = desc("handshake_seconds", "Time from a TCP connection to an SMC connection.")
	ends = desc("ends_total", "Handshakes, connections and links or link groups "+
		"that have ended for a reason of their own.", "of")
	failovers = desc("failovers_total", "Links of SMC-R whose connections went on over other links.")
	full      = desc("buffer_full_total", "Writes that found no room in the peer's buffer and waited.")
	doorbells = desc("doorbells_total", "Doorbells rung at a peer.")
	waits     = desc("waits_total", "Waits for a peer, by the way in which they ended.", "ended")
	open      = desc("connections_open", "Ends of connections that there are; "+
		"a connection within the machine has two.", "mode", "role")
	groups = desc("link_groups", "Link groups that there are.", "mode")
	links  = desc("link_state", "Links of SMC-R in each state.", "state")
	rmbs   = desc("rmb_bytes", "Memory of the receive buffers of SMC-R.")
	limits = desc("limit_ratio", "Use of a limit, 1 for all of it, of the host that uses most.", "limit")

	all = []*prometheus.Desc{
		connections, fallbacks, bytes, handshakes, took, ends, failovers, full, doorbells, waits,
		open, groups, links, rmbs, limits,
	}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("smc_"+name, help, labels, nil)
}

// A Collector is a [prometheus.Collector] of one host. Any goroutine may use it.
type Collector struct {
	host *smc.Host
}

// NewCollector returns a collector of a host, such as [smc.DefaultHost]. A registry takes one: a
// program with several hosts gives each a label with [prometheus.WrapRegistererWith].
func NewCollector(h *smc.Host) *Collector { return &Collector{h} }

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. All metrics are of one time.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.host.Stats()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for mode, m := range s.Modes {
		count(connections, m.Client, mode.String(), "client")
		count(connections, m.Server, mode.String(), "server")
		count(bytes, m.BytesRead, mode.String(), "in")
		count(bytes, m.BytesWritten, mode.String(), "out")
		gauge(open, float64(m.OpenClient), mode.String(), "client")
		gauge(open, float64(m.OpenServer), mode.String(), "server")
	}
	for code, n := range byCode(s.Fallbacks) {
		count(fallbacks, n.client, code, "client")
		count(fallbacks, n.server, code, "server")
	}
	count(handshakes, s.Handshakes.Done, "ok")
	count(handshakes, s.Handshakes.Failed, "failed")
	ch <- histogram(&s.Handshakes.Took)
	for of, n := range endsByKind(s.Ends) {
		count(ends, n, of)
	}
	count(failovers, s.Failovers)
	count(full, s.BuffersFull)
	count(doorbells, s.Doorbells)
	count(waits, s.WaitsSpinning, "spinning")
	count(waits, s.WaitsAsleep, "asleep")
	for mode, n := range s.LinkGroups {
		gauge(groups, float64(n), mode.String())
	}
	for state, n := range s.Links {
		gauge(links, float64(n), state)
	}
	gauge(rmbs, float64(s.RMBBytes))
	for _, l := range s.Limits {
		gauge(limits, float64(l.Used)/float64(l.Limit), l.Name)
	}
}

// histogram is the histogram of handshakes, whose buckets are cumulative in Prometheus.
func histogram(h *smc.Histogram) prometheus.Metric {
	buckets := make(map[float64]uint64)
	n := uint64(0)
	for i, b := range h.Bounds {
		n += h.Counts[i]
		buckets[b.Seconds()] = n
	}
	return prometheus.MustNewConstHistogram(took, h.Count(), h.Sum.Seconds(), buckets)
}

type bySide struct{ client, server uint64 }

// byCode has fallbacks by the label of their code. Peers choose codes, so that those that are in no
// list are one series.
func byCode(list []smc.FallbackStats) map[string]bySide {
	catalogue := clc.Reasons()
	sums := make(map[string]bySide)
	for _, f := range list {
		label := "other"
		if slices.ContainsFunc(catalogue, func(r clc.Reason) bool { return uint32(r.Code) == f.Code }) {
			label = fmt.Sprintf("0x%08x", f.Code)
		}
		n := sums[label]
		n.client += f.Client
		n.server += f.Server
		sums[label] = n
	}
	return sums
}

// endsByKind leaves out the reasons, which are too many for labels. Every kind is there, so that the
// first end is seen as an increase.
func endsByKind(list []smc.EndStats) map[string]uint64 {
	sums := map[string]uint64{"handshake": 0, "connection": 0, "link": 0, "link group": 0}
	for _, e := range list {
		sums[e.Of] += e.Count
	}
	return sums
}
