package ladder

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/roce"
)

// Limits of a page, so that a browser can show it.
const (
	maxPageMessages = 6000 // messages with their bytes, some 2 KiB each
	maxLadderPage   = 400  // of those in one ladder
	maxRunPage      = 40   // of those in one run of data
	maxPageBytes    = 4096 // that are shown of one message: all of CLC
	maxPagePayload  = 160  // and of a RoCEv2 packet: its payload is the program's
	maxPageLadders  = 500

	// Totals that long ladders share: each has as many steps, and each plot as many points, as
	// leave room for the others; ladders and plots that need fewer leave theirs to them. A step
	// takes some 200 bytes, a point 30.
	maxPageSteps  = 20_000
	maxPagePoints = 50_000
)

// PageOptions choose the contents of a [Page]. The zero value is useful.
type PageOptions struct {
	Title string // such as the name of the file
	// Start is the time to which times are relative; the zero time means the first event.
	Start time.Time
	// Conns and LinkGroups are as in [FlowOptions].
	Conns, LinkGroups []int
}

// A Page is a whole capture as one HTML page without anything around it: it loads no other file. It has
// the list of connections, the ladder of each as a picture, the bytes of each message with their fields, and
// cursors and window over time.
//
// It takes the events of a whole capture and remembers a bounded number of them: the page says how
// much it leaves out. All contents of the capture are data to the page and never markup. It is for
// one goroutine.
type Page struct {
	opts    PageOptions
	ladders ladders
}

// NewPage returns a Page without events.
func NewPage(opts PageOptions) *Page {
	p := &Page{opts: opts}
	p.ladders.init(opts.Start, choice{opts.Conns, opts.LinkGroups})
	p.ladders.pages = true
	return p
}

// Add takes the next event of the capture. It keeps nothing of the event but its Conn and Link.
func (p *Page) Add(e *dissect.Event) { p.ladders.add(e) }

// A pageMessage is a message as the page has it. The fields are worked out when the page is written.
type pageMessage struct {
	event dissect.Event // on its own: with Packet.Data nil and Bytes cut
	dir   dissect.Direction
	size  int // of the bytes
}

// keep remembers the event in the step, if there is room.
func (b *ladders) keep(l *ladder, s *step, e *dissect.Event, dir dissect.Direction) {
	if !b.pages || e.Family == dissect.Note || len(e.Bytes) == 0 {
		return
	}
	if b.kept >= maxPageMessages || l.kept >= maxLadderPage || len(s.messages) >= maxRunPage {
		s.left++
		return
	}
	b.kept++
	l.kept++
	m := &pageMessage{event: *e, dir: dir, size: len(e.Bytes)}
	m.event.Packet.Data = nil
	limit := maxPageBytes
	if e.Family == dissect.RoCE {
		limit = maxPagePayload
	}
	m.event.Bytes = bytes.Clone(e.Bytes[:min(len(e.Bytes), limit)])
	m.event.Problems = slices.Clone(e.Problems)
	m.event.Text = stepText(e)
	m.event.Message = ownMessage(e.Message)
	m.event.Write, m.event.Progress = nil, nil
	if e.RoCE != nil {
		t := *e.RoCE
		if t.Packet != nil {
			p := *t.Packet
			p.Payload = nil
			if n := len(t.Packet.Payload); n > 0 && e.Family == dissect.RoCE {
				// The payload is a part of Bytes, after the headers.
				from := min(p.Opcode.HeaderLen(), len(m.event.Bytes))
				p.Payload = m.event.Bytes[from:min(from+n, len(m.event.Bytes))]
			}
			t.Packet = &p
		}
		m.event.RoCE = &t
	}
	s.messages = append(s.messages, m)
}

