package main

import (
	"fmt"
	"strings"
)

// set returns an instance of epoll of a process, a new one if need be; nil if there are enough.
func (g *generator) set(actor int) *registry {
	var have []*registry
	for _, r := range g.sets {
		if r.actor == actor {
			have = append(have, r)
		}
	}
	if len(have) > 0 && (len(have) == 4 || g.IntN(3) != 0) {
		return have[g.IntN(len(have))]
	}
	r := &registry{actor: actor, slot: len(have), has: make(map[int]bool)}
	g.sets = append(g.sets, r)
	g.add("%d epoll e%d%s", actor, r.slot, g.pick("", " old"))
	return r
}

func (g *generator) events() string {
	events := g.pick("in", "in", "out", "in|out", "in|rdhup", "in|out|rdhup", "in|pri", "in|out|rdhup|pri", "rdhup", "in|rdnorm|wrband|out")
	switch g.IntN(6) {
	case 0:
		events += "|oneshot"
	case 1, 2:
		if g.has["edge"] {
			events += "|et"
		}
	case 3:
		if g.has["edge"] && !strings.Contains(events, "rdhup") && !strings.Contains(events, "pri") && !strings.Contains(events, "band") {
			events += "|excl"
		}
	}
	return events
}

// register adds an end to an instance, or changes or deletes a registration.
func (g *generator) register(r *registry, e *end) {
	op := "add"
	if r.has[e.slot] && g.IntN(8) != 0 {
		op = g.pick("mod", "mod", "del")
	}
	events := g.events()
	if op == "mod" {
		events = strings.TrimSuffix(events, "|excl")
	}
	g.add("%d ctl e%d %s s%d %s%s", r.actor, r.slot, op, e.slot, events, g.pick("", " fd"))
	r.has[e.slot] = op != "del"
	e.watched = true
}

func (g *generator) wait(r *registry) {
	g.add("%d ewait e%d %d 0%s", r.actor, r.slot, 32, g.pick("", "", " pwait", " pwait2"))
}

func (g *generator) epoll() bool {
	e := g.anyEnd()
	if e == nil {
		return false
	}
	r := g.set(e.actor)
	switch g.IntN(3) {
	case 0:
		g.register(r, e)
	case 1:
		g.wait(r)
	default:
		g.register(r, e)
		g.wait(r)
	}
	return true
}

// nest registers an instance with another one, or asks the outer one.
func (g *generator) nest() bool {
	e := g.anyEnd()
	if e == nil {
		return false
	}
	inner := g.set(e.actor)
	if inner.slot == 3 {
		return false
	}
	g.register(inner, e)
	g.add("%d epoll e3", e.actor)
	g.add("%d ctl e3 add e%d %s", e.actor, inner.slot, g.pick("in", "in|et"))
	g.add("%d ewait e3 8", e.actor)
	for _, r := range g.sets {
		if r.actor == e.actor && r.slot == 3 {
			r.has = map[int]bool{}
			return true
		}
	}
	g.sets = append(g.sets, &registry{actor: e.actor, slot: 3, has: map[int]bool{}})
	return true
}

var chunks = []int{1, 7, 100, 1000, 4096, 5000, 16384, 20000, 65536, 100000}

