package ladder

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/llc"
)

// Limits of the state that is kept for ladders, which are drawn when the capture has ended. Items
// beyond the limits are counted, and the drawing says so.
const (
	maxLadders     = 1 << 12 // connections, and as many link groups and as many pairs of strangers
	maxLadderSteps = 300     // at the beginning of one ladder, and as many at its end
	maxAllSteps    = 1 << 17 // of all ladders; one takes some 200 bytes
	maxStepRKeys   = 8       // that a step of CONFIRM RKEY or DELETE RKEY remembers

	// runPause is how long it must be quiet between two parts of a run of data for the second
	// to start a new one, so that the ladder shows the pause.
	runPause = time.Second
)

// A stepKind is the kind of a line of a ladder.
type stepKind uint8

const (
	stepMessage stepKind = iota // an arrow: one message, and its repetitions
	stepRun                     // arrows for many WRITEs and CDC messages that only move cursors
	stepMark                    // not a message: a connection or a link has changed its state
)

// A step is one line of a ladder, or a few.
type step struct {
	kind         stepKind
	family       dissect.Family
	dir          dissect.Direction
	wide         bool // of a link group: it concerns all connections
	number, last int  // of the first packet and of the last
	at, until    time.Time
	link         *dissect.Link // nil for TCP, and where it is not known
	name, text   string
	repeats      int         // retransmissions of a message
	rkeys        []wire.RKey // that an LLC message is about
	problems     []dissect.Problem
	run          [2]runSide     // by index of the direction
	messages     []*pageMessage // with their bytes: for pages only
	left         int            // messages that there was no room for
	omitted      int            // steps, of a mark in their place
}

// side returns the index of a direction among two; an unknown direction has the first.
func side(d dissect.Direction) int {
	if d == dissect.ServerToClient {
		return 1
	}
	return 0
}

// A ladderKey names the subject of a ladder: a connection, a link group, or, of packets that belong
// to neither, two addresses, the smaller one first.
type ladderKey struct {
	conn  *dissect.Conn
	group *dissect.LinkGroup
	a, b  netip.Addr
}

// A ladder has the events between two hosts, in the order of the packets.
type ladder struct {
	ladderKey
	client      netip.Addr // of two strangers: the one that was seen to send first
	head, tail  []step     // tail is a ring once it has maxLadderSteps
	oldest      int        // index in tail
	omitted     int        // steps between head and tail
	first, last int        // packets
	problems    int
	packets     uint64
	kept        int // messages with their bytes

	told      // of a connection
	epoch int // of the group, when the last step was added
	// Of a link group: the states of its links that are marked.
	states []dissect.LinkState
	plots  [2]plot // of a connection, by index of the direction
}

// ladders gathers the events that are drawn as text or as a page.
type ladders struct {
	start   time.Time // to which times are relative
	pages   bool      // messages are kept with their bytes
	kept    int       // messages that are
	byKey   map[ladderKey]*ladder
	order   []*ladder
	counts  [3]int // of connections, groups and strangers
	omitted [3]int // likewise: packets of ladders for which there was no room
	steps   int

	choice choice
	// others are connections that were not chosen, of link groups that were: only the facts that
	// their group is told are remembered.
	others map[*dissect.Conn]*told
}

func (b *ladders) init(start time.Time, c choice) {
	b.start, b.choice = start, c
	b.byKey = make(map[ladderKey]*ladder)
	b.others = make(map[*dissect.Conn]*told)
}

// A choice has the numbers of the connections and link groups to draw; nil means all.
type choice struct{ conns, groups []int }

// all reports whether everything is to be drawn, strangers too.
func (c *choice) all() bool { return c.conns == nil && c.groups == nil }

// group reports whether a link group is to be drawn, or may turn out to be.
func (c *choice) group(g *dissect.LinkGroup) bool {
	return c.groups == nil || slices.Contains(c.groups, g.ID)
}

