package applicable

import (
	"net/netip"
	"time"
)

// A pairKey names a pair of programs. Each of the two has a name, or is on another machine.
type pairKey struct {
	ns             uint64 // of the server; of the client if the server is elsewhere
	server, client string // commands; addresses if they are elsewhere; empty: not known
	port           uint16 // of the server
	remote         bool   // one of the two is on another machine
}

// A pair sums up the connections of two programs.
type pair struct {
	pairKey
	remoteHost       netip.Addr      // of those that are elsewhere, the first one
	address          netip.AddrPort  // of the server, the first one
	servers, clients map[int]bool    // processes
	spaces           map[uint64]bool // of the clients, if they are in other namespaces

	count, live, ended int    // connections
	in, out            uint64 // bytes to the server and from it, while we sampled
	segIn, segOut      uint64

	// Of connections that have begun and ended while we sampled: their number, and sums of their
	// lifetimes and of their bytes in both directions.
	whole int
	life  time.Duration
	all   uint64
}

// count adds an end to its pair: each connection counts once, by the server's end if that is here.
// ended says that the connection is over.
func (s *sampler) count(e *end, ended bool) {
	here := s.local(e.peer.Addr())
	l := s.listener(e.ns, e.local)
	other := s.opposite(e)
	serves := l != nil
	if l == nil && here {
		// The listener may have been closed before we began: the lower port is the server's.
		theirs := s.anyListener(e, other)
		serves = theirs == nil && e.local.Port() < e.peer.Port()
		if !serves {
			return // the server's end counts
		}
	}
	if l != nil && here && s.anyListener(e, other) != nil && e.local.Port() > e.peer.Port() {
		return // both ports have listeners
	}
	p := s.pairOf(e, other, l, serves, here)
	if p == nil {
		s.omitted++
		return
	}
	p.add(e, serves, ended)
}

// local reports whether an address is one of this machine, in any network namespace.
func (s *sampler) local(a netip.Addr) bool { return a.IsLoopback() || s.addresses[a.WithZone("")] }

// opposite returns the other end of a connection, nil if it is not known: in the same namespace, or
// in another one with the same addresses, which nothing translates.
func (s *sampler) opposite(e *end) *end {
	r := route{e.ns, e.peer, e.local}
	if other := s.byRoute[r]; other != nil || e.peer.Addr().IsLoopback() {
		return other
	}
	for ns := range s.spaces {
		r.ns = ns
		if other := s.byRoute[r]; other != nil {
			return other
		}
	}
	return nil
}

// anyListener returns the listener that the peer of an end belongs to, in its namespace.
func (s *sampler) anyListener(e, other *end) *listener {
	ns := e.ns
	if other != nil {
		ns = other.ns
	}
	return s.listener(ns, e.peer)
}

// pairOf returns the pair of an end, nil if there are too many.
func (s *sampler) pairOf(e, other *end, l *listener, serves, here bool) *pair {
	ours, theirs := e.pid, 0
	if other != nil {
		theirs = other.pid
	}
	key := pairKey{ns: e.ns, remote: !here, port: e.peer.Port(), server: e.peer.Addr().String()}
	if serves {
		if ours == 0 && l != nil {
			ours = l.pid // too short for a look, or of a process that has ended
		}
		key.server, key.port = s.command(ours), e.local.Port()
		key.client = s.command(theirs)
		if key.server == "" { // rule: TestUnknown
			key.port = 0 // they may have any number of ports
		}
	} else {
		key.client = s.command(ours)
	}
	p := s.pairs[key]
	if p == nil {
		if len(s.pairs) >= maxPairs {
			return nil
		}
		p = &pair{
			pairKey: key, servers: make(map[int]bool), clients: make(map[int]bool),
			spaces: make(map[uint64]bool), address: e.peer, remoteHost: e.peer.Addr(),
		}
		if serves {
			p.address = e.local
		}
		s.pairs[key] = p
	}
	mine, others := p.clients, p.servers
	if serves {
		mine, others = others, mine
	}
	note(mine, ours)
	note(others, theirs)
	if other != nil && other.ns != e.ns {
		p.spaces[other.ns] = true
	}
	return p
}

func note(pids map[int]bool, pid int) {
	if pid != 0 && len(pids) < maxPIDs {
		pids[pid] = true
	}
}

func (s *sampler) command(pid int) string {
	if p := s.processes[pid]; p != nil {
		return p.command
	}
	return ""
}

// add adds a connection to a pair.
func (p *pair) add(e *end, serves, ended bool) {
	p.count++
	in := e.last.Received - min(e.last.Received, e.first.Received)
	out := e.last.Sent - min(e.last.Sent, e.first.Sent)
	segIn := uint64(e.last.SegmentsIn - e.first.SegmentsIn) // the kernel's numbers wrap around
	segOut := uint64(e.last.SegmentsOut - e.first.SegmentsOut)
	if !serves {
		in, out, segIn, segOut = out, in, segOut, segIn
	}
	p.in, p.out, p.segIn, p.segOut = p.in+in, p.out+out, p.segIn+segIn, p.segOut+segOut
	if !ended {
		p.live++
		return
	}
	p.ended++
	if !e.old {
		p.whole++
		p.life += e.seen.Sub(e.born)
		p.all += in + out
	}
}

// attribute gives connections that were too short for a look to the client program that the server
// has, if it has one alone.
func (s *sampler) attribute() {
	for key, p := range s.pairs {
		if key.client != "" || key.server == "" || key.remote {
			continue
		}
		var only *pair
		for other, q := range s.pairs {
			same := other.ns == key.ns && other.server == key.server && other.port == key.port
			if !same || other.client == "" {
				continue
			}
			if only != nil {
				only = nil
				break
			}
			only = q
		}
		if only != nil { // rule: TestShortClient
			only.merge(p)
			delete(s.pairs, key)
		}
	}
}

// merge adds the connections of another pair.
func (p *pair) merge(q *pair) {
	p.count, p.live, p.ended = p.count+q.count, p.live+q.live, p.ended+q.ended
	p.in, p.out, p.segIn, p.segOut = p.in+q.in, p.out+q.out, p.segIn+q.segIn, p.segOut+q.segOut
	p.whole, p.life, p.all = p.whole+q.whole, p.life+q.life, p.all+q.all
	for pid := range q.servers {
		note(p.servers, pid)
	}
}
