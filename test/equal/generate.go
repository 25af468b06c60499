package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Bounds of the bytes that a script leaves unread in a direction, so that a send never has to wait
// but where it is meant to.
const (
	smallMost  = 1500     // fits into the least ring
	largeMost  = 40 << 10 // fits into any socket, in-band
	sendsMost  = 60       // that are unread: each takes room of its own in a Unix socket
	stepsMost  = 300
	actorsMost = 3
)

// An end is one end of a connection as the generator believes it to be.
type end struct {
	actor    int
	slot     int
	conn     *conn
	side     int
	open     bool
	nonblock bool
	shut     bool // it sends no more
	copied   bool // other descriptors or processes have it
	watched  bool // an instance of epoll has or had it
	reset    bool // the peer has reset the connection, or may have
	low      int  // SO_RCVLOWAT, if it is above 1
}

// A conn is a connection. Bytes are counted by the side that sends them.
type conn struct {
	ends   [2]*end
	unread [2]int
	sends  [2]int
}

func (e *end) peer() *end { return e.conn.ends[1-e.side] }

// there returns how many bytes the end can read.
func (e *end) there() int { return e.conn.unread[1-e.side] }

// A registry is an instance of epoll.
type registry struct {
	actor int
	slot  int // of the names e0, e1, ...
	has   map[int]bool
}

// A generator makes a script from random numbers.
type generator struct {
	*rand.Rand
	most    int
	steps   []string
	slots   [actorsMost + 1][20]bool // names in use
	conns   []*conn
	sets    []*registry
	actors  int
	threads bool
	forked  bool
	guarded [actorsMost + 1]bool
	names   bool // processes that are guarded may ask for names
	caught  [actorsMost + 1]bool
	modes   []string
	low     int             // SO_RCVLOWAT of the listener, which its connections have from it
	has     map[string]bool // the features that this script uses at all
	blind   bool            // it does not ask which ends are ready to be read
	ringed  bool            // SO_RCVLOWAT is above 1 only while no ring can be offered
}

// open are defects that are known and not repaired yet: scripts leave them out, unless -open names them.
var open = map[string]bool{
	"lowat":  true, // poll and epoll tell POLLIN below SO_RCVLOWAT, and offers of rings end receives: scripts with it are blind, or ringed
	"urgent": true, // poll and epoll tell POLLIN where there is nothing but an urgent byte
}

// features names the things that scripts do or leave out: a few at a time find more than all at
// once.
var features = []string{"epoll", "edge", "loops", "blocked", "options", "signals", "urgent", "dup", "fork", "exec", "pass", "shutdown", "close", "reset", "zero", "flags", "burst", "peek", "lowat", "disconnect", "full", "defer", "nested", "before", "accepts", "guard"}

// generate makes the script of a seed.
func generate(seed uint64) *script {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x65717561)), has: make(map[string]bool)}
	g.most = smallMost
	if g.IntN(3) == 0 {
		g.most = largeMost
		g.modes = []string{"in-band", "rings"}
	}
	for _, f := range features {
		g.has[f] = g.IntN(3) == 0
	}
	if g.has["lowat"] && open["lowat"] {
		g.has["lowat"] = g.IntN(4) == 0
		g.ringed = g.has["lowat"] && g.IntN(2) == 0
		g.blind = g.has["lowat"] && !g.ringed
	}
	for _, f := range []string{"epoll", "edge", "loops", "blocked", "nested", "before", "accepts", "full", "urgent"} {
		g.has[f] = g.has[f] && !g.blind
	}
	g.has["urgent"] = g.has["urgent"] && !open["urgent"]
	if g.blind { // an offer of a ring ends a receive that waits for more
		g.modes = []string{"in-band"}
	}
	if g.ringed {
		g.modes = []string{"in-band", "rings"}
	}
	g.actors = 2
	if g.IntN(6) == 0 {
		g.actors = 3
	}
	g.names = g.has["guard"] && g.IntN(2) == 0
	g.begin()
	for _, c := range g.conns {
		for _, e := range c.ends {
			_ = g.ringed && g.patient(e)
		}
	}
	for n := 4 + g.IntN(28); n > 0 && len(g.steps) < stepsMost; n-- {
		for tries := 0; tries < 20 && !g.one(); tries++ {
		}
	}
	return &script{name: fmt.Sprintf("seed %d", seed), steps: g.steps, modes: g.modes}
}