// conn reports whether a connection is to be drawn. One without a link group may get it later, until
// it is known to go on without.
func (c *choice) conn(conn *dissect.Conn) bool {
	if c.conns != nil && !slices.Contains(c.conns, conn.ID) {
		return false
	}
	if c.groups == nil || conn.Group != nil {
		return conn.Group == nil || c.group(conn.Group)
	}
	switch conn.State {
	case dissect.ConnDeclined, dissect.ConnTCP, dissect.ConnFailed:
		return false
	}
	return true
}

// told holds the facts that the link group of a connection has been told of it.
type told struct {
	link           *dissect.Link
	opened, closed bool
}

// of returns the ladder with a key, nil if there is no room for another.
func (b *ladders) of(key ladderKey, e *dissect.Event) *ladder {
	if l := b.byKey[key]; l != nil {
		return l
	}
	kind := 2
	switch {
	case key.conn != nil:
		kind = 0
	case key.group != nil:
		kind = 1
	}
	if b.counts[kind] == maxLadders {
		b.omitted[kind]++
		return nil
	}
	b.counts[kind]++
	l := &ladder{ladderKey: key, client: e.Src.Addr(), first: e.Packet.Number}
	b.byKey[key] = l
	b.order = append(b.order, l)
	return l
}

// add takes the next event.
func (b *ladders) add(e *dissect.Event) {
	if b.start.IsZero() {
		b.start = e.Packet.Time
	}
	key := ladderKey{conn: e.Conn}
	switch {
	case e.Family == dissect.LLC && e.Link != nil && e.Link.Group != nil:
		key = ladderKey{group: e.Link.Group}
	case e.Conn != nil:
	case e.Link != nil && e.Link.Group != nil:
		key = ladderKey{group: e.Link.Group}
	default:
		key.a, key.b = e.Src.Addr(), e.Dst.Addr()
		if key.b.Less(key.a) {
			key.a, key.b = key.b, key.a
		}
	}
	switch {
	case key.conn != nil && !b.choice.conn(key.conn):
		b.drop(key)
		b.addOther(e)
		return
	case key.group != nil && !b.choice.group(key.group), key.conn == nil && key.group == nil && !b.choice.all():
		return
	}
	l := b.of(key, e)
	if l == nil {
		return
	}
	if key.conn != nil {
		b.noticeConn(e, l, &l.told) // before the message, which may be the first on another link
	}
	l.last = e.Packet.Number
	l.packets++
	l.problems += len(e.Problems)
	if key.conn != nil && e.Progress != nil {
		l.plot(e)
	}
	b.addTo(l, e)
	if key.conn != nil {
		b.noticeClose(e, &l.told)
	}
	if e.Family == dissect.LLC && key.group != nil {
		b.noticeLinks(e, l)
	}
}

// addOther takes an event of a connection that is not drawn, for its link group, which may be.
func (b *ladders) addOther(e *dissect.Event) {
	c := e.Conn
	if c.Group == nil || !b.choice.group(c.Group) {
		return
	}
	t := b.others[c]
	if t == nil {
		if len(b.others) == maxLadders {
			return
		}
		t = &told{}
		b.others[c] = t
	}
	b.noticeConn(e, nil, t)
	b.noticeClose(e, t)
}

// drop forgets a ladder that turned out not to be wanted.
func (b *ladders) drop(key ladderKey) {
	l := b.byKey[key]
	if l == nil {
		return
	}
	delete(b.byKey, key)
	b.order = slices.DeleteFunc(b.order, func(other *ladder) bool { return other == l })
	b.counts[0]--
	b.kept -= l.kept
	b.steps -= len(l.head) + len(l.tail)
}

