package ladder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// drawFlow returns the ladders of packets.
func drawFlow(t testing.TB, packets []dissect.Packet, opts FlowOptions) string {
	t.Helper()
	f := NewFlow(opts)
	tr := dissect.New(dissect.Options{})
	for _, p := range packets {
		tr.Packet(p, f.Add)
	}
	tr.Close(f.Add)
	var b strings.Builder
	if err := f.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// inOrder reports the first of the texts that s does not have after the others, "" if it has all.
func inOrder(s string, texts ...string) string {
	for _, text := range texts {
		_, after, ok := strings.Cut(s, text)
		if !ok {
			return text
		}
		s = after
	}
	return ""
}

// The columns of a ladder stand one below the other, at any width and in either character set.
func TestFlowIsStraight(t *testing.T) {
	for _, name := range []string{"one-link", "two-links", "smcd", "verbs"} {
		packets := dissecttest.Captured(t, name)
		for _, opts := range []FlowOptions{{}, {Width: 72}, {Width: 1}, {Width: 160}, {ASCII: true}} {
			width, bar := max(opts.Width, flowMinWidth), "│"
			if opts.Width == 0 {
				width = flowWidth
			}
			if opts.ASCII {
				bar = "|"
			}
			rows := 0
			for line := range strings.Lines(drawFlow(t, packets, opts)) {
				line = strings.TrimSuffix(line, "\n")
				runes := []rune(line)
				if opts.ASCII && len(runes) != len(line) {
					t.Fatalf("%s: not ASCII: %s", name, line)
				}
				if !strings.HasSuffix(line, bar) {
					continue
				}
				rows++
				if len(runes) != width || string(runes[flowGutter:flowGutter+1]) != bar {
					t.Fatalf("%s, %+v: a crooked row: %s", name, opts, line)
				}
			}
			if rows < 5 {
				t.Errorf("%s, %+v: %d rows", name, opts, rows)
			}
		}
	}
}

func TestFlowOfData(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	for i := range 50 {
		s.Write(dissecttest.ToServer, i*100, 100)
		s.CDC(dissecttest.ToServer, dissecttest.Produce(0, uint32(i*100+100)))
		s.CDC(dissecttest.ToClient, dissecttest.Consume(0, uint32(i*100+100)))
	}
	got := drawFlow(t, s.Packets, FlowOptions{})
	if missing := inOrder(got, "Connection 1:", "CLC Confirm", "50 WRITEs, 5000 B, 50 CDC to prod=0000:00001388", "50 CDC to prod=0000:00000000 cons=0000:00001388"); missing != "" {
		t.Errorf("no %q after the earlier ones in\n%s", missing, got)
	}
	if n := strings.Count(got, "═▶│") + strings.Count(got, "│◀═"); n != 2 {
		t.Errorf("%d arrows for data, want 2:\n%s", n, got)
	}

	// A pause begins a new run, a flag is a message.
	s.Now = s.Now.Add(3 * time.Second)
	s.CDC(dissecttest.ToServer, dissecttest.Produce(0, 5000))
	s.CDC(dissecttest.ToServer, dissecttest.Set(cdc.DoneWriting))
	got = drawFlow(t, s.Packets, FlowOptions{})
	if missing := inOrder(got, "50 CDC to", "1 CDC to", "─ CDC seq=", "done-writing"); missing != "" {
		t.Errorf("no %q after the earlier ones in\n%s", missing, got)
	}
}

// The selection has the connection with its link group in the end, and nothing else.
func TestFlowSelects(t *testing.T) {
	packets := dissecttest.Captured(t, "two-links")
	title := regexp.MustCompile(`(?m)^(Connection|Link group) \d+`)
	for _, tt := range []struct {
		conns, groups []int
		want          []string
	}{
		{nil, nil, []string{"Link group 1", "Connection 1", "Connection 2", "Connection 3", "Connection 4", "Connection 5", "Connection 6", "Connection 7"}},
		{[]int{3, 5}, nil, []string{"Link group 1", "Connection 3", "Connection 5"}},
		{[]int{99}, nil, nil},
		{nil, []int{1}, []string{"Link group 1", "Connection 1", "Connection 2", "Connection 3", "Connection 4", "Connection 5", "Connection 6", "Connection 7"}},
		{nil, []int{2}, nil},
		{[]int{3}, []int{2}, nil},
	} {
		got := title.FindAllString(drawFlow(t, packets, FlowOptions{Conns: tt.conns, LinkGroups: tt.groups}), -1)
		if !slices.Equal(got, tt.want) {
			t.Errorf("Flow of connections %v and link groups %v has %q, want %q", tt.conns, tt.groups, got, tt.want)
		}
	}
}

// However much there is, a bounded number of steps is kept: the first ones and the last ones.
func TestLaddersAreBounded(t *testing.T) {
	conn := &dissect.Conn{ID: 1, Client: netip.MustParseAddrPort("10.0.0.1:1"), Server: netip.MustParseAddrPort("10.0.0.2:2")}
	decline := clc.Decline{Version: clc.V1}
	e := dissect.Event{Family: dissect.CLC, Name: "Decline", Dir: dissect.ClientToServer, Conn: conn, Message: decline, Bytes: decline.Append(nil), Problems: []dissect.Problem{{Kind: dissect.Declined, Text: "no"}}}
	const events = 10 * maxLadderSteps
	f, p := NewFlow(FlowOptions{}), NewPage(PageOptions{})
	for i := range events {
		e.Packet = dissect.Packet{Number: i + 1, Time: time.Unix(int64(i), 0)}
		f.Add(&e)
		p.Add(&e)
	}
	l := f.ladders.order[0]
	steps := l.all()
	if len(l.head) != maxLadderSteps || len(l.tail) != maxLadderSteps || len(steps) != 2*maxLadderSteps+1 {
		t.Fatalf("%d and %d steps are kept, %d with the mark", len(l.head), len(l.tail), len(steps))
	}
	for i, s := range steps {
		want := i + 1
		switch {
		case i == maxLadderSteps:
			want = -1
		case i > maxLadderSteps:
			want = events - 2*maxLadderSteps + i
		}
		if s.number != want {
			t.Fatalf("step %d is of packet %d, want %d", i, s.number, want)
		}
	}
	var b strings.Builder
	if err := f.Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d steps are left out here", events-2*maxLadderSteps); !strings.Contains(b.String(), want) {
		t.Errorf("Flow does not say %q", want)
	}
	if n := len(readPage(t, p, nil).Messages); n == 0 || n > maxLadderPage {
		t.Errorf("the page has %d messages, want up to %d", n, maxLadderPage)
	}

	// Many connections, and many pairs of strangers.
	f = NewFlow(FlowOptions{})
	for i := range 3 * maxLadders {
		e.Conn = &dissect.Conn{ID: i + 1}
		e.Packet.Number = i + 1
		f.Add(&e)
		stranger := dissect.Event{Family: dissect.RoCE, Name: "CNP", Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1), Dst: conn.Server}
		f.Add(&stranger)
	}
	if f.ladders.counts != [3]int{maxLadders, 0, maxLadders} || f.ladders.omitted != [3]int{2 * maxLadders, 0, 2 * maxLadders} || f.ladders.steps > maxAllSteps {
		t.Errorf("%v ladders are kept and %v omitted, with %d steps", f.ladders.counts, f.ladders.omitted, f.ladders.steps)
	}
	b.Reset()
	if err := f.Write(&b); err != nil || !strings.Contains(b.String(), "messages of more connections are left out") {
		t.Errorf("Flow does not tell of the connections it left out, %v", err)
	}
}

