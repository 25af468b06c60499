package ladder

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// trackPage returns the page of packets.
func trackPage(t testing.TB, packets []dissect.Packet, opts PageOptions) (*Page, *dissect.Summary) {
	t.Helper()
	p := NewPage(opts)
	tr := dissect.New(dissect.Options{})
	for _, packet := range packets {
		tr.Packet(packet, p.Add)
	}
	tr.Close(p.Add)
	return p, tr.Summary()
}

// pageText returns the page as it is written.
func pageText(t testing.TB, p *Page, s *dissect.Summary) string {
	t.Helper()
	var b strings.Builder
	if err := p.Write(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// parsedPage is the data of a page as its script reads it.
type parsedPage struct {
	Title   string
	Strings []string
	Ladders []struct {
		Kind, Name, Mode, Title string
		Problems                int
		Steps                   []pageStep
		Plots                   []pagePlot
	}
	Messages []struct {
		Number, Size int
		Name, Hex    string
		Fields       [][6]any
	}
}

// readPage returns the data of a page.
func readPage(t testing.TB, p *Page, s *dissect.Summary) (data parsedPage) {
	t.Helper()
	text := pageText(t, p, s)
	_, after, ok := strings.Cut(text, `<script id="data" type="application/json">`)
	encoded, _, ok2 := strings.Cut(after, "</script>")
	if !ok || !ok2 {
		t.Fatal("the page has no data")
	}
	if err := json.Unmarshal([]byte(encoded), &data); err != nil {
		t.Fatal(err)
	}
	return data
}

// Of the two-link capture the page has every connection, its steps, and for all messages bytes and
// fields that fit each other.
func TestPage(t *testing.T) {
	p, s := trackPage(t, dissecttest.Captured(t, "two-links"), PageOptions{Title: "two links"})
	data := readPage(t, p, s)
	if data.Title != "two links" || len(data.Ladders) != 8 || data.Ladders[0].Kind != "group" {
		t.Fatalf("page %q has %d ladders", data.Title, len(data.Ladders))
	}
	if len(data.Messages) < 200 {
		t.Errorf("%d messages have their bytes", len(data.Messages))
	}
	for i, m := range data.Messages {
		b, err := hex.DecodeString(m.Hex)
		if err != nil || len(b) == 0 || len(b) > m.Size || len(m.Fields) == 0 {
			t.Fatalf("message %d, %s: %d of %d bytes, %d fields, %v", i, m.Name, len(b), m.Size, len(m.Fields), err)
		}
		covered := make([]bool, len(b))
		for _, f := range m.Fields {
			offset, size := int(f[2].(float64)), int(f[3].(float64))
			for _, index := range []int{0, 1, 5} {
				if n := int(f[index].(float64)); n < 0 || n >= len(data.Strings) {
					t.Fatalf("message %d: string %d of %d", i, n, len(data.Strings))
				}
			}
			for k := offset; k < offset+size && k < len(b); k++ {
				covered[k] = true
			}
		}
		for k, ok := range covered {
			if !ok {
				t.Fatalf("message %d, %s: byte %d is of no field", i, m.Name, k)
			}
		}
	}
	seen := make(map[string]bool)
	for _, l := range data.Ladders {
		for _, st := range l.Steps {
			for _, n := range st.Messages {
				if n < 0 || n >= len(data.Messages) {
					t.Fatalf("%s: step refers to message %d of %d", l.Name, n, len(data.Messages))
				}
				seen[data.Messages[n].Name] = true
			}
		}
		for _, pl := range l.Plots {
			if len(pl.T) < 2 || len(pl.P) != len(pl.T) || len(pl.C) != len(pl.T) || len(pl.W) != len(pl.T) || pl.Capacity != 65536 {
				t.Errorf("%s: plot of %d, %d, %d and %d points, capacity %d", l.Name, len(pl.T), len(pl.P), len(pl.C), len(pl.W), pl.Capacity)
			}
			for i := 1; i < len(pl.T); i++ {
				if pl.P[i] < pl.C[i] || pl.P[i] < pl.P[i-1] {
					t.Errorf("%s: at point %d %d bytes are written, after %d, and %d are read", l.Name, i, pl.P[i], pl.P[i-1], pl.C[i])
				}
			}
		}
	}
	for _, name := range []string{"TCP option: SYN", "CLC: Proposal", "LLC: ADD LINK", "LLC: DELETE LINK", "CDC: CDC", "RoCE: RDMA WRITE"} {
		if !seen[name] {
			t.Errorf("no step has a message %q", name)
		}
	}
}

// The page is the same each time.
func TestPageIsReproducible(t *testing.T) {
	packets := dissecttest.Captured(t, "two-links")
	p, s := trackPage(t, packets, PageOptions{})
	q, r := trackPage(t, packets, PageOptions{})
	if pageText(t, p, s) != pageText(t, q, r) {
		t.Error("two pages of one capture differ")
	}
}

const hostile = `</script><script>document.title="x"</script><img src=x onerror=alert(1)>&"'`

// hostilePage is a page in which the title, a host and reasons are attacks.
func hostilePage() *Page {
	p := NewPage(PageOptions{Title: hostile, Start: time.Unix(0, 0)})
	r := &clc.ParamsR{
		PeerID: wire.PeerID{0xb1, 0xa0, 0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef},
		GID:    wire.GIDFromAddr(netip.MustParseAddr("192.0.2.1")),
		MAC:    wire.MAC{0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef},
		QPN:    0x010203, RKey: 0x04050607, RMBEIndex: 1, AlertToken: 0x08090a0b, RMBESize: 2,
		MTU: wire.MTU4096, RMBAddr: 0x1112131415161718, PSN: 0x191a1b,
	}
	a := clc.Accept{Version: clc.V2, FirstContact: true, R: r, FCE: &clc.FCE{OS: clc.OSLinux, HostName: hostile}}
	copy(a.EID[:], "</script><b>")
	conn := &dissect.Conn{ID: 1, Client: netip.MustParseAddrPort("[fe80::1%<b>]:1"), Server: netip.MustParseAddrPort("10.0.0.2:2"), Mode: hostile, State: dissect.ConnEstablished}
	conn.Reason = clc.Reason{Code: 1, Tag: hostile, Sentence: hostile}
	conn.Group = &dissect.LinkGroup{ID: 1, Mode: hostile, ClientHost: hostile, ServerHost: hostile}
	conn.Group.Links = []*dissect.Link{{ID: 1, Reason: hostile, Group: conn.Group}}
	b := a.Append(nil)
	e := dissect.MessageEvent(nil, b)
	e.Conn, e.Dir, e.Text = conn, dissect.ServerToClient, hostile
	e.Packet = dissect.Packet{Number: 1, Time: time.Unix(1, 0)}
	e.Problems = []dissect.Problem{{Kind: dissect.Violation, Text: hostile, Rule: hostile}}
	p.Add(e)
	p.Add(&dissect.Event{Family: dissect.Note, Name: hostile, Text: hostile, Conn: conn, Packet: dissect.Packet{Number: 2, Time: time.Unix(2, 0)}})
	return p
}

// Nothing of a capture becomes markup.
func TestPageIsSafe(t *testing.T) {
	text := pageText(t, hostilePage(), &dissect.Summary{})
	if n := strings.Count(text, "<script"); n != 2 {
		t.Errorf("the page has %d scripts, want 2", n)
	}
	if n := strings.Count(text, "</script"); n != 2 {
		t.Errorf("the page has %d ends of scripts, want 2", n)
	}
	for _, bad := range []string{"<img", "<b>", "<title></"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if !strings.Contains(text, `default-src 'none'`) {
		t.Error("the page has no policy")
	}
	for _, scheme := range []string{`src="`, `href="`, "url(", "@import", "fetch(", "innerHTML", "eval("} {
		if strings.Contains(text, scheme) {
			t.Errorf("the page has %q", scheme)
		}
	}
}

// browse opens a page in a browser without a window and returns the document that its script makes.
func browse(t *testing.T, text string) string {
	t.Helper()
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("needs Chromium")
	}
	if testing.Short() {
		t.Skip("starts a browser")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "page.html")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--no-first-run",
		"--user-data-dir="+filepath.Join(dir, "profile"), "--virtual-time-budget=3000", "--dump-dom", "file://"+file)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("%s does not run here: %v", browser, err)
	}
	return string(out)
}