// Data for the page's script.
type (
	pageData struct {
		Title    string            `json:"title"`
		Facts    [][2]string       `json:"facts"`
		Strings  []string          `json:"strings"` // that fields refer to
		Ladders  []pageLadder      `json:"ladders"`
		Messages []pageMessageData `json:"messages"`
	}
	pageLadder struct {
		Kind     string     `json:"kind"` // conn, group or other
		Name     string     `json:"name"`
		Title    string     `json:"title"`
		Sub      string     `json:"sub"`
		Mode     string     `json:"mode"`
		Declined bool       `json:"declined"`
		Client   string     `json:"client"`
		Server   string     `json:"server"`
		Facts    []string   `json:"facts"`
		Problems int        `json:"problems"`
		Omitted  int        `json:"omitted"`
		Steps    []pageStep `json:"steps"`
		Plots    []pagePlot `json:"plots"`
	}
	pageStep struct {
		Kind     string    `json:"kind"` // message, run or mark
		Number   int       `json:"number"`
		Last     int       `json:"last"`
		Time     float64   `json:"time"` // seconds
		Until    float64   `json:"until"`
		Dir      int       `json:"dir"`  // 0 unknown, 1 to the server, 2 to the client
		Link     int       `json:"link"` // chooses the colour; 0 is TCP
		Lane     string    `json:"lane"`
		Text     string    `json:"text"`
		Wide     bool      `json:"wide"`
		Run      [2]string `json:"run"`
		Problems []string  `json:"problems"`
		Messages []int     `json:"messages"` // indexes
		Left     int       `json:"left"`     // messages of a run that are not in the page
	}
	pageMessageData struct {
		Number   int        `json:"number"`
		Time     float64    `json:"time"`
		Dir      int        `json:"dir"`
		Name     string     `json:"name"`
		Text     string     `json:"text"`
		Src      string     `json:"src"`
		Dst      string     `json:"dst"`
		Lane     string     `json:"lane"`
		Hex      string     `json:"hex"`
		Size     int        `json:"size"`
		Problems []string   `json:"problems"`
		Fields   pageFields `json:"fields"`
	}
	pagePlot struct {
		Title    string    `json:"title"`
		Capacity int       `json:"capacity"` // 0 if not known
		T        []float64 `json:"t"`
		P        []uint64  `json:"p"`
		C        []uint64  `json:"c"`
		W        []int     `json:"w"`
	}
)

// A pageField is written as [name, key, offset, length, mask, text]: names, keys and texts are numbers
// in the table of strings, the mask is hexadecimal, or empty.
type pageField struct {
	name, key, offset, len int
	mask                   string
	text                   int
}

type pageFields []pageField

// MarshalJSON writes all fields of a message at once: package encoding/json checks the result of
// each call again.
func (fields pageFields) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 2+32*len(fields))
	b = append(b, '[')
	for i, f := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for _, n := range [...]int{f.name, f.key, f.offset, f.len} {
			b = append(strconv.AppendInt(b, int64(n), 10), ',')
		}
		b = append(append(b, '"'), f.mask...)
		b = append(b, '"', ',')
		b = append(strconv.AppendInt(b, int64(f.text), 10), ']')
	}
	return append(b, ']'), nil
}

// A pageWriter makes the data of a page.
type pageWriter struct {
	pageData
	start   time.Time
	index   map[string]int // of Strings
	numbers map[*pageMessage]int

	maxPoints int // of one plot
}

func (w *pageWriter) string(s string) int {
	i, ok := w.index[s]
	if !ok {
		i = len(w.Strings)
		w.index[s] = i
		w.Strings = append(w.Strings, s)
	}
	return i
}

func (w *pageWriter) seconds(t time.Time) float64 {
	return float64(t.Sub(w.start).Round(time.Nanosecond)) / 1e9
}

// Write writes the page. The summary, which may be nil, makes its head.
func (p *Page) Write(out io.Writer, s *dissect.Summary) error {
	data, err := json.Marshal(p.data(s)) // in which < > and & are escaped
	if err != nil {
		return err
	}
	return writePage(out, p.opts.Title, data)
}

// data returns the data for the page's script.
func (p *Page) data(s *dissect.Summary) *pageData {
	w := &pageWriter{start: p.ladders.start, index: make(map[string]int), numbers: make(map[*pageMessage]int)}
	w.Title = p.opts.Title
	w.Facts, w.Ladders, w.Messages, w.Strings = [][2]string{}, []pageLadder{}, []pageMessageData{}, []string{}
	if s != nil {
		w.facts(s)
	}
	sorted := p.ladders.sorted()
	if more := len(sorted) - maxPageLadders; more > 0 {
		sorted = sorted[:maxPageLadders]
		w.Facts = append(w.Facts, [2]string{"not on this page", strconv.Itoa(more) + " connections"})
	}
	steps, counts, points := make([][]step, len(sorted)), make([]int, len(sorted)), []int(nil)
	for i, l := range sorted {
		if steps[i] = l.all(); l.conn != nil {
			steps[i] = p.ladders.connSteps(l)
		}
		counts[i] = len(steps[i])
		points = append(points, len(l.plots[0].points)+1, len(l.plots[1].points)+1)
	}
	maxSteps := share(counts, maxPageSteps)
	w.maxPoints = share(points, maxPagePoints)
	for i, l := range sorted {
		w.Ladders = append(w.Ladders, w.ladder(l, shorten(steps[i], maxSteps)))
		steps[i] = nil
	}
	return &w.pageData
}

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