// loop has both ends of a connection send and receive much at a time.
func (g *generator) loop() bool {
	e := g.anyEnd()
	if e == nil || !e.peer().open || e.shut || e.peer().shut || e.reset || e.peer().reset || e.actor == e.peer().actor {
		return false
	}
	p := e.peer()
	if g.IntN(2) == 0 { // requests and answers
		if e.conn.unread[0] != 0 || e.conn.unread[1] != 0 {
			return false
		}
		rounds := 1 + g.IntN(40)
		size := chunks[g.IntN(6)]
		g.add("&%d ping s%d %d %d %s", e.actor, e.slot, rounds, size, g.pick("block", "poll", "select", "lt", "et", "etall"))
		g.add("&%d echo s%d %d %s", p.actor, p.slot, rounds*size, g.pick("block", "poll", "select", "lt", "et", "etall", "oneshot", "excl"))
		g.add("%d join", e.actor)
		return true
	}
	total := []int{1000, 10000, 70000, 300000, 1200000}[g.IntN(5)]
	chunk := chunks[g.IntN(len(chunks))]
	for total/chunk > 400 {
		total /= 4
	}
	g.pump(e, total, chunk, "")
	if e.nonblock && p.nonblock && g.has["blocked"] && g.IntN(2) == 0 && e.conn.unread[p.side] == 0 && !g.forked {
		g.pump(p, total, chunk, ".1")
	}
	g.add("%d join", e.actor)
	return true
}

// pump has an end send, and its peer receive all of it.
func (g *generator) pump(e *end, total, chunk int, thread string) {
	p := e.peer()
	ways := []string{"block", "waitall", "poll", "select", "lt", "et", "etshort", "etasks", "etall", "oneshot", "excl", "peekblock"}
	how := ways[g.IntN(len(ways))]
	sends := g.pick("block", "poll", "select", "lt", "et", "etall", "oneshot")
	if thread != "" || (e.nonblock && p.nonblock) {
		how = ways[2+g.IntN(9)]
		sends = g.pick("poll", "select", "lt", "et", "etall")
	}
	takes := chunks[2+g.IntN(len(chunks)-2)]
	g.add("&%d%s drain s%d %d %d %s", p.actor, thread, p.slot, total+e.conn.unread[e.side], takes, how)
	g.add("&%d%s pump s%d %d %d %s %s", e.actor, thread, e.slot, total, chunk, sends, g.pick("send", "send", "write", "writev", "sendmsg", "sendfile", "splice"))
	e.conn.unread[e.side], e.conn.sends[e.side] = 0, 0
}

// blocked has a call wait, and another process take the step that it waits for.
func (g *generator) blocked() bool {
	e := g.anyEnd()
	if e == nil || e.there() != 0 || e.ended() || e.reset || e.actor == e.peer().actor || !g.sends(e.peer(), 100) {
		return false
	}
	p := e.peer()
	n := 1 + g.IntN(100)
	takes := n
	thread := ""
	if g.IntN(3) == 0 && !g.forked {
		thread = ".1"
	}
	switch g.IntN(6) {
	case 0, 1:
		if e.nonblock {
			return false
		}
		how := g.pick("recv", "read", "recvmsg", "readv", "recvfrom", "preadv2", "recvmmsg")
		g.add("~%d%s recv s%d %d %s", e.actor, thread, e.slot, 50+g.IntN(100), how)
		takes = 50
		n = min(n, takes)
		takes = n
	case 2:
		g.add("~%d%s poll s%d %s 5000", e.actor, thread, e.slot, g.pick("in", "in|rdhup", "in|pri"))
		takes = 0
	case 3:
		g.add("~%d%s select s%d 900 in", e.actor, thread, e.slot)
		takes = 0
	case 4:
		r := g.set(e.actor)
		if len(r.has) != 0 || r.slot == 3 {
			return false
		}
		g.add("%d ctl e%d add s%d %s", e.actor, r.slot, e.slot, g.pick("in", "in|et", "in|oneshot", "in|rdhup|et", "in|excl"))
		r.has[e.slot] = true
		e.watched = true
		g.add("~%d%s ewait e%d 8 5000%s", e.actor, thread, r.slot, g.pick("", " pwait", " pwait2"))
		takes = 0
	default:
		if e.nonblock {
			return false
		}
		g.add("~%d%s recv s%d %d recv waitall", e.actor, thread, e.slot, n)
	}
	if g.IntN(4) == 0 {
		g.add("%d waits 1", p.actor)
	}
	if g.IntN(5) == 0 && n > 1 && takes != 0 && strings.Contains(g.steps[len(g.steps)-1], "waitall") {
		g.add("%d send s%d %d", p.actor, p.slot, n-1)
		g.add("%d waits 2", p.actor)
		g.add("%d send s%d 1", p.actor, p.slot)
	} else {
		g.add("%d send s%d %d %s", p.actor, p.slot, n, g.pick("send", "write", "writev"))
	}
	p.conn.unread[p.side] += n
	p.conn.sends[p.side]++
	g.add("%d join", p.actor)
	g.took(e, takes)
	return true
}