func (g *generator) add(format string, args ...any) {
	g.steps = append(g.steps, fmt.Sprintf(format, args...))
}

func (g *generator) pick(words ...string) string { return words[g.IntN(len(words))] }

// slot takes a name that is free in a process.
func (g *generator) slot(actor int) int {
	for i := range g.slots[actor] {
		if !g.slots[actor][i] {
			g.slots[actor][i] = true
			return i
		}
	}
	return -1
}

const listener = 0 // the slot of actor 0 that listens

func (g *generator) begin() {
	six := ""
	if g.IntN(8) == 0 {
		six = " six"
	}
	nonblock := ""
	if g.IntN(4) == 0 {
		nonblock = " nonblock"
	}
	g.slots[0][listener] = true
	g.add("0 socket s0%s%s", six, nonblock)
	if g.IntN(3) == 0 {
		g.add("0 set s0 reuseaddr 1")
	}
	if g.has["defer"] {
		g.add("0 set s0 defer %d", 1+g.IntN(30))
	}
	if g.has["lowat"] && !g.ringed && g.IntN(3) == 0 {
		g.low = 1 + g.IntN(200)
		g.add("0 set s0 rcvlowat %d", g.low)
	}
	if g.has["options"] && g.IntN(3) == 0 {
		g.add("0 set s0 oobinline 1")
	}
	g.add("0 bind s0")
	g.add("0 listen s0 L0 16")
	if g.has["defer"] {
		g.add("0 get s0 defer")
	}
	for n := 1 + g.IntN(2); n > 0; n-- {
		g.connect(six)
	}
}

// connect makes a connection.
func (g *generator) connect(six string) bool {
	actor := 1 + g.IntN(g.actors-1)
	if g.IntN(10) == 0 {
		actor = 0
	}
	if g.guarded[actor] && !g.names { // it may not ask for names
		return false
	}
	if g.guarded[0] { // a supervisor would join the connection to TCP, in its own time
		return false
	}
	cs := g.slot(actor)
	ss := g.slot(0)
	if cs < 0 || ss < 0 || len(g.conns) > 6 {
		return false
	}
	c := &conn{}
	client := &end{actor: actor, slot: cs, conn: c, open: true}
	server := &end{slot: ss, conn: c, side: 1, open: true, low: g.low}
	c.ends = [2]*end{client, server}
	words := six
	if client.nonblock = g.IntN(2) == 0; client.nonblock {
		words += " nonblock"
	}
	g.add("%d socket s%d%s", actor, cs, words)
	if g.has["before"] && g.IntN(2) == 0 {
		g.before(client)
	}
	g.add("%d connect s%d L0", actor, cs)
	for _, r := range g.sets { // at once: an offer by letter may be there still
		if r.actor == actor && r.has[cs] && g.IntN(3) != 0 {
			g.wait(r)
		}
	}
	if g.IntN(3) == 0 {
		g.add("%d poll s%d out 2000", actor, cs)
	}
	if g.has["accepts"] && !g.has["defer"] && g.IntN(2) == 0 {
		g.add("0 poll s0 in")
	}
	if g.has["defer"] { // TCP accepts a client that has sent something
		n := 1 + g.IntN(100)
		if client.nonblock {
			g.add("%d poll s%d out 2000", actor, cs)
		}
		g.add("%d send s%d %d", actor, cs, n)
		c.unread[0], c.sends[0] = n, 1
	}
	words = ""
	if server.nonblock = g.IntN(2) == 0; server.nonblock {
		words = " nonblock"
	} else if g.IntN(3) == 0 {
		words = " accept"
	}
	if g.IntN(4) == 0 {
		words += " nowhere"
	}
	g.add("0 accept s%d s0%s", ss, words)
	g.conns = append(g.conns, c)
	return true
}

// before does something with a socket that is not connected yet.
func (g *generator) before(e *end) {
	switch g.IntN(4) {
	case 0, 1:
		if r := g.set(e.actor); r != nil {
			g.register(r, e)
			if g.IntN(2) == 0 {
				g.wait(r)
			}
		}
	case 2:
		if g.has["signals"] {
			g.owner(e)
		}
	case 3:
		g.add("%d poll s%d in|out|rdhup", e.actor, e.slot)
	}
}

