package admission

import (
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

const (
	// openEvery is how long a file is used before it is looked whether it is the directory's still,
	// or whether there is one now.
	openEvery = time.Second

	// An answer that connections to a server stay TCP is good for againMost more of them, and for
	// againTime. The calls to ask again are most of the time that a short connection loses here. As
	// much as that may be missing in the table: preload/src/admission.c does the same.
	againMost = 16
	againTime = 100 * time.Millisecond

	maxTold = 64 // servers of which such an answer is remembered
)

// A Client is a process that asks the table about its connections. The zero value moves all. It may
// be used by several goroutines at once.
type Client struct {
	dir   string // the run directory
	after atomic.Int64

	mu      sync.Mutex
	file    *os.File  // nil: there is none
	looked  time.Time // for the file
	program uint64    // our hash; 0: not known yet
	told    map[netip.AddrPort]*told

	opened time.Time     // when the file was
	booted time.Duration // CLOCK_BOOTTIME then
}

// A told is the last answer about a server: connections stay TCP.
type told struct {
	at    int64 // of the entry
	key   uint64
	left  uint32 // connections for which it is good
	count uint32 // those that the table does not have yet
	until time.Time
}

// NewClient returns one for a run directory. after is how many connections have to be short before
// others stay TCP; below 1: all are moved.
func NewClient(dir string, after int) *Client {
	c := &Client{dir: dir}
	c.SetAfter(after)
	return c
}

// SetAfter sets how many connections have to be short from now on.
func (c *Client) SetAfter(after int) { c.after.Store(int64(after)) }

// Close gives the file back.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.countTold()
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
	c.looked = time.Time{}
}

// A Ticket is for noting how a connection ends that was moved. The zero value notes nothing.
type Ticket struct {
	client *Client
	at     int64 // of the entry in the table
	key    uint64
	far    bool
}

// Far returns a ticket for a connection for which the agent had to introduce the two ends.
func (t Ticket) Far() Ticket {
	t.far = true
	return t
}

// Counts reports whether the ticket notes anything.
func (t Ticket) Counts() bool { return t.client != nil }

// Known reports whether connections to a server stay TCP because Ask has said so of another one a
// moment ago. Then there is no ticket, and Ask need not be called. The socket may be in another
// network namespace, which few programs have.
func (c *Client) Known(server netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.told[server]
	if t == nil || t.left == 0 || c.after.Load() < 1 || time.Now().After(t.until) { // rule: TestClientKnown: time.Now().After(t.until) -> false
		return false
	}
	t.left--
	t.count++
	return true
}