// addTo appends the event to the ladder, or makes it a part of the last step.
func (b *ladders) addTo(l *ladder, e *dissect.Event) {
	dir := e.Dir
	if dir == dissect.DirUnknown && l.conn == nil && l.group == nil && e.Src.Addr() != l.client {
		dir = dissect.ServerToClient
	}
	if isAck(e) {
		return // part of the step that it acknowledges
	}
	last := l.lastStep()
	if last != nil && last.kind == stepMessage && e.RoCE != nil && e.RoCE.Retransmission &&
		last.family == e.Family &&
		last.name == e.Name && last.dir == dir && last.link == e.Link && len(e.Problems) == 0 {
		last.repeats++
		last.last, last.until = e.Packet.Number, e.Packet.Time
		return
	}
	if b.data(e) {
		if !l.continues(last, e, b) {
			last = b.append(l, step{kind: stepRun, family: e.Family, dir: dir, link: e.Link,
				number: e.Packet.Number, at: e.Packet.Time})
			last.run[0].window, last.run[1].window = -1, -1
		}
		last.last, last.until = e.Packet.Number, e.Packet.Time
		last.run[side(dir)].add(e)
		b.keep(l, last, e, dir)
		l.noteEpoch(b)
		return
	}
	s := step{
		kind: stepMessage, family: e.Family, dir: dir, link: e.Link, number: e.Packet.Number, last: e.Packet.Number,
		at: e.Packet.Time, until: e.Packet.Time, name: e.Name, problems: slices.Clone(e.Problems),
	}
	if e.Family == dissect.Note {
		s.kind, s.text = stepMark, e.Name
		if e.Text != "" {
			s.text += ": " + e.Text
		}
	} else {
		s.text = stepText(e)
	}
	if e.Family == dissect.LLC {
		s.wide, s.rkeys = llcConcern(e.Message)
	}
	b.keep(l, b.append(l, s), e, dir)
	l.noteEpoch(b)
}

// isAck reports whether the event is an acknowledgement that tells of nothing else.
func isAck(e *dissect.Event) bool {
	return e.Family == dissect.RoCE && len(e.Problems) == 0 && e.RoCE != nil && e.RoCE.Packet != nil &&
		e.RoCE.Packet.Opcode.HasAETH() && e.RoCE.Packet.AETH.Syndrome.Kind() == 0
}

// data reports whether the event only moves data or cursors, so that many of its kind are one line.
func (b *ladders) data(e *dissect.Event) bool {
	if len(e.Problems) > 0 {
		return false
	}
	switch e.Family {
	case dissect.RoCE:
		return e.Write != nil || e.RoCE != nil && e.RoCE.Packet != nil && !e.RoCE.Packet.Opcode.HasAETH()
	case dissect.CDC:
		m, ok := e.Message.(*cdc.Message)
		if !ok || e.Progress != nil && (e.Progress.Failover || e.Progress.Moved) ||
			m.ProducerFlags&(cdc.UrgentPending|cdc.UrgentPresent|cdc.FailoverValidation) != 0 {
			return false
		}
		if m.ConnFlags == 0 {
			return true
		}
		// The message that sets a flag is a step of its own, those after it, which repeat it, are not.
		l := b.byKey[ladderKey{conn: e.Conn}]
		return l != nil && l.plots[side(e.Dir)].flags == m.ConnFlags && l.plots[side(e.Dir)].repeated
	}
	return false
}

// continues reports whether the event, which is data, belongs to the run that ends the ladder.
func (l *ladder) continues(last *step, e *dissect.Event, b *ladders) bool {
	return last != nil && last.kind == stepRun && last.link == e.Link &&
		e.Packet.Time.Sub(last.until) < runPause && l.epoch == b.epochOf(l)
}

// epochOf is the number of messages about links that the group of a connection has had: a run does
// not go on across one.
func (b *ladders) epochOf(l *ladder) int {
	if l.conn == nil || l.conn.Group == nil {
		return 0
	}
	if g := b.byKey[ladderKey{group: l.conn.Group}]; g != nil {
		return g.epoch
	}
	return 0
}