// anyEnd returns an end that is open; nil if there is none.
func (g *generator) anyEnd() *end {
	for range 10 {
		if len(g.conns) == 0 {
			return nil
		}
		e := g.conns[g.IntN(len(g.conns))].ends[g.IntN(2)]
		if e.open {
			return e
		}
	}
	return nil
}

// size of a send: many are small, and some are near the size of buffers.
func (g *generator) size() int {
	sizes := []int{1, 1, 2, 5, 10, 64, 100, 200, 500, 1000, 1400, 4095, 4096, 4097, 8192, 16383, 16384, 16385, 20000, 40000}
	n := sizes[g.IntN(len(sizes))]
	if g.IntN(4) == 0 {
		n = 1 + g.IntN(n)
	}
	return n
}

// sends says whether an end can send n bytes at once, without waiting.
func (g *generator) sends(e *end, n int) bool {
	return e.open && !e.shut && !e.reset && e.peer().open && e.conn.unread[e.side]+n <= g.most && e.conn.sends[e.side] < sendsMost
}

// one adds a step or a few. It returns false if the step that it has chosen cannot be done now.
func (g *generator) one() bool {
	type kind struct {
		weight int
		needs  string
		f      func() bool
	}
	kinds := []kind{
		{24, "", g.send}, {24, "", g.receive}, {8, "", g.poll}, {4, "", g.selects}, {6, "", g.ask},
		{14, "epoll", g.epoll}, {6, "edge", g.partly}, {10, "loops", g.loop}, {8, "blocked", g.blocked}, {8, "options", g.option}, {6, "signals", g.signals},
		{8, "urgent", g.urgent}, {5, "dup", g.dup}, {2, "fork", g.fork}, {2, "exec", g.exec}, {3, "pass", g.pass}, {3, "shutdown", g.shutdown},
		{3, "close", g.close}, {2, "reset", g.resets}, {3, "zero", g.zero}, {6, "burst", g.burst}, {4, "lowat", g.lowat}, {2, "", g.again},
		{2, "disconnect", g.disconnect}, {3, "full", g.full}, {2, "", g.block}, {3, "nested", g.nest}, {2, "guard", g.guard},
	}
	sum := 0
	for _, k := range kinds {
		if k.needs == "" || g.has[k.needs] {
			sum += k.weight
		}
	}
	n := g.IntN(sum)
	for _, k := range kinds {
		if k.needs == "" || g.has[k.needs] {
			if n -= k.weight; n < 0 {
				return k.f()
			}
		}
	}
	return false
}

func (g *generator) again() bool {
	for _, s := range g.steps {
		if strings.Contains(s, " six") {
			return g.connect(" six")
		}
	}
	return g.connect("")
}

func (g *generator) send() bool {
	e := g.anyEnd()
	n := g.size()
	if e == nil || !g.sends(e, n) {
		return false
	}
	how := g.pick("send", "send", "write", "sendmsg", "sendto", "writev", "sendmmsg", "pwritev2", "sendfile", "splice")
	flags := ""
	if g.has["flags"] && strings.HasPrefix(how, "send") && how != "sendfile" && g.IntN(3) == 0 {
		flags = " " + g.pick("nosignal", "dontwait", "dontwait|nosignal", "eor", "confirm")
	}
	g.add("%d send s%d %d %s%s", e.actor, e.slot, n, how, flags)
	e.conn.unread[e.side] += n
	e.conn.sends[e.side]++
	return true
}

func (g *generator) burst() bool {
	e := g.anyEnd()
	times, n := 16+g.IntN(10), 1+g.IntN(20)
	if e == nil || !g.sends(e, n*times) {
		return false
	}
	g.add("%d burst s%d %d %d %s", e.actor, e.slot, times, n, g.pick("send", "write", "writev", "sendmsg"))
	e.conn.unread[e.side] += n * times
	e.conn.sends[e.side] += times
	return true
}

// ended says whether the peer of an end sends no more.
func (e *end) ended() bool { return !e.peer().open || e.peer().shut }

