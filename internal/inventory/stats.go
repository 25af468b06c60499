package inventory

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/text"
)

// Stats has the counters of all hosts. Bytes are payload; counters start with each host.
type Stats struct {
	Total  control.StatusCounters `json:"total"`
	Hosts  []HostStats            `json:"hosts"`
	Errors []survey.Error         `json:"errors"`
	Denied int                    `json:"other_users"` // hosts that the caller may not ask
}

// HostStats has the counters of a host.
type HostStats struct {
	PID      int                    `json:"pid"`
	Command  string                 `json:"command"`
	Dir      string                 `json:"dir"`
	Started  time.Time              `json:"started"`
	Counters control.StatusCounters `json:"counters"`

	Programs []control.StatusProgram `json:"programs,omitempty"` // of a supervisor of 'gosmc run'
}

// NewStats returns the counters of the hosts that have answered.
func NewStats(a *survey.Answers) Stats {
	r := Stats{Hosts: []HostStats{}, Errors: a.Errors, Denied: a.Denied}
	if r.Errors == nil {
		r.Errors = []survey.Error{}
	}
	own := make(map[int]bool) // programs that are with their own supervisor
	for _, h := range a.Hosts {
		for _, p := range h.Programs {
			own[p.PID] = own[p.PID] || !p.Caller
		}
	}
	var all []control.StatusCounters
	for _, h := range a.Hosts {
		elsewhere := func(p control.StatusProgram) bool { return p.Caller && own[p.PID] }
		listed := slices.DeleteFunc(slices.Clone(h.Programs), elsewhere)
		r.Hosts = append(r.Hosts, HostStats{h.PID, h.Command, h.Dir, h.Started, h.Counters, listed})
		all = append(all, h.Counters)
	}
	r.Total = Sum(all)
	return r
}

// count is a number with its digits in groups.
func count(n uint64) string { return text.GroupDigits(strconv.FormatUint(n, 10)) }

// Write prints tables of the sums, and one of the hosts. Tables without a row are left out.
func (s *Stats) Write(w io.Writer) error {
	first := true
	for _, t := range []*text.Table{
		s.modeTable(), s.totalTable(), s.messageTable(), s.fallbackTable(), s.endTable(), s.hostTable(),
	} {
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

func (s *Stats) modeTable() *text.Table {
	t := &text.Table{Columns: []text.Column{
		{Title: "Mode"}, {Title: "Connections", Right: true}, {Title: "Bytes in", Right: true},
		{Title: "Bytes out", Right: true},
	}}
	size := func(n uint64) string { return text.Bytes(int64(min(n, 1<<62))) }
	for _, m := range Modes(&s.Total) {
		in, out := "n/a", "n/a"
		if n, counted := s.Total.Bytes[m]; counted {
			in, out = size(n.In), size(n.Out)
		}
		t.Add(text.Printable(m), count(s.Total.Connections[m]), in, out)
	}
	return t
}

func (s *Stats) totalTable() *text.Table {
	t := &text.Table{Columns: []text.Column{{}, {Right: true}}}
	t.Add("Handshakes completed", count(s.Total.HandshakesOK))
	t.Add("Handshakes failed", count(s.Total.HandshakesFailed))
	t.Add("Doorbells rung", count(s.Total.DoorbellsRung))
	t.Add("Waits ended spinning", count(s.Total.Spins))
	t.Add("Waits ended asleep", count(s.Total.Sleeps))
	for _, m := range slices.Sorted(maps.Keys(s.Total.Groups)) {
		t.Add("Link groups of "+text.Printable(m), count(uint64(max(s.Total.Groups[m], 0))))
	}
	t.Add("Memory of RMBs", text.Bytes(s.Total.RMBBytes))
	return t
}

func (s *Stats) messageTable() *text.Table {
	t := &text.Table{Columns: []text.Column{
		{Title: "Message"}, {Title: "Sent", Right: true}, {Title: "Received", Right: true},
	}}
	for _, family := range []struct {
		name string
		list []control.MessageCount
	}{{"CLC", s.Total.CLC}, {"LLC", s.Total.LLC}} {
		for _, m := range family.list {
			t.Add(family.name+" "+text.Printable(m.Type), count(m.Sent), count(m.Rcvd))
		}
	}
	return t
}

func (s *Stats) fallbackTable() *text.Table {
	t := &text.Table{Columns: []text.Column{
		{Title: "Fallbacks", Right: true}, {Title: "Code"}, {Title: "Reason"},
	}}
	for _, f := range s.Total.Fallbacks {
		t.Add(count(f.Count), text.OrNA(f.Code.String()), text.OrNA(f.Text))
	}
	return t
}

func (s *Stats) endTable() *text.Table {
	t := &text.Table{Columns: []text.Column{{Title: "Ends", Right: true}, {Title: "Of"}, {Title: "Reason"}}}
	for _, e := range s.Total.Ends {
		t.Add(count(e.Count), text.Printable(e.What), text.Printable(e.Reason))
	}
	return t
}

// hostTable has two columns more if there are connections or programs of 'gosmc run'.
func (s *Stats) hostTable() *text.Table {
	t := &text.Table{Columns: []text.Column{
		{Title: "Process"}, {Title: "SMC-D", Right: true}, {Title: "SMC-R", Right: true}, {Right: true},
		{Title: "TCP", Right: true}, {Title: "Started"}, {Title: "Run directory"}, {},
	}}
	moved := func(h HostStats) bool { return h.Counters.Connections[ModeUnix] > 0 || len(h.Programs) > 0 }
	if slices.ContainsFunc(s.Hosts, moved) {
		t.Columns[3].Title, t.Columns[7].Title = ModeUnix, "Programs of gosmc run"
	}
	for _, h := range s.Hosts {
		c, unix := h.Counters.Connections, ""
		if moved(h) {
			unix = count(c[ModeUnix])
		}
		t.Add(text.Process(h.PID, h.Command), count(c["SMC-D"]), count(c["SMC-R"]), unix, count(c["TCP"]),
			h.Started.Local().Format(time.DateTime), text.Printable(h.Dir), ProgramNames(h.Programs))
	}
	return t
}

// ProgramNames names the programs behind a supervisor, and how many there are beyond some.
func ProgramNames(list []control.StatusProgram) string {
	const most = 4
	var words []string
	for _, p := range list[:min(len(list), most)] {
		words = append(words, text.Process(p.PID, p.Command))
	}
	if n := len(list) - most; n > 0 {
		words = append(words, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(words, " ")
}
