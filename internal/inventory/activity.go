package inventory

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/survey"
)

// A Sample is the state of all connections at one time.
type Sample struct {
	Time        time.Time
	Connections []Conn
	hosts       map[int]control.StatusCounters // by process ID
}

// NewSample keeps connections, and the counters of the hosts that have answered.
func NewSample(g *survey.Answers, connections []Conn) *Sample {
	s := &Sample{Time: time.Now(), Connections: connections, hosts: make(map[int]control.StatusCounters)}
	for i := range g.Hosts {
		s.hosts[g.Hosts[i].PID] = g.Hosts[i].Counters
	}
	return s
}

// An Activity is the work of one service or one program between two samples. Rates are for each
// second; nil: not counted.
type Activity struct {
	Port    int            `json:"port"`    // of a service; 0 for a program
	PID     int            `json:"pid"`     // of a program; 0 for a service
	Command string         `json:"command"` // empty: not known
	Modes   map[string]int `json:"modes"`   // connections by mode
	Reasons []ReasonCount  `json:"reasons"` // of those that are TCP, the most frequent first

	In      *float64 `json:"bytes_in_rate"`
	Out     *float64 `json:"bytes_out_rate"`
	New     float64  `json:"connections_rate"`
	Full    *float64 `json:"buffers_full_rate"` // writes that found no room
	Wakeups *float64 `json:"wakeups_rate"`      // waits that ended asleep

	pids map[int]bool // whose counters belong to it
}

// Connections counts the connections of all modes.
func (a *Activity) Connections() (n int) {
	for _, k := range a.Modes {
		n += k
	}
	return n
}

// An end names one end of a connection.
type end struct {
	local, peer string
	netns       uint64
	inode       uint64
	pid         int
}

func endOf(c *Conn) end { return end{c.Local, c.Peer, c.NetNS, c.Inode, c.PID} }

// Activities compares two samples. Each connection counts once for the service that it is to. With
// byProgram each end counts, for its process.
func Activities(before, after *Sample, byProgram bool) []Activity {
	seconds := max(after.Time.Sub(before.Time).Seconds(), 1e-3)
	earlier := make(map[end]*Conn)
	for i := range before.Connections {
		c := &before.Connections[i]
		earlier[endOf(c)] = c
	}
	var ends []*Conn
	if byProgram {
		for i := range after.Connections {
			ends = append(ends, &after.Connections[i])
		}
	} else {
		ends = distinct(after.Connections)
	}
	type key struct {
		port, pid int
		command   string
	}
	rows := make(map[key]*Activity)
	for _, c := range ends {
		k := key{pid: c.PID, command: c.Command}
		if !byProgram {
			k = key{command: c.Command}
			if c.Role != "server" {
				k.command = c.PeerCommand
			}
			if i := strings.LastIndexByte(c.Server(), ':'); i >= 0 {
				k.port, _ = strconv.Atoi(c.Server()[i+1:])
			}
		}
		a := rows[k]
		if a == nil {
			a = &Activity{Port: k.port, PID: k.pid, Command: k.command, Modes: make(map[string]int),
				Reasons: []ReasonCount{},
				pids:    make(map[int]bool)}
			rows[k] = a
		}
		a.count(c, earlier[endOf(c)], seconds)
	}
	list := make([]Activity, 0, len(rows))
	for _, a := range rows {
		a.add(before, after, seconds)
		list = append(list, *a)
	}
	slices.SortFunc(list, func(a, b Activity) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.PID, b.PID),
			strings.Compare(a.Command, b.Command))
	})
	return list
}

// count adds a connection, as it is, and as it was; was is nil if it is new.
func (a *Activity) count(c, was *Conn, seconds float64) {
	a.pids[c.PID] = true
	a.Modes[c.Mode]++
	if was == nil {
		a.New += 1 / seconds
		was = &Conn{BytesIn: new(uint64), BytesOut: new(uint64)}
	}
	addRate(&a.In, was.BytesIn, c.BytesIn, seconds)
	addRate(&a.Out, was.BytesOut, c.BytesOut, seconds)
	if c.Mode != "TCP" {
		return
	}
	tag := c.Tag()
	if i := slices.IndexFunc(a.Reasons, func(r ReasonCount) bool { return r.Tag == tag }); i >= 0 {
		a.Reasons[i].Count++
	} else {
		a.Reasons = append(a.Reasons, ReasonCount{tag, 1})
	}
}

// add adds the counters of hosts, and orders the reasons.
func (a *Activity) add(before, after *Sample, seconds float64) {
	for pid := range a.pids {
		now, ok := after.hosts[pid]
		was, had := before.hosts[pid]
		if ok && had {
			addRate(&a.Full, &was.BuffersFull, &now.BuffersFull, seconds)
			addRate(&a.Wakeups, &was.Sleeps, &now.Sleeps, seconds)
		}
	}
	slices.SortFunc(a.Reasons, func(x, y ReasonCount) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), strings.Compare(x.Tag, y.Tag))
	})
}

// addRate adds the growth of a counter to a rate. A counter that nobody counts, or that has become
// less, adds nothing.
func addRate(rate **float64, was, now *uint64, seconds float64) {
	if was == nil || now == nil {
		return
	}
	if *rate == nil {
		*rate = new(float64)
	}
	if *now > *was {
		**rate += float64(*now-*was) / seconds
	}
}
