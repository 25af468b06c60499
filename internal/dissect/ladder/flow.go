package ladder

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/text"
)

// FlowOptions say how a [Flow] draws. The zero value is useful.
type FlowOptions struct {
	ASCII bool // arrows of - and > instead of box drawing characters
	Width int  // columns; 0 means 100, and less than 72 means 72
	// Start is the time to which times are relative; the zero time means the first event.
	Start time.Time
	// Conns and LinkGroups are the numbers of those to draw; nil means all.
	Conns, LinkGroups []int
}

// A Flow draws connections as ladders in text: the client on the left, the server on the right, and an
// arrow for each message. Many WRITEs and CDC messages in a row that only move data are one arrow for
// each direction.
//
// Each link group has a ladder of its LLC messages, with the beginning, the end and the failovers
// of its connections; then each connection has its own, into which those LLC messages are repeated
// that concern it. Events that belong to none of them come last, by pairs of addresses.
//
// It takes the events of a whole capture and remembers a bounded number of steps. The drawing says
// how much was left out. It is for one goroutine.
type Flow struct {
	opts    FlowOptions
	ladders ladders
}

const (
	flowWidth    = 100
	flowMinWidth = 72
	flowGutter   = 27 // columns before the client's line: time, packet and link

	// longRun is how long a run in one direction must last for its end to have a line.
	longRun = 10 * time.Millisecond
)

// NewFlow returns a Flow without events.
func NewFlow(opts FlowOptions) *Flow {
	if opts.Width == 0 {
		opts.Width = flowWidth
	}
	opts.Width = max(opts.Width, flowMinWidth)
	f := &Flow{opts: opts}
	f.ladders.init(opts.Start, choice{opts.Conns, opts.LinkGroups})
	return f
}

// Add takes the next event of the capture. It keeps nothing of the event but its Conn and Link.
func (f *Flow) Add(e *dissect.Event) { f.ladders.add(e) }

// Write draws the events that were added so far.
func (f *Flow) Write(w io.Writer) error {
	d := &drawing{Writer: bufio.NewWriter(w), set: utf8Strokes, width: f.opts.Width, start: f.ladders.start}
	if f.opts.ASCII {
		d.set = asciiStrokes
	}
	first := true
	for _, l := range f.ladders.sorted() {
		if !first {
			d.WriteByte('\n')
		}
		first = false
		switch {
		case l.conn != nil:
			d.connTitle(l.conn)
			d.columns(l.conn.Client.String(), l.conn.Server.String())
			d.steps(f.ladders.connSteps(l))
		case l.group != nil:
			d.groupTitle(l.group)
			if steps := l.all(); len(steps) > 0 {
				d.columns("client", "server")
				d.steps(steps)
			}
		default:
			other := l.a
			if l.client == l.a {
				other = l.b
			}
			d.title("Of no known connection")
			if l.client.IsValid() {
				d.columns(l.client.String(), other.String())
			}
			d.steps(l.all())
		}
	}
	for i, what := range []string{"connections", "link groups", "pairs of addresses"} {
		if n := f.ladders.omitted[i]; n > 0 {
			fmt.Fprintf(d, "\n%d messages of more %s are left out\n", n, what)
		}
	}
	return d.Flush()
}

