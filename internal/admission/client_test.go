package admission

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

var server = netip.MustParseAddrPort("127.0.0.1:80")

// newDir returns a run directory.
func newDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gosmc")
	if err := rundir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newClient returns another process of this program.
func newClient(t *testing.T, dir string, after int) *Client {
	t.Helper()
	c := NewClient(dir, after)
	t.Cleanup(c.Close)
	return c
}

// connect makes n connections, which are short or grow, and returns a letter for each: m for one that was moved, t for TCP.
func connect(c *Client, to netip.AddrPort, n int, short bool) string {
	var b strings.Builder
	for range n {
		t, moved := c.Ask(to, 1)
		switch {
		case !moved:
			b.WriteByte('t')
			continue
		case short:
			t.Short()
		default:
			t.Grown()
		}
		b.WriteByte('m')
	}
	return b.String()
}

// counted has runs of a letter as "16m".
func counted(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		rest := strings.TrimLeft(s, s[:1])
		b.WriteString(itoa(len(s)-len(rest)) + s[:1])
		s = rest
	}
	return b.String()
}

func itoa(n int) string {
	if n >= 10 {
		return itoa(n/10) + itoa(n%10)
	}
	return string(rune('0' + n))
}

// TestClient leaves short connections to TCP, moves one of ever more, and all again when one has grown: also of another process of the program.
func TestClient(t *testing.T) {
	dir := newDir(t)
	c, other := newClient(t, dir, 4), newClient(t, dir, 4)
	if got, want := counted(connect(c, server, 400, true)), "4m31t1m63t1m127t1m172t"; got != want {
		t.Errorf("short connections: %s, want %s", got, want)
	}
	if got := connect(other, server, 1, true); got != "t" {
		t.Errorf("another process: %s", got)
	}
	if got := connect(c, netip.MustParseAddrPort("127.0.0.1:81"), 1, true); got != "m" {
		t.Errorf("another server: %s", got)
	}
	program, err := ownHash()
	if err != nil {
		t.Fatal(err)
	}
	where, ok := rundir.Private(dir)
	if got, want := Lookup(where, Key(server, 1, program)), (Memory{Short: 4, Kept: 394, Probe: 256}); !ok || got != want {
		t.Errorf("the table has %+v, want %+v", got, want)
	}
	// 255 after the last one that was moved.
	if got, want := counted(connect(c, server, 83, false)), "82t1m"; got != want {
		t.Errorf("one that grows: %s, want %s", got, want)
	}
	if got := counted(connect(other, server, 9, true)); got != "4m5t" {
		t.Errorf("after it: %s", got)
	}
}

// TestClientFar tries fewer of the connections for which the agent has to introduce the two ends, until one
// needs no agent.
func TestClientFar(t *testing.T) {
	c := newClient(t, newDir(t), 4)
	far := func(n int) string {
		var b strings.Builder
		for range n {
			ticket, moved := c.Ask(server, 1)
			if !moved {
				b.WriteByte('t')
				continue
			}
			ticket.Far().Short()
			b.WriteByte('m')
		}
		return counted(b.String())
	}
	if got, want := far(4+512+1024+2*2048), "4m511t1m1023t1m2047t1m2047t1m"; got != want {
		t.Errorf("connections that the agent introduces: %s, want %s", got, want)
	}
	if got, want := counted(connect(c, server, 2048+32+64, true)), "2047t1m31t1m63t1m"; got != want {
		t.Errorf("afterwards, without the agent: %s, want %s", got, want)
	}
}

// TestClientGrown counts only connections that are short one after another.
func TestClientGrown(t *testing.T) {
	c := newClient(t, newDir(t), 4)
	for range 10 {
		if got := connect(c, server, 3, true) + connect(c, server, 1, false); got != "mmmm" {
			t.Fatal(got)
		}
	}
}