// writePage writes the frame of the page around its data. The policy allows the one script, by
// its sum, and nothing from elsewhere.
func writePage(out io.Writer, title string, data []byte) error {
	sum := sha256.Sum256([]byte(pageJS))
	b := bufio.NewWriter(out)
	fmt.Fprintf(b, `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-%s'">
<meta name="viewport" content="width=device-width">
<title>%s - gosmc dump</title>
<style>
%s</style>
</head>
<body>
<header><h1 id="title">gosmc dump</h1><span id="facts"></span></header>
<nav><input id="search" type="search" placeholder="filter: address, mode, reason" aria-label="filter connections"><ul id="list"></ul></nav>
<main id="main"><noscript>This page draws itself with a script, which your browser does not run.</noscript></main>
<aside id="detail"></aside>
<script id="data" type="application/json">`, base64.StdEncoding.EncodeToString(sum[:]), html.EscapeString(title), pageCSS)
	b.Write(data)
	fmt.Fprintf(b, "</script>\n<script>%s</script>\n</body>\n</html>\n", pageJS)
	return b.Flush()
}

// facts makes the head of the page.
func (w *pageWriter) facts(s *dissect.Summary) {
	add := func(name, value string) { w.Facts = append(w.Facts, [2]string{name, value}) }
	add("packets", strconv.FormatUint(s.Packets, 10))
	if !s.First.IsZero() {
		add("from", s.First.UTC().Format("2006-01-02 15:04:05.000000 UTC"))
		add("for", s.Last.Sub(s.First).String())
	}
	add("connections", strconv.FormatUint(s.Conns, 10))
	add("link groups", strconv.FormatUint(s.LinkGroups, 10))
	add("moved by RDMA", text.Size(s.RDMABytes))
	if s.Failovers > 0 {
		add("failovers", strconv.FormatUint(s.Failovers, 10))
	}
	if s.Moves > 0 {
		add("moves to spread load", strconv.FormatUint(s.Moves, 10))
	}
	if s.Retransmissions > 0 {
		add("retransmissions", strconv.FormatUint(s.Retransmissions, 10))
	}
	problems := uint64(0)
	for _, p := range s.Problems {
		problems += p.Count
	}
	add("problems", strconv.FormatUint(problems, 10))
}

// share returns the most that each may have so that all together have at most limit, where members
// that want less leave the rest to the others.
func share(wanted []int, limit int) int {
	sorted := slices.Sorted(slices.Values(wanted))
	for i, n := range sorted {
		each := limit / (len(sorted) - i)
		if n > each {
			return each
		}
		limit -= n
	}
	return math.MaxInt
}

// shorten returns at most n steps: the first, the last, and a mark between them.
func shorten(steps []step, n int) []step {
	if len(steps) <= n {
		return steps
	}
	head := n / 2
	tail := max(n-head-1, 0)
	omitted := 0
	for _, s := range steps[head : len(steps)-tail] {
		omitted += 1 + s.omitted
		if s.omitted > 0 {
			omitted-- // the mark itself
		}
	}
	return slices.Concat(steps[:head], []step{omittedSteps(omitted)}, steps[len(steps)-tail:])
}