// All ladders together are bounded, too: later ones still have their last steps.
func TestStepsAreBounded(t *testing.T) {
	var b ladders
	b.init(time.Unix(0, 0), choice{})
	b.steps = maxAllSteps
	e := dissect.Event{Family: dissect.TCP, Name: "FIN", Conn: &dissect.Conn{ID: 1}}
	for i := range 5 {
		e.Packet.Number = i + 1
		b.add(&e)
	}
	l := b.order[0]
	if last := l.lastStep(); len(l.head)+len(l.tail) != 1 || last.number != 5 || l.omitted != 4 {
		t.Errorf("%d and %d steps, %d omitted, the last of packet %d", len(l.head), len(l.tail), l.omitted, last.number)
	}
}

func TestPlotIsBounded(t *testing.T) {
	var p plot
	for i := range 100_000 {
		p.add(plotPoint{time.Unix(int64(i), 0), uint64(i), uint64(i / 2), i % 7})
		p.add(plotPoint{time.Unix(int64(i), 1), uint64(i), uint64(i / 2), i % 7}) // nothing new
	}
	points := p.all()
	if len(points) > maxPlotPoints+1 || len(points) < maxPlotPoints/2 || points[0].produced != 0 || points[len(points)-1].produced != 99_999 {
		t.Fatalf("%d points from %+v to %+v", len(points), points[0], points[len(points)-1])
	}
	for i := 1; i < len(points); i++ {
		if !points[i].at.After(points[i-1].at) {
			t.Fatalf("point %d at %v, after %v", i, points[i].at, points[i-1].at)
		}
	}
}