// TestClientOff moves all where nothing is to be left to TCP, or nothing can be remembered.
func TestClientOff(t *testing.T) {
	dir := newDir(t)
	open := newDir(t)
	part, _ := rundir.Private(open)
	if err := os.Chmod(part, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Client{
		"off": newClient(t, dir, -1), "the zero value": {}, "no directory": newClient(t, filepath.Join(dir, "none"), 4),
		"one that others can read": newClient(t, open, 4),
	} {
		if got := counted(connect(c, server, 40, true)); got != "40m" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestClientTable goes on with all kinds of tables.
func TestClientTable(t *testing.T) {
	dir := newDir(t)
	where, _ := rundir.Private(dir)
	path := filepath.Join(where, Table.File)
	for name, put := range map[string]func() error{
		"short":       func() error { return os.WriteFile(path, make([]byte, 100), 0o600) },
		"other magic": func() error { return os.WriteFile(path, make([]byte, Table.Size), 0o600) },
		"a directory": func() error { return os.Mkdir(path, 0o700) },
		"a link":      func() error { return os.Symlink("/dev/zero", path) },
		"a FIFO":      func() error { return unix.Mkfifo(path, 0o600) },
	} {
		os.RemoveAll(path)
		if err := put(); err != nil {
			t.Fatal(err)
		}
		c := newClient(t, dir, 4)
		got := counted(connect(c, server, 8, true))
		if want := map[string]string{"other magic": "8m", "a directory": "8m"}[name]; got != want && (want != "" || got != "4m4t") {
			t.Errorf("%s: %s", name, got)
		}
	}
	// One that is cut off while it is open.
	os.RemoveAll(path)
	c := newClient(t, dir, 4)
	if got := connect(c, server, 5, true); got != "mmmmt" {
		t.Fatal(got)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if got := connect(c, server, 3, true); got != "mmm" {
		t.Errorf("cut off: %s", got)
	}
	// One that is gone is made again, a moment later.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.looked = c.looked.Add(-openEvery)
	if got := connect(c, server, 5, true); got != "mmmmt" {
		t.Errorf("removed: %s", got)
	}
}

// TestClientFull has more servers than the table has places for a key: those without one are moved.
func TestClientFull(t *testing.T) {
	c := newClient(t, newDir(t), 1)
	connect(c, server, 1, true)
	var set [ways]netip.AddrPort
	found := 0
	for port := uint16(1); found < ways; port++ {
		a := netip.AddrPortFrom(server.Addr(), port)
		if a != server && places(Key(a, 1, c.program)) == places(Key(server, 1, c.program)) {
			set[found] = a
			found++
		}
	}
	for i, a := range set {
		want := "mt"
		if i == ways-1 {
			want = "mm"
		}
		if got := connect(c, a, 2, true); got != want {
			t.Errorf("server %d of %d with the same places: %s, want %s", i+2, ways+1, got, want)
		}
	}
	// An entry that was not used for a minute loses its place.
	key := Key(server, 1, c.program)
	at, e, ok := c.find(key)
	if !ok {
		t.Fatal("no entry")
	}
	e.used -= idle + 1
	c.write(at, &e)
	if got := connect(c, set[ways-1], 2, true); got != "mt" {
		t.Errorf("with a place of one that is idle: %s", got)
	}
}

// TestTicketOfAnother has a ticket note nothing in an entry that has become another one's.
func TestTicketOfAnother(t *testing.T) {
	c := newClient(t, newDir(t), 4)
	ticket, _ := c.Ask(server, 1)
	at, e, _ := c.find(ticket.key)
	e.key++
	c.write(at, &e)
	ticket.Short()
	var b [entryLen]byte
	if _, err := c.file.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	if got := parseEntry(b[:]); got.shorts != 0 {
		t.Errorf("another one's entry has %d short connections", got.shorts)
	}
	var none Ticket
	none.Short()
	none.Grown()
}

// known counts the connections to a server that stay TCP by the last answer.
func known(c *Client) (n int) {
	for c.Known(server) {
		n++
	}
	return n
}

// lateBy makes the last answers older, or less old.
func lateBy(c *Client, d time.Duration) {
	for _, t := range c.told {
		t.until = t.until.Add(-d)
	}
}

// TestClientKnown asks once for several connections, which are counted all the same, and moves the
// same ones as a trial.
func TestClientKnown(t *testing.T) {
	dir := newDir(t)
	c := newClient(t, dir, 1)
	if got := known(c); got != 0 {
		t.Errorf("%d connections are known at the beginning", got)
	}
	var kept []int
	for range 1 + 3 + 1 {
		if got := connect(c, server, 1, true); got == "m" {
			kept = append(kept, 0)
		} else {
			kept[len(kept)-1]++
		}
		lateBy(c, -time.Hour) // so that the time does not matter
		kept[len(kept)-1] += known(c)
	}
	if !slices.Equal(kept, []int{31, againMost + 1}) {
		t.Errorf("after each that was moved so many stay TCP: %d, want 31 and %d", kept, againMost+1)
	}
	memory := func(netns uint64) Memory {
		where, _ := rundir.Private(dir)
		return Lookup(where, Key(server, netns, c.program))
	}
	if got := memory(1).Kept; got != 31+1 {
		t.Errorf("the table counts %d connections, want %d: the others come with the next question", got, 31+1)
	}
	// A socket of another namespace has an entry of its own.
	if _, moved := c.Ask(server, 2); !moved {
		t.Error("a server of another namespace is not moved")
	}
	if here, there := memory(1).Kept, memory(2).Kept; here != 31+1+againMost || there != 0 {
		t.Errorf("then %d and %d, want %d and 0", here, there, 31+1+againMost)
	}

	connect(c, server, 1, true)
	lateBy(c, againTime+1)
	if got := known(c); got != 0 {
		t.Errorf("%d connections are known by an old answer", got)
	}

	connect(c, server, 1, true)
	lateBy(c, -time.Hour)
	if !c.Known(server) {
		t.Fatal("not known")
	}
	before := memory(1).Kept
	c.SetAfter(-1)
	if got := known(c); got != 0 {
		t.Errorf("%d connections stay TCP where all are moved", got)
	}
	c.SetAfter(1)
	for port := range uint16(2 * maxTold) {
		connect(c, netip.AddrPortFrom(server.Addr(), 1000+port), 2, true)
		if len(c.told) > maxTold {
			t.Fatalf("answers about %d servers are remembered, want at most %d", len(c.told), maxTold)
		}
	}
	if got := memory(1).Kept; got != before+1 {
		t.Errorf("where answers about too many others came, the table counts %d connections, want %d", got, before+1)
	}
	connect(c, server, 1, true)
	lateBy(c, -time.Hour)
	c.Known(server)
	c.Close()
	if got := memory(1).Kept; got != before+3 {
		t.Errorf("at the end the table counts %d connections, want %d", got, before+3)
	}
}
