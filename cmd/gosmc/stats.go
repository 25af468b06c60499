package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/survey"
)

// A statsReport is the output of stats --json. Bytes are payload; counters start with each host.
type statsReport struct {
	Schema int                    `json:"schema"`
	Time   time.Time              `json:"time"`
	Total  control.StatusCounters `json:"total"`
	Hosts  []statsHost            `json:"hosts"`
	Errors []survey.Error         `json:"errors"`
	Denied int                    `json:"other_users"`
}

type statsHost struct {
	PID      int                    `json:"pid"`
	Command  string                 `json:"command"`
	Dir      string                 `json:"dir"`
	Started  time.Time              `json:"started"`
	Counters control.StatusCounters `json:"counters"`

	Programs []control.StatusProgram `json:"programs,omitempty"` // of a supervisor of 'gosmc run'
}

func newStatsCommand() *cobra.Command {
	var flags gatherFlags
	var watch int
	cmd := &cobra.Command{
		Use:   "stats [flags]",
		Short: "Show counters: connections by mode, bytes, messages by type, fallbacks and ends by reason",
		Long: `Show what the hosts of this machine have counted since they started, summed and for each
host; link groups and the memory of RMBs, the receive buffers of SMC-R, are those that there are now. Ends are
those of handshakes and connections that did not end in order, and of link groups of SMC-R. Bytes are n/a if they are not counted, as those of 'gosmc run'. A host ends with its process, and its counters with it. The exit status is 1 if the run directory that --dir or
GOSMC_DIR names does not exist.`,
		Example: `  gosmc stats
  gosmc stats --watch 2
  gosmc stats --json | jq .total.fallbacks`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return repeat(cmd, watch, flags.json, func(watched bool) error { return showStats(cmd, &flags, watched) })
		},
	}
	flags.register(cmd)
	cmd.Flags().IntVar(&watch, "watch", 0, "repeat after this many `seconds`; JSON is then one object on a line")
	return cmd
}

// showStats prints the counters once. watched says that they are printed several times.
func showStats(cmd *cobra.Command, flags *gatherFlags, watched bool) error {
	g := flags.gather(cmd.Context())
	r := newStatsReport(&g)
	var err error
	switch {
	case flags.json && watched:
		err = writeJSONLine(cmd.OutOrStdout(), r)
	case flags.json:
		err = writeJSON(cmd.OutOrStdout(), r)
	default:
		err = r.write(cmd.OutOrStdout())
		complain(cmd, &g)
	}
	return errors.Join(err, incomplete(&g))
}

func newStatsReport(g *survey.Answers) statsReport {
	r := statsReport{Schema: jsonSchema, Time: time.Now(), Hosts: []statsHost{}, Errors: g.Errors, Denied: g.Denied}
	if r.Errors == nil {
		r.Errors = []survey.Error{}
	}
	own := make(map[int]bool) // programs that are with their own supervisor
	for _, h := range g.Hosts {
		for _, p := range h.Programs {
			own[p.PID] = own[p.PID] || !p.Caller
		}
	}
	var all []control.StatusCounters
	for _, h := range g.Hosts {
		listed := slices.DeleteFunc(slices.Clone(h.Programs), func(p control.StatusProgram) bool { return p.Caller && own[p.PID] })
		r.Hosts = append(r.Hosts, statsHost{h.PID, h.Command, h.Dir, h.Started, h.Counters, listed})
		all = append(all, h.Counters)
	}
	r.Total = inventory.Sum(all)
	return r
}

func (r *statsReport) write(w io.Writer) error {
	count := func(n uint64) string { return groupDigits(strconv.FormatUint(n, 10)) }
	size := func(n uint64) string { return formatBytes(int64(min(n, 1<<62))) }

	byMode := table{Columns: []column{{Title: "Mode"}, {Title: "Connections", Right: true}, {Title: "Bytes in", Right: true}, {Title: "Bytes out", Right: true}}}
	for _, m := range inventory.Modes(&r.Total) {
		in, out := "n/a", "n/a" // supervisors of 'gosmc run' do not see payload
		if n, counted := r.Total.Bytes[m]; counted {
			in, out = size(n.In), size(n.Out)
		}
		byMode.Add(printable(m), count(r.Total.Connections[m]), in, out)
	}
	totals := table{Columns: []column{{}, {Right: true}}}
	totals.Add("Handshakes completed", count(r.Total.HandshakesOK))
	totals.Add("Handshakes failed", count(r.Total.HandshakesFailed))
	totals.Add("Doorbells rung", count(r.Total.DoorbellsRung))
	totals.Add("Waits ended spinning", count(r.Total.Spins))
	totals.Add("Waits ended asleep", count(r.Total.Sleeps))

	for _, m := range slices.Sorted(maps.Keys(r.Total.Groups)) {
		totals.Add("Link groups of "+printable(m), count(uint64(max(r.Total.Groups[m], 0))))
	}
	totals.Add("Memory of RMBs", formatBytes(r.Total.RMBBytes))

	messages := table{Columns: []column{{Title: "Message"}, {Title: "Sent", Right: true}, {Title: "Received", Right: true}}}
	for _, family := range []struct {
		name string
		list []control.MessageCount
	}{{"CLC", r.Total.CLC}, {"LLC", r.Total.LLC}} {
		for _, m := range family.list {
			messages.Add(family.name+" "+printable(m.Type), count(m.Sent), count(m.Rcvd))
		}
	}

	fallbacks := table{Columns: []column{{Title: "Fallbacks", Right: true}, {Title: "Code"}, {Title: "Reason"}}}
	for _, f := range r.Total.Fallbacks {
		fallbacks.Add(count(f.Count), orNA(f.Code.String()), orNA(f.Text))
	}
	ends := table{Columns: []column{{Title: "Ends", Right: true}, {Title: "Of"}, {Title: "Reason"}}}
	for _, e := range r.Total.Ends {
		ends.Add(count(e.Count), printable(e.What), printable(e.Reason))
	}
	hosts := table{Columns: []column{{Title: "Process"}, {Title: "SMC-D", Right: true}, {Title: "SMC-R", Right: true}, {Right: true}, {Title: "TCP", Right: true}, {Title: "Started"}, {Title: "Run directory"}, {}}}
	if slices.ContainsFunc(r.Hosts, func(h statsHost) bool { return h.Counters.Connections[modeUnix] > 0 || len(h.Programs) > 0 }) {
		hosts.Columns[3].Title, hosts.Columns[7].Title = modeUnix, "Programs of gosmc run"
	}
	for _, h := range r.Hosts {
		c, unix := h.Counters.Connections, ""
		if len(h.Programs) > 0 || c[modeUnix] > 0 {
			unix = count(c[modeUnix])
		}
		hosts.Add(process(h.PID, h.Command), count(c["SMC-D"]), count(c["SMC-R"]), unix, count(c["TCP"]), h.Started.Local().Format(time.DateTime), printable(h.Dir), programs(h.Programs))
	}
	first := true
	for _, t := range []*table{&byMode, &totals, &messages, &fallbacks, &ends, &hosts} {
		if t.Len() == 0 {
			continue
		}
		if !first {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		first = false
		if err := t.Write(w); err != nil {
			return err
		}
	}
	return nil
}

// programs names the programs behind a supervisor, and how many there are beyond some.
func programs(list []control.StatusProgram) string {
	const most = 4
	var words []string
	for _, p := range list[:min(len(list), most)] {
		words = append(words, process(p.PID, p.Command))
	}
	if n := len(list) - most; n > 0 {
		words = append(words, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(words, " ")
}