// sorted returns the ladders in the order in which they are drawn: each link group before its
// connections, then connections without one, then strangers. If any is chosen there are no
// strangers, and of link groups and connections those that belong together.
func (b *ladders) sorted() []*ladder {
	conns, groups := b.choice.conns, b.choice.groups
	var selected []*ladder
	wanted := make(map[*dissect.LinkGroup]bool) // link groups of the connections wanted
	for _, l := range b.order {
		if l.conn != nil && slices.Contains(conns, l.conn.ID) {
			wanted[l.conn.Group] = true
		}
	}
	for _, l := range b.order {
		ok := conns == nil && groups == nil
		switch {
		case l.conn != nil && !ok:
			ok = (conns == nil || slices.Contains(conns, l.conn.ID)) &&
				(groups == nil || l.conn.Group != nil && slices.Contains(groups, l.conn.Group.ID))
		case l.group != nil && !ok:
			ok = (conns == nil || wanted[l.group]) && (groups == nil || slices.Contains(groups, l.group.ID))
		}
		if ok {
			selected = append(selected, l)
		}
	}
	const last = 1 << 30
	rank := func(l *ladder) (group, conn int) {
		switch {
		case l.group != nil:
			return l.group.ID, 0
		case l.conn != nil && l.conn.Group != nil:
			return l.conn.Group.ID, l.conn.ID
		case l.conn != nil:
			return last, l.conn.ID
		}
		return last + 1, l.first
	}
	slices.SortStableFunc(selected, func(x, y *ladder) int {
		xg, xc := rank(x)
		yg, yc := rank(y)
		return cmp.Or(cmp.Compare(xg, yg), cmp.Compare(xc, yc))
	})
	return selected
}

// strokes are the characters of a drawing, each of one column.
type strokes struct {
	bar, line, data, right, left, mark, rule string
	to, dots                                 string
}

var (
	utf8Strokes = strokes{bar: "│", line: "─", data: "═", right: "▶", left: "◀", mark: "╌", rule: "━",
		to: "→", dots: "…"}
	asciiStrokes = strokes{bar: "|", line: "-", data: "=", right: ">", left: "<", mark: ".", rule: "=",
		to: "->", dots: "~"}
)

// A drawing writes ladders.
type drawing struct {
	*bufio.Writer
	set   strokes
	width int
	start time.Time
}

func (d *drawing) title(text string) {
	text = d.plain(text)
	d.WriteString(text + "\n" + strings.Repeat(d.set.rule, min(utf8.RuneCountInString(text), d.width)) + "\n")
}

// plain replaces characters that ASCII does not have.
func (d *drawing) plain(s string) string {
	if d.set.to == "->" {
		return strings.NewReplacer("→", "->", "…", "~").Replace(s)
	}
	return s
}

func (d *drawing) connTitle(c *dissect.Conn) {
	text := fmt.Sprintf("Connection %d: %s → %s, %s", c.ID, c.Client, c.Server, connMode(c))
	if c.Group != nil {
		text += ", link group " + strconv.Itoa(c.Group.ID)
	}
	d.title(text)
	for _, line := range connFacts(c) {
		d.WriteString(d.plain(line) + "\n")
	}
}

// connMode returns the mode with the state where that says more.
func connMode(c *dissect.Conn) string {
	switch c.State {
	case dissect.ConnEstablished, dissect.ConnTCP:
		return c.Mode
	case dissect.ConnDeclined:
		return "TCP, declined"
	}
	return c.Mode + ", " + c.State.String()
}

// connFacts returns lines about a connection as a whole.
func connFacts(c *dissect.Conn) []string {
	var lines []string
	if c.State == dissect.ConnDeclined || c.Reason.Code != 0 { // a Decline may have the code 0
		text := "reason: " + c.Reason.String()
		switch c.DeclinedBy {
		case dissect.ClientToServer:
			text = "declined by the client: " + c.Reason.String()
		case dissect.ServerToClient:
			text = "declined by the server: " + c.Reason.String()
		}
		if c.Reason.Sentence != "" {
			text += ": " + c.Reason.Sentence
		}
		lines = append(lines, text)
	}
	if c.ToServer.Known || c.ToClient.Known {
		lines = append(lines, fmt.Sprintf("buffers: %s, %s; moved: %s",
			ringText(&c.ToServer, "server"), ringText(&c.ToClient, "client"), movedText(c)))
	}
	return lines
}

// movedText says how much data went through a connection.
func movedText(c *dissect.Conn) string {
	if c.Group != nil && c.Group.SMCD {
		return "through shared memory, which no packet shows"
	}
	return fmt.Sprintf("%s to the server, %s to the client", text.Size(moved(&c.ToServer)),
		text.Size(moved(&c.ToClient)))
}