// guard gives a process a filter of system calls. Bytes that are in its rings at that moment would be copied by a supervisor, in its own time.
func (g *generator) guard() bool {
	actor := g.IntN(g.actors)
	if g.guarded[actor] {
		return false
	}
	for _, c := range g.conns {
		for _, e := range c.ends {
			if e.actor == actor && (e.there() != 0 || e.copied || e.reset || e.ended()) {
				return false
			}
		}
	}
	names := ""
	if g.names {
		names = " names"
	}
	g.add("%d guard%s", actor, names)
	g.guarded[actor] = true
	// The library lets the kernel answer from now on, which says EPIPE where TCP takes bytes and loses them, and knows no options of TCP.
	for _, f := range []string{"options", "signals", "urgent", "lowat", "shutdown", "close", "reset", "disconnect", "exec", "pass"} {
		g.has[f] = false
	}
	return true
}

var optionNames = []string{"nodelay", "keepidle", "usertimeout", "reuseaddr", "keepalive", "broadcast", "oobinline", "priority", "sndlowat", "dontroute", "passcred", "busypoll", "syncnt", "notsent", "tos", "ttl", "sndbuf"}

// option sets or gets one, known or not.
func (g *generator) option() bool {
	e := g.anyEnd()
	if e == nil || e.reset || !e.peer().open {
		return false
	}
	switch g.IntN(5) {
	case 0:
		name, v := g.pick(optionNames...), []int{0, 1, 1, 2, 5, 100, -1}[g.IntN(7)]
		if name == "sndbuf" {
			v = -1 // the largest one: with less TCP holds fewer bytes than the generator believes
		}
		g.add("%d set s%d %s %d", e.actor, e.slot, name, v)
	case 1:
		g.add("%d get s%d %s", e.actor, e.slot, g.pick("nodelay", "type", "domain", "protocol", "acceptconn", "keepalive", "oobinline", "broadcast", "sndlowat", "cork"))
	case 2: // numbers without a meaning, and lengths
		g.add("%d set s%d %s:%d %d %d", e.actor, e.slot, g.pick("6", "0", "1", "41", "17", "270", "99"), 100+g.IntN(900), g.IntN(3), []int{4, 4, 1, 0, 8}[g.IntN(5)])
	case 3:
		g.add("%d get s%d %s:%d %d", e.actor, e.slot, g.pick("6", "0", "1", "41", "17", "270", "99"), 100+g.IntN(900), []int{4, 4, 1, 0, 8}[g.IntN(5)])
	default:
		g.add("%d get s%d %s %d", e.actor, e.slot, g.pick("nodelay", "type", "keepalive", "error"), []int{0, 1, 2, 8}[g.IntN(4)])
	}
	return true
}

func (g *generator) catch(actor int) {
	if !g.caught[actor] {
		g.add("%d catch restart", actor)
		g.caught[actor] = true
	}
}

func (g *generator) owner(e *end) {
	g.catch(e.actor)
	g.add("%d own s%d %s%s", e.actor, e.slot, g.pick("pid", "pid", "tid", "group", "none", "ioctl"), g.pick("", " sig"))
	g.add("%d async s%d 1", e.actor, e.slot)
}

