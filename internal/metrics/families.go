package metrics

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/wire/clc"
)

// Families of counters, in the order in which they are written.
const (
	famConnections = iota
	famFallbacks
	famBytes
	famHandshakes
	famHandshakeBuckets
	famHandshakeSum
	famEnds
	famFailovers
	famBuffersFull
	famDoorbells
	famWaits
)

// counted are the families of counters. Those of the handshake's histogram are written as one.
var counted = []struct {
	name, help string
	labels     []string
}{
	famConnections: {"smc_connections_total",
		"Connections, by the mode in which they carry bytes and the role of the end that counts.",
		[]string{"mode", "role"}},
	famFallbacks: {"smc_fallbacks_total", "Connections that stayed TCP, by the code of the reason and the side that counts. 'gosmc reason CODE' explains a code.",
		[]string{"code", "side"}},
	famBytes: {"smc_connection_bytes_total", "Payload of connections; of modes whose bytes are counted.",
		[]string{"mode", "direction"}},
	famHandshakes: {"smc_handshakes_total", "Handshakes that made an SMC connection, and those that ended their TCP connection.", []string{"result"}},
	famHandshakeBuckets: {"smc_handshake_seconds", "Time from a TCP connection to an SMC connection.",
		[]string{"le"}},
	famHandshakeSum: {},
	famEnds:         {"smc_ends_total", "Handshakes, connections and links or link groups that have ended for a reason of their own.", []string{"of"}},
	famFailovers: {"smc_failovers_total",
		"Links of SMC-R whose connections went on over other links.", nil},
	famBuffersFull: {"smc_buffer_full_total",
		"Writes that found no room in the peer's buffer and waited.", nil},
	famDoorbells: {"smc_doorbells_total", "Doorbells rung at a peer.", nil},
	famWaits: {"smc_waits_total", "Waits for a peer, by the way in which they ended.",
		[]string{"ended"}},
}

// Modes of connections, as labels. A host of another version may have more, which are "other".
var modeLabels = []string{"TCP", inventory.ModeUnix, "SMC-D", "SMC-R"}

// other is the label of all that is not in the lists of this program: hosts belong to local users,
// who could make up any number of labels.
const other = "other"

func modeLabel(mode string) string { return known(mode, modeLabels) }

// known is a word if it is in a list.
func known(word string, list []string) string {
	if slices.Contains(list, word) {
		return word
	}
	return other
}

// codeLabel is the label of a reason's code, if the catalogue has it.
func codeLabel(code control.ReasonCode) string {
	if slices.ContainsFunc(clc.Reasons(), func(r clc.Reason) bool { return r.Code == clc.Diagnosis(code) }) {
		return fmt.Sprintf("0x%08x", uint32(code)) // rule: TestLabels: uint32(code)) -> uint32(code)+1)
	}
	return other
}

// endLabels are the kinds of ends.
var endLabels = []string{"handshake", "connection", "link", "link group"}

// countersOf are the counters of a host as series.
func countersOf(c *control.StatusCounters) counters {
	k := make(counters)
	set := func(family int, n uint64, labels ...string) {
		s := series{family: family}
		copy(s.labels[:], labels)
		k[s] = addUp(k[s], n)
	}
	for mode, n := range c.Connections {
		server := min(n, c.AsServer[mode])
		set(famConnections, server, modeLabel(mode), "server")
		set(famConnections, n-server, modeLabel(mode), "client")
	}
	for _, f := range c.Fallbacks {
		server := min(f.Count, f.AsServer)
		set(famFallbacks, server, codeLabel(f.Code), "server")
		set(famFallbacks, f.Count-server, codeLabel(f.Code), "client")
	}
	for mode, n := range c.Bytes {
		set(famBytes, n.In, modeLabel(mode), "in")
		set(famBytes, n.Out, modeLabel(mode), "out")
	}
	set(famHandshakes, c.HandshakesOK, "ok")
	set(famHandshakes, c.HandshakesFailed, "failed")
	for i, n := range c.HandshakeTimes.Counts {
		set(famHandshakeBuckets, n, strconv.Itoa(i))
	}
	set(famHandshakeSum, c.HandshakeTimes.Nanoseconds)
	for _, e := range c.Ends {
		set(famEnds, e.Count, known(e.What, endLabels))
	}
	set(famFailovers, c.Failovers)
	set(famBuffersFull, c.BuffersFull)
	set(famDoorbells, c.DoorbellsRung)
	set(famWaits, c.Spins, "spinning")
	set(famWaits, c.Sleeps, "asleep")
	return k
}

// alwaysThere are series that are written also while no host has counted, so that their first
// increase is seen as one.
func alwaysThere() counters {
	k := countersOf(&control.StatusCounters{})
	for _, mode := range modeLabels {
		for _, role := range []string{"client", "server"} {
			k[series{family: famConnections, labels: [2]string{mode, role}}] = 0
		}
	}
	for _, what := range endLabels {
		k[series{family: famEnds, labels: [2]string{what}}] = 0
	}
	return k
}

// countedFamilies are the families of counters, with their values.
func countedFamilies(total counters) []Family {
	total.add(alwaysThere())
	byFamily := make([][]series, len(counted))
	for s := range total {
		byFamily[s.family] = append(byFamily[s.family], s)
	}
	var list []Family
	for i, d := range counted {
		switch i {
		case famHandshakeBuckets:
			list = append(list, handshakeSeconds(total))
			continue
		case famHandshakeSum:
			continue
		}
		f := Family{Name: d.name, Kind: counter, Help: d.help}
		slices.SortFunc(byFamily[i], func(a, b series) int {
			return cmp.Or(
				cmp.Compare(a.source, b.source),
				cmp.Compare(a.labels[0], b.labels[0]), cmp.Compare(a.labels[1], b.labels[1]),
			)
		})
		for _, s := range byFamily[i] {
			var labels []string
			for j, name := range d.labels {
				labels = append(labels, name, s.labels[j])
			}
			if s.source != "" {
				labels = append(labels, "source", s.source)
			}
			f.add(formatCount(total[s]), labels...)
		}
		list = append(list, f)
	}
	return list
}