func ringText(r *dissect.Ring, owner string) string {
	if !r.Known {
		return owner + " unknown"
	}
	return owner + " " + text.Size(uint64(r.Size))
}

func (d *drawing) groupTitle(g *dissect.LinkGroup) {
	d.title(fmt.Sprintf("Link group %d: client %s, server %s, %s", g.ID,
		hostText(g.Client.String(), g.ClientHost), hostText(g.Server.String(), g.ServerHost), g.Mode))
	for _, line := range groupFacts(g) {
		d.WriteString(d.plain(line) + "\n")
	}
}

func hostText(addr, name string) string {
	if name == "" || name == "(none)" { // which Linux says of itself before it has a name
		return addr
	}
	return addr + " (" + name + ")"
}

// linkCount returns how many links a group has had: those that were rejected never were one.
func linkCount(g *dissect.LinkGroup) int {
	n := 0
	for _, l := range g.Links {
		if l.State != dissect.LinkRejected {
			n++
		}
	}
	return n
}

// groupFacts returns a line about each link of a group, and one about its connections.
func groupFacts(g *dissect.LinkGroup) []string {
	connections := plural(g.Conns, "connection")
	if g.Failovers > 0 {
		connections += ", " + plural(g.Failovers, "failover")
	}
	if g.Moves > 0 {
		connections += ", " + plural(g.Moves, "other move") + " between links"
	}
	if !g.FirstContact {
		connections += "; the capture does not have the first contact"
	}
	lines := []string{connections}
	for _, l := range g.Links {
		text := fmt.Sprintf("%s: %s → %s, %s", linkName(l), endText(&l.Client), endText(&l.Server), l.State)
		if l.First {
			text += ", of the first contact"
		}
		if l.Reason != "" {
			text += ": " + l.Reason
		}
		if l.Retransmissions > 0 {
			text += ", " + plural(int(l.Retransmissions), "retransmission")
		}
		if l.Naks > 0 {
			text += ", " + plural(int(l.Naks), "NAK")
		}
		lines = append(lines, text)
	}
	return lines
}

func endText(e *dissect.Endpoint) string {
	if !e.Addr.IsValid() {
		return "unknown"
	}
	return fmt.Sprintf("%s QP %v", e.Addr, e.QPN)
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// columns writes the line above a ladder.
func (d *drawing) columns(client, server string) {
	inner := d.width - flowGutter - 2
	client, server = cutText(client, inner/2, d.set.dots), cutText(server, inner/2, d.set.dots)
	gap := inner + 2 - utf8.RuneCountInString(client) - utf8.RuneCountInString(server)
	fmt.Fprintf(d, "%11s %8s %-4s  %s%s%s\n", "time", "packet", "link", client,
		strings.Repeat(" ", max(gap, 1)), server)
}

// cutText shortens s to n columns, the last of which is then dots.
func cutText(s string, n int, dots string) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n-1, 0)]) + dots
}

// steps draws a ladder.
func (d *drawing) steps(steps []step) {
	for i := range steps {
		s := &steps[i]
		switch s.kind {
		case stepMessage:
			text := s.text
			if s.repeats > 0 {
				text += fmt.Sprintf(" (sent again %d times until %s)", s.repeats, d.time(s.until))
			}
			d.arrow(s, d.set.line, s.dir, text, s.at, s.number)
		case stepRun:
			d.runStep(s)
		case stepMark:
			d.gutter(s.at, s.number, s.link)
			d.centre(s.text, d.set.mark)
		}
		for _, p := range s.problems {
			for _, line := range wrapText("! "+p.String(), d.inner()-4) {
				d.gutter(time.Time{}, -1, nil)
				d.row("  " + line)
			}
		}
	}
}

func (d *drawing) inner() int { return d.width - flowGutter - 2 }