func (g *generator) signals() bool {
	e := g.anyEnd()
	if e == nil || e.copied {
		return false
	}
	switch {
	case g.IntN(3) == 0 && e.there() == 0: // bytes that are in a ring at that moment keep the next signal away: see README.md
		g.owner(e)
	default:
		g.catch(e.actor)
		if p := e.peer(); g.sends(p, 5) {
			g.add("%d signals", e.actor)
			g.add("%d send s%d 5", p.actor, p.slot)
			p.conn.unread[p.side] += 5
			p.conn.sends[p.side]++
		}
		g.add("%d signals", e.actor)
	}
	return true
}

// urgent sends a byte out of band, and looks for it.
func (g *generator) urgent() bool {
	e := g.anyEnd()
	if e == nil || !g.sends(e, 10) {
		return false
	}
	p := e.peer()
	switch g.IntN(4) {
	case 0, 1:
		n := 1 + g.IntN(4)
		g.add("%d send s%d %d send oob", e.actor, e.slot, n)
		e.conn.unread[e.side] += n
		e.conn.sends[e.side]++
	case 2:
		g.add("%d recv s%d 1 recv oob|dontwait", p.actor, p.slot)
	default:
		g.add("%d ask s%d atmark", p.actor, p.slot)
	}
	if g.IntN(2) == 0 {
		g.add("%d ask s%d %s", p.actor, p.slot, g.pick("fionread", "atmark"))
	}
	if g.IntN(2) == 0 {
		g.add("%d poll s%d in|pri|rdhup|rdband", p.actor, p.slot)
	}
	p.nonblock = p.nonblock || g.calm(p) // a mark makes reads shorter than the generator believes
	return true
}

// calm makes an end one that never waits.
func (g *generator) calm(e *end) bool {
	g.add("%d block s%d 0", e.actor, e.slot)
	return true
}

// patient has a receive wait for SO_RCVLOWAT.
func (g *generator) patient(e *end) bool {
	p := e.peer()
	n := 2 + g.IntN(200)
	if e.nonblock || e.there() != 0 || e.ended() || e.actor == p.actor || !g.sends(p, 2*n) {
		return false
	}
	first, more := 1+g.IntN(n-1), g.IntN(n)
	if g.ringed && !g.ring(p) {
		return false
	}
	g.add("%d set s%d rcvlowat %d", e.actor, e.slot, n)
	g.add("~%d recv s%d 5000 %s", e.actor, e.slot, g.pick("recv", "recvmsg", "read"))
	g.add("%d send s%d %d %s", p.actor, p.slot, first, g.pick("send", "write"))
	g.add("%d waits 2", p.actor)
	g.add("%d send s%d %d %s", p.actor, p.slot, n-first+more, g.pick("send", "write"))
	g.add("%d join", p.actor)
	g.add("%d set s%d rcvlowat 1", e.actor, e.slot)
	e.low = 1
	return true
}

// ring has the bytes of an end go over to a ring, which is empty in the end. The end receives a byte
// then, so that its next sends offer no other ring.
func (g *generator) ring(e *end) bool {
	p := e.peer()
	if e.there() != 0 || !g.sends(e, 20*2) || !g.sends(p, 1) {
		return false
	}
	for range 2 { // a ring is offered, and begins
		g.add("%d burst s%d 20 2 send", e.actor, e.slot)
		g.add("%d empty s%d", p.actor, p.slot)
	}
	g.add("%d send s%d 1", p.actor, p.slot)
	g.add("%d recv s%d 1", e.actor, e.slot)
	return true
}

func (g *generator) lowat() bool {
	e := g.anyEnd()
	if e == nil || e.reset {
		return false
	}
	if g.ringed {
		return g.patient(e)
	}
	if g.IntN(2) == 0 && g.patient(e) {
		return true
	}
	if !e.nonblock { // a receive waits for so much
		g.calm(e)
		e.nonblock = true
	}
	e.low = []int{0, 1, 2, 10, 100, 1000}[g.IntN(6)]
	g.add("%d set s%d rcvlowat %d", e.actor, e.slot, e.low)
	if g.IntN(2) == 0 {
		g.add("%d get s%d rcvlowat", e.actor, e.slot)
	}
	return true
}