// handshakeSeconds is the histogram of handshakes.
func handshakeSeconds(total counters) Family {
	d := counted[famHandshakeBuckets]
	f := Family{Name: d.name, Kind: histogram, Help: d.help}
	var bounds []float64
	for _, b := range control.HandshakeBounds {
		bounds = append(bounds, b.Seconds())
	}
	counts := make([]uint64, len(bounds)+1)
	for i := range counts {
		counts[i] = total[series{family: famHandshakeBuckets, labels: [2]string{strconv.Itoa(i)}}]
	}
	f.addHistogram(bounds, counts, float64(total[series{family: famHandshakeSum}])/1e9)
	return f
}

// Values of labels of gauges.
var (
	groupModes  = []string{"SMC-D", "SMC-R"}
	linkStates  = []string{"LINK_ACTIVATING", "LINK_ACTIVE", "LINK_LEAVING", "LINK_INACTIVE"}
	limitLabels = []string{
		"memory", "memory of peers", "memory of SMC-R", "peers", "connections with a peer", "memory mappings", "open files",
	}
)

// A tally counts by the values of labels.
type tally map[[2]string]int64

// family is the tally as a gauge.
func (k tally) family(name, help string, labels ...string) Family {
	f := Family{Name: name, Kind: gauge, Help: help}
	keys := make([][2]string, 0, len(k))
	for key := range k {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	for _, key := range keys {
		var pairs []string
		for i, l := range labels {
			pairs = append(pairs, l, key[i])
		}
		f.add(strconv.FormatInt(k[key], 10), pairs...)
	}
	return f
}

// zeros is a tally that has all values of one label.
func zeros(values []string) tally {
	k := make(tally)
	for _, v := range values {
		k[[2]string{v}] = 0
	}
	return k
}

// one is a gauge with one series.
func one(name, help string, value float64) Family {
	f := Family{Name: name, Kind: gauge, Help: help}
	f.add(formatFloat(value))
	return f
}

// gauges are the metrics of the present.
func gauges(s *Snapshot) []Family {
	info := Family{Name: "smc_build_info", Kind: gauge,
		Help: "The version of the program that exports these metrics."}
	info.add("1", "version", s.Version)
	connections := make(tally)
	for _, mode := range modeLabels {
		connections[[2]string{mode, "client"}], connections[[2]string{mode, "server"}] = 0, 0
	}
	for _, c := range s.Connections {
		connections[[2]string{modeLabel(c.Mode), known(c.Role, []string{"client", "server"})}]++
	}
	groups, links := zeros(groupModes), zeros(linkStates)
	limits := make(map[string]float64)
	rmbs := 0.0
	for i := range s.Answers.Hosts {
		h := &s.Answers.Hosts[i]
		rmbs += float64(max(h.Counters.RMBBytes, 0))
		for _, g := range h.Groups {
			groups[[2]string{known(g.Mode, groupModes)}]++
			for _, l := range g.Links {
				links[[2]string{known(l.State, linkStates)}]++
			}
		}
		for _, l := range h.Limits {
			if name := known(l.Name, limitLabels); l.Limit > 0 && l.Used >= 0 {
				limits[name] = max(limits[name], float64(l.Used)/float64(l.Limit))
			}
		}
	}
	programs := zeros([]string{"served", "supervisor_ended", "old_library"})
	for _, p := range s.Programs {
		state := "served"
		switch {
		case p.Ended:
			state = "supervisor_ended"
		case p.Old:
			state = "old_library"
		}
		programs[[2]string{state}]++
	}
	used := Family{Name: "smc_limit_ratio", Kind: gauge,
		Help: "Use of a limit, 1 for all of it, of the host that uses most."}
	for _, name := range append(slices.Clone(limitLabels), other) {
		if v, ok := limits[name]; ok && !math.IsInf(v, 0) {
			used.add(formatFloat(v), "limit", name)
		}
	}
	agent, ports := 0.0, 0.0
	if s.Agent != nil {
		agent, ports = 1, float64(s.Agent.Ports)
	}
	open := connections.family("smc_connections_open",
		"Ends of connections that there are; a connection within the machine has two.", "mode", "role")
	if s.Kernel != nil {
		s.Kernel.addOpen(&open)
	}
	return []Family{
		info, open,
		groups.family("smc_link_groups", "Link groups that there are.", "mode"),
		links.family("smc_link_state", "Links of SMC-R in each state.", "state"),
		one("smc_rmb_bytes", "Memory of the receive buffers of SMC-R.", rmbs),
		used,
		programs.family("smc_run_programs",
			"Programs of gosmc run, by the state of their supervisor and library.", "state"),
		one("smc_hosts", "Processes that have answered: programs with package smc, and supervisors of gosmc run.", float64(len(s.Answers.Hosts))),
		one("smc_host_errors", "Processes and run directories that did not answer as they should.",
			float64(len(s.Answers.Errors))),
		one("smc_hosts_denied", "Processes of other users that did not answer this one.",
			float64(s.Answers.Denied)),
		one("smc_agent_up", "Whether gosmc agent answers.", agent),
		one("smc_agent_ports", "UDP ports that gosmc agent shares.", ports),
		one("smc_snapshot_seconds", "Time that it took to ask for these metrics.", s.Took.Seconds()),
	}
}