// Ask reports whether a connection to a server may be moved, of a socket in the network namespace
// with a cookie. Where nothing can be remembered all are.
func (c *Client) Ask(server netip.AddrPort, netns uint64) (t Ticket, moved bool) {
	after := c.after.Load()
	if after < 1 {
		return Ticket{}, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open() {
		return Ticket{}, true
	}
	key := Key(server, netns, c.program)
	at, e, ok := c.find(key)
	if !ok {
		return Ticket{}, true
	}
	if t := c.told[server]; t != nil {
		if t.key == key {
			e.count(t.count) // rule: TestClientKnown
		} else {
			c.add(t)
		}
		delete(c.told, server)
	}
	moved = e.shorts < uint32(after) || e.turn()
	e.used = c.uptime()
	if !c.write(at, &e) {
		return Ticket{}, true
	}
	if !moved {
		c.tell(server, at, &e)
	}
	return Ticket{client: c, at: at, key: key}, moved
}

// tell remembers that connections to a server stay TCP, up to the next one that is moved as a trial.
func (c *Client) tell(server netip.AddrPort, at int64, e *entry) {
	if len(c.told) >= maxTold { // rule: TestClientKnown: len(c.told) >= maxTold -> false
		c.countTold()
	}
	if c.told == nil {
		c.told = make(map[netip.AddrPort]*told)
	}
	left := min(againMost, e.nextProbe()-1-e.since) // turn has left since below that
	c.told[server] = &told{at: at, key: e.key, left: left, until: time.Now().Add(againTime)}
}

// countTold has the table count the connections that were told of no more than an earlier answer.
func (c *Client) countTold() {
	for _, t := range c.told {
		c.add(t)
	}
	clear(c.told)
}

func (c *Client) add(t *told) {
	if t.count > 0 {
		c.change(t.at, t.key, func(e *entry) { e.count(t.count) })
	}
}

// count counts n connections that stayed TCP.
func (e *entry) count(n uint32) {
	e.since += n
	e.kept += uint64(n)
}

// turn counts a connection where others were short, and reports whether it is moved as a trial.
func (e *entry) turn() bool {
	e.since++
	if probe := e.nextProbe(); e.since >= probe {
		most := uint32(probesMost)
		if probe > probesMost { // rule: TestClientFar
			most = probesFarMost
		}
		e.since, e.probe = 0, min(2*probe, most)
		return true
	}
	e.kept++
	return false
}

// find finds the entry of a key, or takes one that is free or was not used for long. It reports
// false if all its places have others.
func (c *Client) find(key uint64) (at int64, e entry, ok bool) {
	var set [ways * entryLen]byte
	first := places(key)
	if _, err := c.file.ReadAt(set[:], first); err != nil {
		return 0, e, false
	}
	now := c.uptime()
	for i := range int64(ways) {
		has := parseEntry(set[i*entryLen:])
		if has.key == key {
			return first + i*entryLen, has, true
		}
		if !ok && (has.key == 0 || now-has.used > idle) {
			at, e, ok = first+i*entryLen, entry{key: key}, true
		}
	}
	return at, e, ok
}

// write writes an entry. A write of another process at the same time may be lost, which matters
// little.
func (c *Client) write(at int64, e *entry) bool {
	var b [entryLen]byte
	_, err := c.file.WriteAt(e.append(b[:0]), at)
	return err == nil
}

// open opens the file if that was not done or tried a moment ago, and reports whether there is one.
func (c *Client) open() bool {
	if now := time.Now(); now.Sub(c.looked) >= openEvery || c.looked.IsZero() {
		c.looked = now
		c.reopen()
	}
	return c.file != nil
}

func (c *Client) reopen() {
	if c.file != nil {
		var st unix.Stat_t
		if unix.Fstat(int(c.file.Fd()), &st) == nil && st.Nlink > 0 {
			return
		}
		c.file.Close()
		c.file = nil
	}
	if c.program == 0 {
		program, err := ownHash()
		if err != nil {
			return
		}
		c.program = program
	}
	dir, ok := rundir.Private(c.dir)
	if !ok {
		return
	}
	f, err := Table.Open(dir, unix.O_RDWR)
	if err != nil && rundir.MakeTables(dir, Table) == nil {
		f, err = Table.Open(dir, unix.O_RDWR)
	}
	if err != nil {
		return
	}
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	c.file, c.opened, c.booted = f, time.Now(), time.Duration(t.Nano())
}

// Grown notes that a connection has carried so much that it was right to move it.
func (t Ticket) Grown() {
	t.change(func(e *entry) { e.shorts, e.since, e.probe = 0, 0, 0 })
}

// Short notes that a connection has ended which has not.
func (t Ticket) Short() {
	t.change(func(e *entry) {
		if e.shorts < uint32(t.client.after.Load()) {
			e.shorts++
		}
		switch far := e.probe > probesMost; {
		case t.far && !far: // rule: TestClientFar
			e.probe = probesFar
		case far && !t.far: // rule: TestClientFar
			e.probe = 0
		}
	})
}

func (t Ticket) change(f func(*entry)) {
	if c := t.client; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.change(t.at, t.key, f)
	}
}

// change changes the entry of a key.
func (c *Client) change(at int64, key uint64, f func(*entry)) {
	var b [entryLen]byte
	if c.file == nil {
		return
	}
	if _, err := c.file.ReadAt(b[:], at); err != nil {
		return
	}
	if e := parseEntry(b[:]); e.key == key { // it may be another one's by now
		f(&e)
		c.write(at, &e)
	}
}

// uptime is CLOCK_BOOTTIME in seconds, but for the time that the machine has slept since the file was opened.
func (c *Client) uptime() uint32 { return uint32((c.booted + time.Since(c.opened)) / time.Second) }