func (g *generator) dup() bool {
	e := g.anyEnd()
	if e == nil || e.reset || !e.peer().open || e.shut {
		return false
	}
	to := g.slot(e.actor)
	if to < 0 {
		return false
	}
	g.add("%d dup s%d s%d%s", e.actor, e.slot, to, g.pick("", " fcntl"))
	e.copied = true
	if g.IntN(2) == 0 { // goes on under the other name
		if e.watched {
			return true
		}
		g.add("%d close s%d", e.actor, e.slot)
		g.slots[e.actor][e.slot] = false
		e.slot = to
	} else {
		g.add("%d close s%d", e.actor, to)
		g.slots[e.actor][to] = false
	}
	return true
}

// fork has another process have all that one has.
func (g *generator) fork() bool {
	if g.forked || g.threads {
		return false
	}
	for _, s := range g.steps {
		if strings.Contains(s, ".1 ") {
			return false
		}
	}
	from := g.IntN(g.actors)
	child := actorsMost
	g.forked = true
	g.add("%d fork %d", from, child)
	g.guarded[child] = g.guarded[from]
	for _, c := range g.conns {
		for _, e := range c.ends {
			if e.actor == from && e.open {
				e.copied = true
				if g.IntN(2) == 0 { // the child goes on with it
					g.add("%d close s%d", from, e.slot)
					e.actor = child
				} else {
					g.add("%d close s%d", child, e.slot)
				}
			}
		}
	}
	if from == 0 {
		g.slots[child][listener] = true
	}
	g.slots[child] = g.slots[from]
	return true
}

// exec has a process execute a program, with its connections.
func (g *generator) exec() bool {
	actor := g.IntN(g.actors)
	if g.forked || len(g.sets) > 0 || g.caught[actor] {
		return false
	}
	for _, s := range g.steps {
		if strings.HasPrefix(strings.TrimLeft(s, "~&"), fmt.Sprintf("%d.", actor)) {
			return false
		}
	}
	for _, c := range g.conns {
		for _, e := range c.ends {
			if e.actor == actor && e.open {
				if e.conn.unread[0] != 0 || e.conn.unread[1] != 0 {
					return false
				}
				e.copied = true
			}
		}
	}
	g.add("%d exec", actor)
	return true
}

// pass hands an end over to another process.
func (g *generator) pass() bool {
	e := g.anyEnd()
	if e == nil || e.copied || e.watched || e.reset || e.shut || e.conn.unread[0] != 0 || e.conn.unread[1] != 0 || g.forked {
		return false
	}
	to := (e.actor + 1) % g.actors
	slot := g.slot(to)
	if slot < 0 || to == e.peer().actor && g.IntN(3) != 0 {
		return false
	}
	g.add("%d sendfd s%d %d", e.actor, e.slot, to)
	g.add("%d close s%d", e.actor, e.slot)
	g.slots[e.actor][e.slot] = false
	g.add("%d recvfd s%d", to, slot)
	e.actor, e.slot, e.copied = to, slot, true
	return true
}

func (g *generator) shutdown() bool {
	e := g.anyEnd()
	if e == nil || e.shut || e.reset || !e.peer().open {
		return false
	}
	g.add("%d shutdown s%d 1", e.actor, e.slot)
	e.shut = true
	return true
}

// close ends a connection in good order.
func (g *generator) close() bool {
	e := g.anyEnd()
	if e == nil || e.reset {
		return false
	}
	if e.there() != 0 {
		g.add("%d empty s%d", e.actor, e.slot)
		g.took(e, e.there())
	}
	if g.IntN(5) == 0 && !e.copied {
		g.add("%d close s%d range", e.actor, e.slot)
	} else {
		g.add("%d close s%d", e.actor, e.slot)
	}
	e.open = false
	g.slots[e.actor][e.slot] = false
	for _, r := range g.sets {
		if r.actor == e.actor {
			delete(r.has, e.slot)
		}
	}
	return true
}