func TestWrapText(t *testing.T) {
	for _, tt := range []struct {
		in   string
		n    int
		want []string
	}{
		{"", 5, []string{""}},
		{"one", 5, []string{"one"}},
		{"one two three", 7, []string{"one two", "three"}},
		{"  a   b ", 9, []string{"a b"}},
		{"abcdefghij k", 4, []string{"abcd", "efgh", "ij k"}},
		{"x abcdefgh", 4, []string{"x", "abcd", "efgh"}},
		{"é\x1b[2J\u202e", 10, []string{"é?[2J?"}},
	} {
		got := wrapText(tt.in, tt.n)
		if !slices.Equal(got, tt.want) {
			t.Errorf("wrapText(%q, %d) = %q, want %q", tt.in, tt.n, got, tt.want)
		}
		for _, line := range got {
			if utf8.RuneCountInString(line) > tt.n {
				t.Errorf("wrapText(%q, %d) has a line of %d columns", tt.in, tt.n, utf8.RuneCountInString(line))
			}
		}
	}
}

// maxFuzzed is how many bytes of an input are used: of long ones a run plays few.
const maxFuzzed = 3 << 10

// FuzzLadders has ladders and page made of any packets: two bytes of length before each, and one
// that gives their order in time.
func FuzzLadders(f *testing.F) {
	pack := func(packets []dissect.Packet) (b []byte) {
		for _, p := range packets {
			b = append(b, byte(len(p.Data)>>8), byte(len(p.Data)), 1)
			b = append(b, p.Data...)
		}
		return b
	}
	s := dissecttest.NewScript()
	s.Handshake()
	s.SecondLink()
	s.Write(dissecttest.ToServer, 0, 100)
	s.CDC(dissecttest.ToServer, dissecttest.Produce(0, 100))
	s.CDCOver(dissecttest.ToServer, 1, dissecttest.Set(cdc.Closed))
	f.Add(pack(s.Packets))
	f.Add(pack(s.Packets[len(s.Packets)/2:]))
	f.Add(pack(dissecttest.Captured(f, "smcd")[:12]))
	smctest.Fuzz(f, func(t *testing.T, b []byte) {
		flow, page, tr := NewFlow(FlowOptions{}), NewPage(PageOptions{}), dissect.New(dissect.Options{})
		now := time.Unix(1_700_000_000, 0)
		b = b[:min(len(b), maxFuzzed)]
		emit := func(e *dissect.Event) { flow.Add(e); page.Add(e) }
		for n := 1; len(b) >= 3; n++ {
			size := min(int(b[0])<<8|int(b[1]), len(b)-3)
			now = now.Add(time.Duration(int8(b[2])) * 100 * time.Millisecond)
			tr.Packet(dissect.Packet{Number: n, Time: now, Link: frame.Ethernet, Data: b[3 : 3+size], OrigLen: size}, emit)
			b = b[3+size:]
		}
		tr.Close(emit)
		var drawn strings.Builder
		if err := flow.Write(&drawn); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(drawn.String()) {
			if strings.HasSuffix(line, "│\n") && utf8.RuneCountInString(line) != flowWidth+1 {
				t.Errorf("a crooked row: %q", line)
			}
		}
		checkPageData(t, page.data(tr.Summary()))
	})
}

// checkPageData checks that the page's script finds everything that a step or a field refers to,
// and that no byte of its data ends that script. A fuzz target does not read the data again, nor
// write the frame around them, which is the same for all captures: that would be most of its work.
func checkPageData(t testing.TB, data *pageData) {
	t.Helper()
	text, err := json.Marshal(data)
	if err != nil || bytes.IndexByte(text, '<') >= 0 {
		t.Fatalf("the data of the page: %v, %s", err, text)
	}
	for _, l := range data.Ladders {
		for _, s := range l.Steps {
			for _, i := range s.Messages {
				if i < 0 || i >= len(data.Messages) {
					t.Fatalf("%s, step %q: message %d of %d", l.Name, s.Text, i, len(data.Messages))
				}
			}
		}
	}
	for i, m := range data.Messages {
		if len(m.Hex)%2 != 0 || len(m.Hex)/2 > m.Size {
			t.Fatalf("message %d, %s, of %d bytes has %d digits", i, m.Name, m.Size, len(m.Hex))
		}
		for _, f := range m.Fields {
			if least, most := min(f.name, f.key, f.text), max(f.name, f.key, f.text); least < 0 || most >= len(data.Strings) {
				t.Fatalf("message %d, %s: field %+v, of %d strings", i, m.Name, f, len(data.Strings))
			}
			if f.offset < 0 || f.len < 0 || f.offset > m.Size {
				t.Fatalf("message %d, %s, of %d bytes: field %+v", i, m.Name, m.Size, f)
			}
		}
	}
}

// A Decline may give the reason 0, and is one all the same.
func TestFlowDeclineWithoutReason(t *testing.T) {
	s := dissecttest.NewScript()
	s.Open(true, true)
	s.CLC(dissecttest.ToServer, s.Proposal())
	s.CLC(dissecttest.ToClient, clc.Decline{Version: clc.V2})
	if got := drawFlow(t, s.Packets, FlowOptions{}); !strings.Contains(got, "\ndeclined by the server: ") {
		t.Errorf("Flow does not say who declined:\n%s", got)
	}
}