func (l *ladder) noteEpoch(b *ladders) {
	if l.conn != nil {
		l.epoch = b.epochOf(l)
	}
}

// llcConcern says whom an LLC message concerns: all connections of the link group, or those
// with a buffer of these RKeys.
func llcConcern(m any) (wide bool, rkeys []wire.RKey) {
	switch m := m.(type) {
	case llc.ConfirmLink, llc.AddLink, llc.AddLinkCont, llc.DeleteLink, llc.RequestAddLink:
		return true, nil
	case llc.ConfirmRKey:
		rkeys = []wire.RKey{m.RToken.RKey}
		for _, o := range m.Others {
			rkeys = append(rkeys, o.RKey)
		}
	case llc.ConfirmRKeyCont:
		for _, o := range m.RTokens {
			rkeys = append(rkeys, o.RKey)
		}
	case llc.DeleteRKey:
		rkeys = slices.Clone(m.RKeys)
	}
	return false, rkeys[:min(len(rkeys), maxStepRKeys)]
}

// lastStep returns the newest step, nil if there is none.
func (l *ladder) lastStep() *step {
	switch {
	case len(l.tail) > 0:
		return &l.tail[(l.oldest+len(l.tail)-1)%len(l.tail)]
	case len(l.head) > 0:
		return &l.head[len(l.head)-1]
	}
	return nil
}

// append adds a step, in place of the oldest one behind the head if there is no room.
func (b *ladders) append(l *ladder, s step) *step {
	switch {
	case len(l.tail) == 0 && len(l.head) < maxLadderSteps && b.steps < maxAllSteps:
		b.steps++
		l.head = append(l.head, s)
		return &l.head[len(l.head)-1]
	case len(l.tail) < maxLadderSteps && (b.steps < maxAllSteps || len(l.tail) == 0):
		b.steps++
		l.tail = append(l.tail, s)
		return &l.tail[len(l.tail)-1]
	}
	l.omitted++
	at := l.oldest
	b.kept -= len(l.tail[at].messages)
	l.kept -= len(l.tail[at].messages)
	l.tail[at] = s
	l.oldest = (at + 1) % len(l.tail)
	return &l.tail[at]
}

// all returns the steps in their order, those that were left out being one mark.
func (l *ladder) all() []step {
	steps := slices.Clone(l.head)
	if l.omitted > 0 {
		steps = append(steps, omittedSteps(l.omitted))
	}
	steps = append(steps, l.tail[l.oldest:]...)
	return append(steps, l.tail[:l.oldest]...)
}

// omittedSteps returns a mark in place of n steps.
func omittedSteps(n int) step {
	return step{kind: stepMark, number: -1, text: strconv.Itoa(n) + " steps are left out here", omitted: n}
}

// mark adds a line that is not a message.
func (b *ladders) mark(l *ladder, e *dissect.Event, link *dissect.Link, wide bool, text string) {
	b.append(l, step{
		kind: stepMark, link: link, wide: wide, number: e.Packet.Number, last: e.Packet.Number,
		at: e.Packet.Time, until: e.Packet.Time, text: text,
	})
}

// noticeConn marks that a connection begins, or changes its link, in the ladder of its link group
// and in its own, l, if it has one.
func (b *ladders) noticeConn(e *dissect.Event, l *ladder, t *told) {
	c := e.Conn
	if c.Group == nil || c.State != dissect.ConnEstablished || t.opened && t.link == c.Link {
		return
	}
	g := b.of(ladderKey{group: c.Group}, e)
	if g == nil {
		return
	}
	name := "connection " + strconv.Itoa(c.ID)
	switch {
	case !t.opened:
		t.opened = true
		text := name + " opens"
		if c.Link != nil {
			text += " on " + linkName(c.Link)
		}
		b.mark(g, e, c.Link, false, text)
	case t.link != nil && c.Link != nil:
		text := fmt.Sprintf("moves from %s to %s", linkName(t.link), linkName(c.Link))
		b.mark(g, e, c.Link, false, name+" "+text)
		if l != nil {
			if text = "the connection " + text; e.Progress == nil || e.Progress.Failover {
				text = "failover: " + text
			}
			b.mark(l, e, c.Link, true, text)
		}
	}
	t.link = c.Link
}

