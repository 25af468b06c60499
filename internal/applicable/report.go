package applicable

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/config"
)

// Options say how to sample, and what to compare with.
type Options struct {
	For      time.Duration // above 0
	Settings config.Settings
	Table    Table
}

// A Pair is the traffic of two programs while they were sampled.
type Pair struct {
	Server  string `json:"server"` // its command, or the address of its host; empty: not known
	Port    uint16 `json:"port"`
	Client  string `json:"client"` // empty: not known, or of other hosts
	Address string `json:"address"`
	// Where is "local", "remote", or "smc-r": a host that the configuration names as a peer.
	Where string `json:"where"`

	Connections int `json:"connections"` // all that were seen
	Open        int `json:"open"`        // at the end
	Ended       int `json:"ended"`
	// LifetimeSeconds is the mean of those that have begun and ended meanwhile; absent: none has.
	LifetimeSeconds *float64 `json:"lifetime_seconds,omitempty"`
	BytesIn         uint64   `json:"bytes_to_server"`
	BytesOut        uint64   `json:"bytes_from_server"`
	SegmentsIn      uint64   `json:"segments_to_server"`
	SegmentsOut     uint64   `json:"segments_from_server"`
	// RequestBytes and AnswerBytes are means of segments. They are absent where segments are full:
	// the size of a request cannot be seen then.
	RequestBytes *float64 `json:"request_bytes,omitempty"`
	AnswerBytes  *float64 `json:"answer_bytes,omitempty"`

	Class    Class  `json:"class"`
	Can      bool   `json:"can_leave_tcp"`
	Obstacle string `json:"obstacle"` // empty if it can
	Gain     *Gain  `json:"gain,omitempty"`
	Advice   string `json:"advice"`
	// Saved estimates the processors that are saved if the same work is done.
	Saved float64 `json:"processors_saved"`
}

// A Step is a recommendation: one server that is worth to be switched on, with its clients.
type Step struct {
	Server  string   `json:"server"`
	Port    uint16   `json:"port"`
	Clients []string `json:"clients"`
	Gain    float64  `json:"gain"` // expected, of the client that gains most
	Saved   float64  `json:"processors_saved"`
}

// A Report is the result of a sample.
type Report struct {
	Seconds     float64  `json:"seconds"`
	Connections int      `json:"connections"`
	Omitted     int      `json:"connections_omitted"` // beyond what is followed
	Table       Table    `json:"table"`
	Pairs       []Pair   `json:"pairs"` // the busiest first
	Order       []Step   `json:"order"` // the most worthwhile first
	Notes       []string `json:"notes"` // about what could not be seen
}

// Sample follows the TCP connections of the machine for a time, or until ctx ends. The error is
// the kernel's, which did not list the connections of our own network namespace.
func Sample(ctx context.Context, o Options) (*Report, error) {
	s := newSampler()
	if err := s.sample(ctx, o.For); err != nil {
		return nil, err
	}
	return s.report(&o), nil
}

// report judges the pairs.
func (s *sampler) report(o *Options) *Report {
	r := &Report{
		Seconds: time.Since(s.began).Seconds(), Omitted: s.omitted, Table: o.Table,
		Pairs: []Pair{}, Order: []Step{}, Notes: []string{},
	}
	s.attribute()
	peers, _ := config.ParsePeers(o.Settings.Peers)
	for _, p := range s.pairs {
		r.Connections += p.count
		r.Pairs = append(r.Pairs, s.judge(p, o, peers, r.Seconds))
	}
	slices.SortFunc(r.Pairs, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(b.SegmentsIn+b.SegmentsOut, a.SegmentsIn+a.SegmentsOut),
			cmp.Compare(b.Connections, a.Connections), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Client, b.Client))
	})
	r.order()
	note := func(n int, text string) {
		if n > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf(text, n))
		}
	}
	note(s.denied, "%d network namespaces could not be joined: run as root")
	note(s.deaf, "in %d network namespaces connections shorter than a look were not seen: run as root")
	note(s.omitted, "%d connections are left out: there are too many")
	if s.news.lost {
		r.Notes = append(r.Notes, "more connections ended than could be counted")
	}
	return r
}

// judge says whether a pair can leave TCP and what it would gain.
func (s *sampler) judge(p *pair, o *Options, peers config.Peers, seconds float64) Pair {
	r := Pair{
		Server: p.server, Port: p.port, Client: p.client, Address: p.address.String(), Where: "local",
		Connections: p.count, Open: p.live, Ended: p.ended, BytesIn: p.in, BytesOut: p.out,
		SegmentsIn: p.segIn, SegmentsOut: p.segOut,
	}
	if p.remote {
		r.Where = "remote"
		if peers.Speak(p.remoteHost, p.port) {
			r.Where = "smc-r"
		}
	}
	if p.whole > 0 {
		mean := p.life.Seconds() / float64(p.whole)
		r.LifetimeSeconds = &mean
	}
	r.RequestBytes, r.AnswerBytes = size(p.in, p.segIn), size(p.out, p.segOut)
	r.Class = p.class(r.Where, seconds)
	var loads []load
	servers, clients := s.loads(p.servers), s.loads(p.clients)
	loads = append(append(loads, servers...), clients...)
	r.Obstacle = s.obstacle(p, o, r.Where)
	r.Gain = o.Table.gain(work{r.Server, r.Class, r.Class == Bulk && p.out > p.in}, loads)
	switch {
	case r.Class == Short:
		r.Advice = "leave it: connections are too short to gain"
		r.Obstacle = cmp.Or(r.Obstacle, "its connections are short")
	case r.Class == Idle:
		r.Advice = "leave it: there is too little traffic"
	case r.Where == "remote":
		r.Advice = "leave it: nothing says that the host speaks SMC"
	case r.Where == "smc-r":
		r.Advice = "for failover and SMC peers, not for speed"
	case r.Obstacle != "":
		r.Advice = "remove the obstacle first"
	case r.Gain == nil || r.Gain.Expected < minWorthwhile:
		r.Advice = "leave it: the programs need the time themselves"
	default:
		r.Advice = "switch it on"
	}
	r.Can = r.Obstacle == ""
	if r.Gain != nil && r.Can && r.Gain.Expected > 1 {
		system := 0.0
		for _, l := range loads {
			system += l.system
		}
		r.Saved = system * (1 - 1/r.Gain.Expected)
	}
	return r
}