// resets closes an end so that the peer hears of a reset.
func (g *generator) resets() bool {
	e := g.anyEnd()
	if e == nil || e.reset || e.shut || !e.peer().open || e.peer().shut || e.conn.unread[e.side] != 0 {
		return false
	}
	if e.there() == 0 || g.IntN(2) == 0 {
		g.add("%d linger s%d 1 0", e.actor, e.slot)
	}
	g.add("%d close s%d", e.actor, e.slot)
	e.open = false
	e.peer().reset = true
	g.slots[e.actor][e.slot] = false
	for _, r := range g.sets {
		if r.actor == e.actor {
			delete(r.has, e.slot)
		}
	}
	return true
}

func (g *generator) disconnect() bool {
	e := g.anyEnd()
	if e == nil || e.reset || e.shut || !e.peer().open || e.peer().shut || e.copied || e.peer().copied || e.watched || e.conn.unread[0] != 0 || e.conn.unread[1] != 0 {
		return false
	}
	g.add("%d disconnect s%d", e.actor, e.slot)
	e.open = false
	e.peer().reset = true
	return true
}

// full sends until there is no room, and makes room.
func (g *generator) full() bool {
	e := g.anyEnd()
	if e == nil || !g.sends(e, 0) || e.actor == e.peer().actor && e.nonblock {
		return false
	}
	p := e.peer()
	g.add("%d fill s%d %d", e.actor, e.slot, []int{1000, 5000, 20000, 100000}[g.IntN(4)])
	g.add("%d poll s%d %s", e.actor, e.slot, "out|wrband")
	g.add("%d empty s%d %d", p.actor, p.slot, chunks[3+g.IntN(6)])
	g.add("%d poll s%d %s", e.actor, e.slot, "out|wrband")
	e.conn.unread[e.side], e.conn.sends[e.side] = 0, 0
	return true
}

// partly acts as a loop with edges does: it reads a part of the bytes that are there, and relies on
// being told of the next ones.
func (g *generator) partly() bool {
	e := g.anyEnd()
	if e == nil || e.reset || e.ended() || e.there() != 0 || !g.sends(e.peer(), 600) || e.conn.sends[e.peer().side] != 0 {
		return false
	}
	p := e.peer()
	if !e.nonblock {
		g.calm(e)
		e.nonblock = true
	}
	if g.IntN(4) != 0 { // enough for a ring, and one send more, which switches to it
		g.add("%d burst s%d 20 5 %s", p.actor, p.slot, g.pick("send", "write"))
		g.add("%d recv s%d 50000", e.actor, e.slot)
		g.add("%d burst s%d 3 5", p.actor, p.slot)
		g.add("%d recv s%d 50000", e.actor, e.slot)
	}
	r := g.set(e.actor)
	op := "add"
	if r.has[e.slot] {
		op = "mod"
	}
	events := g.pick("in|et", "in|et", "in|rdhup|et", "in|out|et")
	if op == "add" && g.IntN(4) == 0 {
		events = "in|excl"
	}
	g.add("%d ctl e%d %s s%d %s%s", e.actor, r.slot, op, e.slot, events, g.pick("", " fd"))
	r.has[e.slot], e.watched = true, true
	for range 2 + g.IntN(3) {
		n := 2 + g.IntN(90)
		g.add("%d send s%d %d %s", p.actor, p.slot, n, g.pick("send", "write", "writev"))
		g.wait(r)
		switch g.IntN(4) {
		case 0:
			g.add("%d ask s%d fionread", e.actor, e.slot)
			fallthrough
		case 1, 2:
			part := 1 + g.IntN(n)
			g.add("%d recv s%d %d", e.actor, e.slot, part)
			e.conn.unread[p.side] -= part
		}
		e.conn.unread[p.side] += n
		e.conn.sends[p.side]++
	}
	return true
}