// noticeClose marks that a connection has ended.
func (b *ladders) noticeClose(e *dissect.Event, t *told) {
	c := e.Conn
	if c.Group == nil || c.Closed.IsZero() || t.closed {
		return
	}
	t.closed = true
	if g := b.of(ladderKey{group: c.Group}, e); g != nil {
		text := fmt.Sprintf("connection %d closes", c.ID)
		if !c.Group.SMCD {
			text += ": " + movedText(c)
		}
		b.mark(g, e, c.Link, false, text)
	}
}

// moved returns how many bytes went through the buffer: by the cursors, or where those are
// not known by the WRITEs.
func moved(r *dissect.Ring) uint64 { return max(r.Produced, r.Written) }

// noticeLinks adds marks for new states of the links of a group.
func (b *ladders) noticeLinks(e *dissect.Event, l *ladder) {
	for i, link := range l.group.Links {
		if i == len(l.states) {
			l.states = append(l.states, dissect.LinkLearned)
		}
		if l.states[i] == link.State {
			continue
		}
		l.states[i] = link.State
		l.epoch++
		if link.State == dissect.LinkLearned {
			continue // the message says it
		}
		text := linkName(link) + " is " + link.State.String()
		if link.State == dissect.LinkDeleting {
			text = linkName(link) + " is being deleted"
		}
		if link.State != dissect.LinkActive && link.Reason != "" {
			text += ": " + link.Reason
		}
		b.mark(l, e, link, true, text)
	}
}

// linkName returns "link 2", by our own number, which the lines of [Lines] have as well, and the
// number that the server gave it where that is another one.
func linkName(l *dissect.Link) string {
	name := "link " + strconv.Itoa(l.ID)
	if n := int(l.Num); n != l.ID && l.NumKnown {
		name += " (number " + strconv.Itoa(n) + ")"
	}
	return name
}

// linkLane returns the short name of a link, "" for none.
func linkLane(l *dissect.Link) string {
	if l == nil {
		return ""
	}
	return "l" + strconv.Itoa(l.ID)
}

// stepText returns the content of the event's line, without its problems.
func stepText(e *dissect.Event) string {
	plain := *e
	plain.Problems = nil
	return string(render.AppendContent(nil, &plain))
}

// connSteps returns the steps of a connection with the steps of its link group that concern it.
func (b *ladders) connSteps(l *ladder) []step {
	steps := l.all()
	g := b.byKey[ladderKey{group: l.conn.Group}]
	if l.conn.Group == nil || g == nil {
		return steps
	}
	var own []wire.RKey
	for _, r := range []*dissect.Ring{&l.conn.ToServer, &l.conn.ToClient} {
		if r.Known {
			own = append(own, r.RKey)
		}
	}
	var concern []step
	for _, s := range g.all() {
		if s.number >= l.first && s.number <= l.last &&
			(s.wide || slices.ContainsFunc(s.rkeys, func(k wire.RKey) bool { return slices.Contains(own, k) })) {
			concern = append(concern, s)
		}
	}
	// Both are in the order of their first packets; the steps left out stay where they are.
	merged := make([]step, 0, len(steps)+len(concern))
	for _, s := range steps {
		for len(concern) > 0 && s.number >= 0 && concern[0].number < s.number {
			merged, concern = append(merged, concern[0]), concern[1:]
		}
		merged = append(merged, s)
	}
	return append(merged, concern...)
}

// printableText is [text.Printable], for functions that have texts of their own.
func printableText(s string) string { return text.Printable(s) }