// In a browser the page draws the ladders, and hostile text stays text.
func TestPageInBrowser(t *testing.T) {
	p, s := trackPage(t, dissecttest.Captured(t, "two-links"), PageOptions{Title: "two links"})
	dom := browse(t, pageText(t, p, s))
	if missing := inOrder(dom, ">two links<", "link group 1", "connection 7", "Connection 1: 192.168.76.2:59178", "<svg", "CLC Proposal", "link 2 is active", "20 WRITEs, 2000 B", "</svg>", "Client to server", "<svg", "packet 1,", "tcp.option_kind"); missing != "" {
		t.Errorf("the browser does not show %q after the earlier ones in\n%.3000s", missing, dom)
	}
	dom = browse(t, pageText(t, hostilePage(), &dissect.Summary{}))
	if strings.Contains(dom, "<img") || strings.Contains(dom, "<title>x</title>") || !strings.Contains(dom, "&lt;/script&gt;") {
		t.Errorf("hostile text did not stay text:\n%.3000s", dom)
	}
}

// However many connections, steps and moments there are, a page has a size that a browser can show, and each
// connection has its beginning and its end.
func TestPageIsBounded(t *testing.T) {
	p := NewPage(PageOptions{})
	group := &dissect.LinkGroup{ID: 1}
	const conns, steps = 200, 3 * maxLadderSteps
	m := cdc.Message{Seq: 1}
	for i := range conns {
		c := &dissect.Conn{ID: i + 1, Group: group, State: dissect.ConnEstablished, Mode: "SMC-R"}
		c.ToServer = dissect.Ring{Conn: c, Dir: dissect.ClientToServer, Known: true, Size: 1 << 20, Capacity: 1 << 20}
		c.ToClient = dissect.Ring{Conn: c, Dir: dissect.ServerToClient, Known: true, Size: 1 << 20, Capacity: 1 << 20}
		for n := range steps {
			c.ToServer.Produced++
			c.ToClient.Produced++
			at := dissect.Packet{Number: i*steps + n + 1, Time: time.Unix(int64(10*n), int64(i))}
			p.Add(&dissect.Event{
				Packet: at, Family: dissect.CDC, Name: "CDC", Conn: c, Dir: dissect.ClientToServer, Message: &m,
				Progress: &dissect.Progress{Out: &c.ToServer, In: &c.ToClient}, Problems: []dissect.Problem{{Kind: dissect.Violation, Text: "a test"}},
			})
		}
	}
	data := readPage(t, p, nil)
	total, points := 0, 0
	for _, l := range data.Ladders {
		total += len(l.Steps)
		for _, plot := range l.Plots {
			points += len(plot.T)
		}
		if l.Kind != "conn" {
			continue
		}
		var id int
		if _, err := fmt.Sscanf(l.Name, "connection %d", &id); err != nil {
			t.Fatal(err)
		}
		if first, last := l.Steps[0].Number, l.Steps[len(l.Steps)-1].Number; first != (id-1)*steps+1 || last != id*steps {
			t.Fatalf("%s has packets %d to %d, want %d to %d", l.Name, first, last, (id-1)*steps+1, id*steps)
		}
	}
	if len(data.Ladders) != conns+1 || total > maxPageSteps || total < maxPageSteps/2 || points > maxPagePoints || points < maxPagePoints/2 {
		t.Errorf("%d ladders with %d steps and %d moments, want %d with up to %d and %d", len(data.Ladders), total, points, conns+1, maxPageSteps, maxPagePoints)
	}
	if text := pageText(t, p, nil); len(text) > 16<<20 {
		t.Errorf("the page has %d MiB", len(text)>>20)
	}
}