func (g *generator) receive() bool {
	e := g.anyEnd()
	if e == nil {
		return false
	}
	n := g.size()
	if g.IntN(3) == 0 {
		n = 50000
	}
	there := e.there()
	if there == 0 && g.IntN(3) != 0 {
		return false
	}
	waits := !e.nonblock && (there == 0 || there < min(n, e.low)) && !e.ended() && !e.reset
	how := g.pick("recv", "recv", "read", "readv", "recvmsg", "recvfrom", "recvmmsg", "preadv2", "splice")
	flags := ""
	if waits {
		how, flags = g.pick("recv", "recvmsg", "recvfrom", "recvmmsg", "preadv2"), " dontwait"
	} else if g.has["flags"] && strings.HasPrefix(how, "recv") && g.IntN(2) == 0 {
		flags = " " + g.pick("dontwait", "trunc", "dontwait|trunc", "cloexec", "waitall")
		if strings.Contains(flags, "waitall") && n > there && !e.nonblock && !e.ended() {
			n = max(there, 1)
		}
	}
	if how == "splice" && (there == 0 || e.reset) {
		how = "read"
	}
	if how == "splice" { // how much comes at a time is the kernel's to choose
		n = min(n, there, 4096)
	}
	if g.has["peek"] && strings.HasPrefix(how, "recv") && g.IntN(3) == 0 && !strings.Contains(flags, "waitall") {
		if flags == "" {
			flags = " peek"
		} else {
			flags += "|peek"
		}
	}
	g.add("%d recv s%d %d %s%s", e.actor, e.slot, n, how, flags)
	if !strings.Contains(flags, "peek") {
		g.took(e, n)
	}
	return true
}

// took takes note of a receive.
func (g *generator) took(e *end, n int) {
	from := 1 - e.side
	e.conn.unread[from] -= min(n, e.conn.unread[from])
	if e.conn.unread[from] == 0 {
		e.conn.sends[from] = 0
	}
}

func (g *generator) zero() bool {
	e := g.anyEnd()
	if e == nil || e.reset {
		return false
	}
	if g.IntN(2) == 0 {
		if !g.sends(e, 0) {
			return false
		}
		g.add("%d send s%d 0 %s", e.actor, e.slot, g.pick("send", "write", "sendmsg", "writev", "sendto"))
		return true
	}
	flags := ""
	if !e.nonblock && e.there() == 0 {
		flags = " dontwait"
	}
	g.add("%d recv s%d 0 %s%s", e.actor, e.slot, g.pick("recv", "recvmsg", "recvfrom"), flags)
	return true
}

func (g *generator) poll() bool {
	if g.blind {
		return false
	}
	var names []string
	actor := -1
	for range 1 + g.IntN(3) {
		e := g.anyEnd()
		if e == nil || (actor >= 0 && e.actor != actor) {
			continue
		}
		actor = e.actor
		name := fmt.Sprintf("s%d", e.slot)
		if !strings.Contains(strings.Join(names, ",")+",", name+",") {
			names = append(names, name)
		}
	}
	if actor < 0 {
		return false
	}
	if actor == 0 && g.IntN(4) == 0 {
		names = append(names, "s0")
	}
	events := g.pick("in|out|rdhup", "in|out|rdhup|pri", "in", "out", "in|out|rdhup|pri|rdnorm|wrnorm|rdband|wrband", "out|wrband", "rdnorm|wrnorm")
	g.add("%d poll %s %s%s", actor, strings.Join(names, ","), events, g.pick("", "", " 0 ppoll"))
	return true
}

func (g *generator) selects() bool {
	e := g.anyEnd()
	if e == nil || g.blind {
		return false
	}
	g.add("%d select s%d%s", e.actor, e.slot, g.pick("", " 0 pselect"))
	return true
}

func (g *generator) ask() bool {
	e := g.anyEnd()
	if e == nil {
		return false
	}
	what := g.pick("fionread", "fionread", "fionread", "name", "peer", "flags", "fdflags", "atmark", "outq", "outqnsd")
	if g.guarded[e.actor] && !g.names && (what == "name" || what == "peer") {
		return false
	}
	if strings.HasPrefix(what, "outq") && (e.conn.unread[e.side] != 0 || !e.peer().open || e.shut) {
		return false
	}
	if (what == "peer" || what == "name") && (e.reset || !e.peer().open) {
		return false
	}
	g.add("%d ask s%d %s", e.actor, e.slot, what)
	return true
}

func (g *generator) block() bool {
	e := g.anyEnd()
	if e == nil {
		return false
	}
	e.nonblock = !e.nonblock
	on := 1
	if e.nonblock {
		on = 0
	}
	g.add("%d block s%d %d%s", e.actor, e.slot, on, g.pick("", " ioctl"))
	return !e.copied
}