// ladder makes one entry of the list with its facts, steps and plots.
func (w *pageWriter) ladder(l *ladder, steps []step) pageLadder {
	p := pageLadder{Facts: []string{}, Steps: []pageStep{}, Plots: []pagePlot{}, Problems: l.problems,
		Omitted: l.omitted}
	switch {
	case l.conn != nil:
		c := l.conn
		p.Kind, p.Name, p.Mode = "conn", "connection "+strconv.Itoa(c.ID), connMode(c)
		p.Title = fmt.Sprintf("Connection %d: %s → %s, %s", c.ID, c.Client, c.Server, p.Mode)
		p.Sub = fmt.Sprintf("%s → %s", c.Client, c.Server)
		if c.Group != nil && !c.Group.SMCD {
			p.Sub = fmt.Sprintf("↑ %s ↓ %s, %s", text.Size(moved(&c.ToServer)),
				text.Size(moved(&c.ToClient)), p.Sub)
		}
		p.Declined = c.State == dissect.ConnDeclined
		p.Client, p.Server = c.Client.String(), c.Server.String()
		p.Facts = append(p.Facts, connFacts(c)...)
		w.plots(&p, l)
	case l.group != nil:
		g := l.group
		p.Kind, p.Name, p.Mode = "group", "link group "+strconv.Itoa(g.ID), g.Mode
		p.Title = fmt.Sprintf("Link group %d, %s", g.ID, g.Mode)
		p.Client, p.Server = hostText(g.Client.String(), g.ClientHost), hostText(g.Server.String(),
			g.ServerHost)
		p.Sub = p.Client + " → " + p.Server + ", " + plural(linkCount(g), "link")
		p.Facts = append(p.Facts, groupFacts(g)...)
	default:
		other := l.a
		if l.client == l.a {
			other = l.b
		}
		p.Kind, p.Name, p.Title = "other", "no known connection", "Of no known connection"
		p.Client, p.Server = addrText(l.client), addrText(other)
		p.Sub = p.Client + " – " + p.Server
	}
	for i := range steps {
		p.Steps = append(p.Steps, w.step(&steps[i]))
	}
	return p
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func (w *pageWriter) step(s *step) pageStep {
	p := pageStep{
		Kind: "message", Number: s.number, Last: s.last, Dir: int(s.dir), Text: printableText(s.text), Wide: s.wide,
		Problems: problemTexts(s.problems), Messages: []int{}, Left: s.left,
	}
	if s.number >= 0 {
		p.Time, p.Until = w.seconds(s.at), w.seconds(s.until)
	}
	if p.Lane = linkLane(s.link); s.link != nil {
		p.Link = s.link.ID
	}
	switch s.kind {
	case stepMark:
		p.Kind = "mark"
	case stepRun:
		p.Kind = "run"
		for i := range s.run {
			if !s.run[i].empty() {
				p.Run[i] = s.run[i].text()
			}
		}
	case stepMessage:
		if s.repeats > 0 {
			// first, for the end may have no room
			p.Text = fmt.Sprintf("×%d until %.6f: %s", s.repeats+1, p.Until, p.Text)
		}
	}
	for _, m := range s.messages {
		i, ok := w.numbers[m] // LLC messages are in several ladders
		if !ok {
			i = len(w.Messages)
			w.numbers[m] = i
			w.Messages = append(w.Messages, w.message(m, p.Lane))
		}
		p.Messages = append(p.Messages, i)
	}
	return p
}

// ownMessage returns a message that does not share memory with the tracker, as far as
// [render.Fields] needs it.
func ownMessage(m any) any {
	switch m := m.(type) {
	case *cdc.Message:
		own := *m
		return &own
	case *cdc.Header:
		own := *m
		return &own
	case *roce.Packet:
		return nil
	}
	return m
}

func problemTexts(problems []dissect.Problem) []string {
	list := make([]string, len(problems))
	for i, p := range problems {
		list[i] = printableText(p.String())
	}
	return list
}

func (w *pageWriter) message(m *pageMessage, lane string) pageMessageData {
	e := &m.event
	p := pageMessageData{
		Number: e.Packet.Number, Time: w.seconds(e.Packet.Time), Dir: int(m.dir), Name: e.Family.String() + ": " + e.Name,
		Text: printableText(e.Text), Src: e.Src.String(), Dst: e.Dst.String(), Lane: lane, Hex: hex.EncodeToString(e.Bytes), Size: m.size,
		Problems: problemTexts(e.Problems), Fields: []pageField{},
	}
	for _, f := range render.Fields(e) {
		if f.Parent {
			continue
		}
		pf := pageField{name: w.string(f.Name), key: w.string(f.Key), offset: f.Offset, len: f.Len,
			text: w.string(printableText(f.String()))}
		if f.Mask != 0 {
			pf.mask = strconv.FormatUint(f.Mask, 16)
		}
		p.Fields = append(p.Fields, pf)
	}
	return p
}

// thin returns at most n points: every second, third and so on, and the last.
func thin(points []plotPoint, n int) []plotPoint {
	if len(points) <= n || n < 2 {
		return points[:min(len(points), n)]
	}
	stride := (len(points) + n - 2) / (n - 1)
	var list []plotPoint
	for i := 0; i < len(points)-1; i += stride {
		list = append(list, points[i])
	}
	return append(list, points[len(points)-1])
}

// plots adds the plots of a connection, and leaves out directions in which nothing is known.
func (w *pageWriter) plots(p *pageLadder, l *ladder) {
	titles := [2]string{"Client to server", "Server to client"}
	for i, ring := range []*dissect.Ring{&l.conn.ToServer, &l.conn.ToClient} {
		points := thin(l.plots[i].all(), w.maxPoints)
		if len(points) < 2 {
			continue
		}
		plot := pagePlot{Title: titles[i] + ", " + text.Size(moved(ring))}
		if ring.Known {
			plot.Capacity = ring.Capacity
		}
		for _, pt := range points {
			plot.T = append(plot.T, w.seconds(pt.at))
			plot.P = append(plot.P, pt.produced)
			plot.C = append(plot.C, pt.consumed)
			plot.W = append(plot.W, pt.window)
		}
		p.Plots = append(p.Plots, plot)
	}
}