func TestShare(t *testing.T) {
	for _, tt := range []struct {
		wanted []int
		limit  int
		want   int
	}{
		{nil, 10, math.MaxInt}, {[]int{3, 4}, 10, math.MaxInt}, {[]int{5, 5}, 10, math.MaxInt}, {[]int{20}, 10, 10},
		{[]int{6, 6}, 10, 5}, {[]int{2, 9, 9}, 10, 4}, {[]int{9, 1, 1, 9}, 10, 4}, {[]int{1, 1, 1}, 2, 0},
	} {
		if got := share(tt.wanted, tt.limit); got != tt.want {
			t.Errorf("share(%v, %d) = %d, want %d", tt.wanted, tt.limit, got, tt.want)
		}
	}
	var steps []step
	for i := range 10 {
		steps = append(steps, step{number: i})
	}
	steps = append(steps[:6:6], append([]step{omittedSteps(7)}, steps[6:]...)...)
	for n := range 15 {
		got := shorten(steps, n)
		if len(got) > max(n, 1) {
			t.Errorf("shorten to %d has %d steps", n, len(got))
		}
		shown, left := 0, 0
		for _, s := range got {
			if s.omitted > 0 {
				left += s.omitted
			} else {
				shown++
			}
		}
		if shown+left != 17 {
			t.Errorf("shorten to %d shows %d steps and leaves %d out, of 17", n, shown, left)
		}
	}
	points := make([]plotPoint, 100)
	for i := range points {
		points[i].window = i
	}
	for n := 2; n < 110; n++ {
		got := thin(points, n)
		if len(got) > n || len(got) < min(n, 100)/2 || got[0].window != 0 || got[len(got)-1].window != 99 {
			t.Errorf("thin to %d has %d points from %d to %d", n, len(got), got[0].window, got[len(got)-1].window)
		}
	}
}