// runStep draws one arrow for each direction of a run; the second line has the time of the end.
func (d *drawing) runStep(s *step) {
	order := []dissect.Direction{s.dir, s.dir.Reverse()}
	if s.dir == dissect.DirUnknown {
		order = []dissect.Direction{dissect.ClientToServer, dissect.ServerToClient}
	}
	first := true
	for _, dir := range order {
		r := &s.run[side(dir)]
		if r.empty() {
			continue
		}
		at, number := s.at, s.number
		if !first {
			at, number = s.until, s.last
		}
		first = false
		d.arrow(s, d.set.data, dir, r.text(), at, number)
	}
	if (s.run[0].empty() || s.run[1].empty()) && s.until.Sub(s.at) >= longRun {
		d.gutter(s.until, s.last, nil)
		d.row("")
	}
}

// arrow draws a message in its direction. Text without room stands below.
func (d *drawing) arrow(s *step, line string, dir dissect.Direction, text string, at time.Time, number int) {
	const shaft = 5 // least columns of the arrow itself: a stroke, a space, a space, a stroke and the head
	lines := wrapText(d.plain(text), d.inner()-shaft)
	for i, part := range lines {
		if i > 0 {
			d.gutter(time.Time{}, -1, nil)
			if dir == dissect.ServerToClient {
				part = strings.Repeat(" ", max(d.inner()-2-utf8.RuneCountInString(part), 0)) + part + "  "
			} else {
				part = "  " + part
			}
			d.row(part)
			continue
		}
		d.gutter(at, number, s.link)
		rest := strings.Repeat(line, d.inner()-4-utf8.RuneCountInString(part))
		switch dir {
		case dissect.ServerToClient:
			d.row(d.set.left + rest + " " + part + " " + line)
		case dissect.ClientToServer:
			d.row(line + " " + part + " " + rest + d.set.right)
		default:
			d.row(line + " " + part + " " + rest + line)
		}
	}
}

// centre draws text in the middle of strokes.
func (d *drawing) centre(text, stroke string) {
	for i, line := range wrapText(d.plain(text), d.inner()-4) {
		if i > 0 {
			d.gutter(time.Time{}, -1, nil)
		}
		line = " " + line + " "
		left := (d.inner() - utf8.RuneCountInString(line)) / 2
		right := d.inner() - utf8.RuneCountInString(line) - left
		d.row(strings.Repeat(stroke, left) + line + strings.Repeat(stroke, right))
	}
}

// gutter writes the columns before the client's line. A negative number and the zero time leave it
// empty.
func (d *drawing) gutter(at time.Time, number int, link *dissect.Link) {
	when, packet := "", ""
	if number >= 0 {
		when, packet = d.time(at), strconv.Itoa(number)
	}
	fmt.Fprintf(d, "%11s %8s %-4s ", when, packet, linkLane(link))
}

// row writes the text between the two lines, of any length up to the width.
func (d *drawing) row(s string) {
	pad := strings.Repeat(" ", max(d.inner()-utf8.RuneCountInString(s), 0))
	d.WriteString(" " + d.set.bar + s + pad + d.set.bar + "\n")
}

// time returns seconds since the start.
func (d *drawing) time(at time.Time) string {
	return strconv.FormatFloat(at.Sub(d.start).Seconds(), 'f', 6, 64)
}

// wrapText breaks s at blanks into lines of at most n columns; longer words are cut. There is at
// least one line. Characters that a terminal could take for commands become question marks.
func wrapText(s string, n int) []string {
	var lines []string
	line, columns := "", 0
	for _, word := range strings.Fields(printableText(s)) {
		for {
			size := utf8.RuneCountInString(word)
			gap := min(columns, 1)
			if columns+gap+size <= n {
				line += " "[:gap] + word
				columns += gap + size
				break
			}
			if columns > 0 {
				lines = append(lines, line)
				line, columns = "", 0
				continue
			}
			runes := []rune(word)
			lines = append(lines, string(runes[:n]))
			word = string(runes[n:])
		}
	}
	return append(lines, line)
}