// size is the mean size of a segment, nil if there is none, or if it says nothing about requests.
func size(bytes, segments uint64) *float64 {
	if segments == 0 {
		return nil
	}
	mean := float64(bytes) / float64(segments)
	if mean >= bulkSegment { // rule: TestClass
		return nil
	}
	return &mean
}

// class returns the kind of the traffic of a pair.
func (p *pair) class(where string, seconds float64) Class {
	segments, bytes := float64(p.segIn+p.segOut), float64(p.in+p.out)
	switch {
	case p.short(): // rule: TestClass
		return Short
	case where == "smc-r":
		return Remote
	case where == "remote":
		return Stranger
	case segments < idleMessages*seconds && bytes < idleBytes*seconds: // rule: TestClass
		return Idle
	case max(ratio(p.in, p.segIn), ratio(p.out, p.segOut)) >= bulkSegment: // rule: TestClass
		return Bulk
	case p.count < fewConns:
		return One
	case p.count <= manyConns:
		return Few
	}
	return Many
}

// short reports whether most connections end before they could gain.
func (p *pair) short() bool {
	return p.whole >= shortEnded && p.whole > 2*p.live &&
		p.life < time.Duration(p.whole)*shortLife && p.all < uint64(p.whole)*shortBytes
}

func ratio(a, b uint64) float64 { return float64(a) / float64(max(1, b)) }

// loads returns the loads of processes.
func (s *sampler) loads(pids map[int]bool) (list []load) {
	for pid := range pids {
		if p := s.processes[pid]; p != nil {
			list = append(list, p.load())
		}
	}
	return list
}

// obstacle says why a pair cannot leave TCP by 'gosmc run', "" if it can.
func (s *sampler) obstacle(p *pair, o *Options, where string) string {
	server, client := s.one(p.servers), s.one(p.clients)
	if o.Settings.Off {
		return "SMC is switched off by the configuration"
	}
	if where != "local" {
		return "the other program is on another machine: 'gosmc run' is for one, package smc has SMC-R"
	}
	if why := refused(o, server, p, false); why != "" {
		return "policy: " + why
	}
	if why := refused(o, client, p, true); why != "" {
		return "policy: " + why
	}
	for _, e := range []struct {
		role string
		p    *process
	}{{"server", server}, {"client", client}} {
		switch {
		case e.p == nil && e.role == "client" && p.ended == p.count:
			// Too short for a look: the class says so.
		case e.p == nil:
			return "the " + e.role + "'s process is not known: it has ended, or only root may look at it"
		case e.p.obstacle != "":
			return e.role + " " + e.p.command + ": " + e.p.obstacle
		}
	}
	switch {
	case len(p.spaces) > 0:
		return "the programs are in different network namespaces: for package smc and the agent, " +
			"not for 'gosmc run'"
	case server == nil || client == nil:
		return ""
	case server.uid != client.uid: // rule: TestObstacle
		return fmt.Sprintf("the programs have different users (%d and %d): start both as one",
			server.uid, client.uid)
	case server.under && client.under:
		return "both were started by 'gosmc run': see 'gosmc ss --why'"
	}
	return ""
}

// refused says why the policy keeps a program's connections on TCP.
func refused(o *Options, who *process, p *pair, connects bool) string {
	if who == nil {
		return ""
	}
	policy, err := config.NewPolicy(o.Settings.Listen, o.Settings.Connect, o.Settings.Programs,
		config.ProgramName(who.command))
	switch {
	case err != nil:
		return err.Error()
	case connects:
		return policy.Connect.Refuses(p.address)
	}
	return policy.Listen.Refuses(p.address)
}

// one returns a process of several: the busiest that is known.
func (s *sampler) one(pids map[int]bool) (best *process) {
	for _, pid := range slices.Sorted(maps.Keys(pids)) {
		p := s.processes[pid]
		if p != nil && (best == nil || p.load().total() > best.load().total()) {
			best = p
		}
	}
	return best
}

// order recommends servers to switch on: those that save most first.
func (r *Report) order() {
	steps := make(map[string]*Step)
	for _, p := range r.Pairs {
		if !p.Can || p.Gain == nil || p.Gain.Expected < minWorthwhile { // also without traffic
			continue
		}
		key := fmt.Sprint(p.Server, p.Port)
		step := steps[key]
		if step == nil {
			step = &Step{Server: p.Server, Port: p.Port}
			steps[key] = step
		}
		step.Clients = append(step.Clients, p.Client)
		step.Gain = max(step.Gain, p.Gain.Expected)
		step.Saved += p.Saved
	}
	for _, s := range steps {
		r.Order = append(r.Order, *s)
	}
	slices.SortFunc(r.Order, func(a, b Step) int {
		return cmp.Or(cmp.Compare(b.Saved, a.Saved), cmp.Compare(b.Gain, a.Gain),
			cmp.Compare(a.Port, b.Port))
	})
}