// A page of one link group has room for its connections, no matter how many others there are; and
// events that are not drawn are not kept.
func TestPageOfLinkGroup(t *testing.T) {
	p := NewPage(PageOptions{LinkGroups: []int{2}})
	groups := []*dissect.LinkGroup{{ID: 1}, {ID: 2}}
	decline := clc.Decline{Version: clc.V1}
	n := 0
	add := func(c *dissect.Conn) {
		n++
		p.Add(&dissect.Event{Packet: dissect.Packet{Number: n, Time: time.Unix(int64(n), 0)}, Family: dissect.CLC, Name: "Decline", Conn: c, Message: decline, Bytes: decline.Append(nil)})
	}
	wanted := &dissect.Conn{ID: 1, State: dissect.ConnProposed}
	add(wanted) // its group comes out later
	for i := range 2 * maxLadders {
		c := &dissect.Conn{ID: i + 2, State: dissect.ConnProposed}
		add(c)
		if i%2 == 0 {
			c.State, c.Group = dissect.ConnEstablished, groups[0]
		} else {
			c.State = dissect.ConnDeclined
		}
		add(c)
		add(c)
	}
	wanted.State, wanted.Group = dissect.ConnEstablished, groups[1]
	add(wanted)
	late := &dissect.Conn{ID: 4 * maxLadders, State: dissect.ConnEstablished, Group: groups[1]}
	add(late)
	data := readPage(t, p, nil)
	var names []string
	for _, l := range data.Ladders {
		names = append(names, l.Name)
	}
	if want := []string{"link group 2", "connection 1", fmt.Sprint("connection ", late.ID)}; !slices.Equal(names, want) {
		t.Errorf("the page has %q, want %q", names, want)
	}
	if len(data.Messages) != 3 || p.ladders.kept != 3 || p.ladders.counts != [3]int{2, 1, 0} || p.ladders.omitted != [3]int{} {
		t.Errorf("%d messages, %d kept, of %v ladders, %v left out", len(data.Messages), p.ladders.kept, p.ladders.counts, p.ladders.omitted)
	}
}
