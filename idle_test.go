package smc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/smctest"
)

// idleSweep is how often a child of TestIdle looks for pages to give back. The default, by which a minute
// has six such periods, would make the test slow.
const idleSweep = time.Second

// idleProgram is a process with many connections, at their dialing or their accepting end.
type idleProgram struct {
	p    *smctest.Parent
	host *Host
	l    *Listener // on the accepting side

	mu    sync.Mutex
	conns []*Conn
	work  sync.WaitGroup // goroutines that serve connections
	large atomic.Bool    // those accepted from now on are served with a large buffer

	dialer  Dialer
	packets atomic.Int64 // of RoCEv2, received
}

// childIdle obeys the test, with a line for each command and for each answer. Arguments: run
// directory, address to dial or "", UDP port for SMC-R, and none for SMC-D.
func childIdle(p *smctest.Parent) {
	g := &idleProgram{p: p}
	cfg := host.Config{Dir: p.Args[0], SweepEvery: idleSweep}
	if len(p.Args) > 2 {
		port, err := strconv.ParseUint(p.Args[2], 10, 16)
		p.Check(err)
		cfg.UEIDs, cfg.SMCRPeers, cfg.RDMA.Port = []string{"GOSMC.TEST"}, []string{"127.0.0.0/8"}, uint16(port)
		cfg.RDMA.Drop = func([]byte) bool {
			g.packets.Add(1)
			return false
		}
		g.dialer.Require, g.dialer.LocalAddr = RequireSMCR, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
	} else {
		g.dialer.Require = RequireSMCD
	}
	h, err := host.New(cfg)
	p.Check(err)
	g.host = &Host{h: h}
	g.dialer.Host, g.dialer.Timeout = g.host, slow
	addr := p.Args[1]
	if addr == "" {
		g.l, err = listenOn(g.host)
		p.Check(err)
		go g.accept()
		p.Say("listening %v", g.l.Addr())
	}
	for {
		verb, rest, _ := strings.Cut(p.Hear(), " ")
		n, _ := strconv.Atoi(rest)
		switch verb {
		case "dial":
			g.dial(addr, n)
		case "count": // waits until there are so many
			deadline := time.Now().Add(slow)
			for g.count() != n && time.Now().Before(deadline) {
				runtime.Gosched()
			}
			p.Say("counted %d", g.count())
			continue
		case "serve": // until now nobody has called Read
			g.serve()
		case "burst": // so many bytes each way, on every tenth connection
			p.Check(g.burst(n))
		case "large":
			g.large.Store(true)
		case "transfer": // so many MiB, on the newest connection
			start := time.Now()
			p.Check(g.transfer(g.conns[len(g.conns)-1], n<<20))
			p.Say("transferred %d", time.Since(start).Milliseconds())
			continue
		case "packets":
			p.Say("packets %d", g.packets.Load())
			continue
		case "collect":
			runtime.GC()
			debug.FreeOSMemory()
		case "close":
			for _, c := range g.conns {
				p.Check(c.Close())
			}
			g.conns = nil
		case "end":
			g.end()
		}
		p.Say("done")
	}
}

func (g *idleProgram) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

func (g *idleProgram) accept() {
	for {
		c, err := g.l.AcceptSMC()
		if err != nil {
			return
		}
		if g.large.Load() {
			g.work.Go(func() { g.echo(c, 64<<10) })
		}
		g.mu.Lock()
		g.conns = append(g.conns, c)
		g.mu.Unlock()
	}
}

// dial makes n connections, several at a time.
func (g *idleProgram) dial(addr string, n int) {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(n))
	for range 4 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				c, err := g.dialer.Dial("tcp", addr)
				for try := 0; errors.Is(err, ErrFallback) && try < 10; try++ {
					c, err = g.dialer.Dial("tcp", addr) // the machine is so busy that the server did not accept in time
				}
				g.p.Check(err)
				g.mu.Lock()
				g.conns = append(g.conns, c)
				g.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// serve starts a goroutine for each connection.
func (g *idleProgram) serve() {
	for _, c := range g.conns {
		g.work.Go(func() { g.echo(c, 512) })
	}
}

func (g *idleProgram) echo(c *Conn, size int) {
	buf := make([]byte, size)
	for {
		n, err := c.Read(buf)
		if err == io.EOF {
			g.p.Check(c.Close())
			return
		}
		g.p.Check(err)
		_, err = c.Write(buf[:n])
		g.p.Check(err)
	}
}

func (g *idleProgram) burst(size int) error {
	out, in := make([]byte, size), make([]byte, size)
	smctest.Pattern(out, 0)
	for i := 0; i < len(g.conns); i += 10 {
		c := g.conns[i]
		if err := c.SetDeadline(time.Now().Add(slow)); err != nil {
			return err
		}
		if _, err := c.Write(out); err != nil { // fits into the buffer
			return err
		}
		if _, err := io.ReadFull(c, in); err != nil {
			return err
		}
		if err := smctest.CheckPattern(in, 0); err != nil {
			return err
		}
		if err := c.SetDeadline(time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

func (g *idleProgram) transfer(c *Conn, size int) error {
	c.SetDeadline(time.Now().Add(2 * slow))
	wrote := make(chan error, 1)
	go func() {
		buf := make([]byte, 1<<20)
		for at := 0; at < size; at += len(buf) {
			smctest.Pattern(buf, uint64(at))
			if _, err := c.Write(buf); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	buf := make([]byte, 1<<20)
	for at := 0; at < size; at += len(buf) {
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		if err := smctest.CheckPattern(buf, uint64(at)); err != nil {
			return err
		}
	}
	return <-wrote
}

// end checks that nothing is left of all the connections.
func (g *idleProgram) end() {
	g.work.Wait()
	g.p.Check(g.host.Close())
	if g.l != nil {
		g.p.Check(g.l.error())
	}
	u, err := smctest.UsageOf(os.Getpid())
	g.p.Check(err)
	if u.Mappings != 0 {
		g.p.Check(fmt.Errorf("%d mappings after the host was closed", u.Mappings))
	}
	deadline := time.Now().Add(slow)
	for runtime.NumGoroutine() > 1 && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > 1 {
		buf := make([]byte, 64<<10)
		g.p.Check(fmt.Errorf("%d goroutines after the host was closed:\n%s", n, buf[:runtime.Stack(buf, true)]))
	}
}

// error is nil if the listener was closed.
func (l *Listener) error() error {
	if err := l.SetDeadline(time.Time{}); err == nil {
		return fmt.Errorf("listener %v is open after its host was closed", l.Addr())
	}
	return nil
}

// idleEnds are the two processes of TestIdle, the dialing one first.
type idleEnds [2]*smctest.Process

var idleNames = [2]string{"client", "server"}

// both gives both a command and waits until it is done.
func (ends idleEnds) both(command string) {
	for _, p := range ends {
		p.Say("%s", command)
	}
	for _, p := range ends {
		p.Hear("done")
	}
}

// dial makes n connections, of which there are then total.
func (ends idleEnds) dial(t *testing.T, n, total int) {
	t.Helper()
	ends[0].Say("dial %d", n)
	ends[0].Hear("done")
	ends[1].Say("count %d", total)
	if got := ends[1].Hear("counted"); got != strconv.Itoa(total) {
		t.Fatalf("the server has %s connections, want %d", got, total)
	}
}

// measure returns the memory, descriptors and buffers that the processes hold when garbage was
// collected.
func (ends idleEnds) measure(t *testing.T) (m [2]smctest.Memory, descriptors [2]int, buffers [2]int64) {
	t.Helper()
	ends.both("collect")
	for i, p := range ends {
		var err error
		if m[i], err = smctest.MemoryOf(p.PID()); err != nil {
			t.Fatal(err)
		}
		u, err := smctest.UsageOf(p.PID())
		if err != nil {
			t.Fatal(err)
		}
		descriptors[i] = len(u.Descriptors)
		if buffers[i], err = smctest.BufferPages(p.PID()); err != nil {
			t.Fatal(err)
		}
	}
	return m, descriptors, buffers
}

// quiet waits until no thread of the processes runs for a while, and returns false if that does not come.
func (ends idleEnds) quiet(t *testing.T, while time.Duration) bool {
	t.Helper()
	var before, after [2]map[string]int64
	take := func(w *[2]map[string]int64) {
		for i, p := range ends {
			var err error
			if w[i], err = smctest.Wakeups(p.PID()); err != nil {
				t.Fatal(err)
			}
		}
	}
	window := time.NewTicker(while)
	defer window.Stop()
	for range 15 { // the garbage collector gives memory back for a while
		take(&before)
		<-window.C // the measurement is that nothing happens meanwhile
		take(&after)
		total := int64(0)
		for i := range ends {
			for thread, n := range after[i] {
				total += n - before[i][thread]
			}
		}
		if total == 0 {
			return true
		}
		t.Logf("%d wakeups in %v", total, while)
	}
	return false
}

// needLimits skips the test where the system does not allow so many connections between two processes.
func needLimits(t *testing.T, conns int) {
	t.Helper()
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Max < uint64(conns)+200 {
		t.Skipf("needs %d descriptors, the limit is %d", conns+200, r.Max)
	}
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if n, _ := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n < 2*conns+1000 {
		t.Skipf("needs %d mappings, the limit is %s", 2*conns+1000, text)
	}
}

// raceEnabled reports whether the race detector is on, which needs memory of its own.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// TestIdle holds 10,000 connections between two processes, and measures their cost when nothing
// happens on them.
func TestIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 10,000 connections")
	}
	const conns, warm = 10_000, 500
	needLimits(t, conns)
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server := smctest.Start(t, "idle", dir, "")
	addr := server.Hear("listening")
	ends := idleEnds{smctest.Start(t, "idle", dir, addr), server}

	ends.dial(t, warm, warm)
	memory0, descriptors0, buffers0 := ends.measure(t)
	start := time.Now()
	ends.dial(t, conns-warm, conns)
	t.Logf("%d connections in %v", conns-warm, time.Since(start))
	memory, descriptors, buffers := ends.measure(t)
	for i, name := range idleNames {
		per := func(now, before int64) float64 { return float64(now-before) / (conns - warm) }
		anon, pages := per(memory[i].Anon, memory0[i].Anon), per(buffers[i], buffers0[i])
		all := per(memory[i].Total, memory0[i].Total)
		fds := per(int64(descriptors[i]), int64(descriptors0[i]))
		t.Logf("%s, per idle connection: %.0f bytes resident, of which %.0f private, %.0f pages of buffers, %.0f other; %.3f descriptors",
			name, all, anon, pages, all-anon-pages, fds)
		if anon > 6<<10 && !raceEnabled() {
			t.Errorf("%s has %.0f bytes of private memory per idle connection, want at most 6 KiB", name, anon)
		}
		if want := float64(2 * os.Getpagesize()); pages > want {
			t.Errorf("%s has %.0f bytes of buffers per idle connection, want the two pages with headers, %.0f", name, pages, want)
		}
		if fds > 1.01 {
			t.Errorf("%s has %.3f descriptors per idle connection, want 1", name, fds)
		}
	}

	// A goroutine in Read of each connection, as a server has it.
	server.Say("serve")
	server.Hear("done")
	if !ends.quiet(t, 2*time.Second) {
		t.Error("processes with idle connections do not sleep")
	}

	// After a burst the pages go back, and after that there is quiet again.
	_, _, buffers = ends.measure(t)
	ends[0].Say("burst %d", 128<<10)
	over, most := make(chan struct{}), make(chan int64)
	go func() { // a busy machine takes so long that the sweeper has taken much by the end
		peak := int64(0)
		for bursting := true; bursting; {
			select {
			case <-over:
				bursting = false
			case <-time.After(100 * time.Millisecond):
			}
			if pages, err := smctest.BufferPages(ends[0].PID()); err == nil {
				peak = max(peak, pages)
			}
		}
		most <- peak
	}()
	ends[0].Hear("done")
	close(over)
	peak := <-most
	bursted := time.Now()
	if want := buffers[0] + conns/10*(128<<10)/4; peak < want {
		t.Errorf("buffers after the burst have %d MiB, want at least %d", peak>>20, want>>20)
	}
	var back [2]int64
	smctest.Eventually(t, 6*idleSweep, "all pages of a burst are given back within six sweeps", func() bool {
		for i, p := range ends {
			var err error
			if back[i], err = smctest.BufferPages(p.PID()); err != nil {
				t.Fatal(err)
			}
		}
		// A page that is being filled is kept, one in each direction.
		kept := int64(conns / 10 * 2 * os.Getpagesize())
		return back[0] <= buffers[0]+kept && back[1] <= buffers[1]+kept
	})
	t.Logf("buffers: %d MiB before the burst, %d MiB after it, %d MiB after %v", buffers[0]>>20, peak>>20, back[0]>>20, time.Since(bursted))
	if !ends.quiet(t, 2*time.Second) {
		t.Error("processes do not sleep when pages were given back")
	}

	// One more is as fast as the first.
	server.Say("large")
	server.Hear("done")
	ends.dial(t, 1, conns+1)
	ends[0].Say("transfer %d", 256)
	millis, err := strconv.Atoi(ends[0].Hear("transferred"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("connection %d: 256 MiB there and back in %d ms", conns+1, millis)

	start = time.Now()
	ends[0].Say("close")
	ends[0].Hear("done")
	smctest.Eventually(t, slow, "all descriptors are closed", func() bool {
		for i, p := range ends {
			u, err := smctest.UsageOf(p.PID())
			if err != nil {
				t.Fatal(err)
			}
			// One more is the netlink socket of a dial that was not accepted at once, and asked why.
			if len(u.Descriptors) > descriptors0[i]-warm+1 {
				return false
			}
		}
		return true
	})
	t.Logf("all closed in %v", time.Since(start))
	ends.both("end")
}

// packets is how many packets of RoCEv2 the two have received.
func (ends idleEnds) packets(t *testing.T) (n int) {
	t.Helper()
	for _, p := range ends {
		p.Say("packets")
		count, err := strconv.Atoi(p.Hear("packets"))
		if err != nil {
			t.Fatal(err)
		}
		n += count
	}
	return n
}

// TestSMCRIdle holds 1,000 connections of SMC-R between two processes, in as few link groups as 255
// connections in each allow, and measures their cost when nothing happens on them.
func TestSMCRIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 1,000 connections")
	}
	const conns, warm = 1000, 50
	needLimits(t, conns)
	smctest.CheckLeaks(t)
	port := strconv.Itoa(int(smctest.FreePort(t, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"))))
	server := smctest.Start(t, "idle", t.TempDir(), "", port) // of its own: nor do the two share memory
	addr := server.Hear("listening")
	ends := idleEnds{smctest.Start(t, "idle", t.TempDir(), addr, port), server}

	ends.dial(t, warm, warm)
	memory0, descriptors0, _ := ends.measure(t)
	ends.dial(t, conns-warm, conns)
	memory, descriptors, _ := ends.measure(t)
	for i, name := range idleNames {
		anon := float64(memory[i].Anon-memory0[i].Anon) / (conns - warm)
		fds := float64(descriptors[i]-descriptors0[i]) / (conns - warm)
		t.Logf("%s, per idle connection: %.0f bytes of private memory, %.3f descriptors", name, anon, fds)
		if anon > 16<<10 && !raceEnabled() {
			t.Errorf("%s has %.0f bytes of private memory per idle connection, want at most 16 KiB", name, anon)
		}
		if fds > 1.01 {
			t.Errorf("%s has %.3f descriptors per idle connection, want 1", name, fds)
		}
	}

	// A goroutine in Read of each connection, as a server has it.
	server.Say("serve")
	server.Hear("done")
	before := ends.packets(t)
	if !ends.quiet(t, 2*time.Second) {
		t.Error("processes with idle connections do not sleep")
	}
	// The links of a few groups may have been tested meanwhile, but nothing was said of connections.
	if n := ends.packets(t) - before; n > conns/10 {
		t.Errorf("%d packets while nothing happened", n)
	}

	// They are all there afterwards, and there is quiet again.
	ends[0].Say("burst %d", 1000)
	ends[0].Hear("done")
	if !ends.quiet(t, 2*time.Second) {
		t.Error("processes do not sleep after a burst")
	}
	ends[0].Say("close")
	ends[0].Hear("done")
	for _, p := range []*smctest.Process{server, ends[0]} { // the one that reads has to see all ends first
		p.Say("end")
		p.Hear("done")
	}
}

// TestPagesOfSlowReader has a peer that says late that it has read all. The pages go back all the same.
func TestPagesOfSlowReader(t *testing.T) {
	const size = 512 << 10
	dir := t.TempDir()
	hostWith := func(every time.Duration) *Host {
		h, err := host.New(host.Config{Dir: dir, SweepEvery: every, ReadBuffer: 2 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		return &Host{h: h}
	}
	// The writer finds its connection quiet before the reader's first sweep.
	const every = 150 * time.Millisecond
	writer, reader := hostWith(every), hostWith(3*every)
	w, r := connect(t, writer, reader, ModeSMCD)
	defer w.Close()
	defer r.Close()
	pages := func() int64 {
		n, err := smctest.BufferPages(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := pages()
	if _, err := r.Write([]byte("x")); err != nil { // else the reader's host has nothing to sweep
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if peak := pages(); peak < before+size {
		t.Fatalf("buffers have %d bytes after %d were written, were %d", peak, size, before)
	}
	// Both ends are in this process, so that each page counts twice; one is kept in each direction.
	smctest.Eventually(t, slow, "the pages are given back", func() bool { return pages() <= before+int64(4*os.Getpagesize()) })
}
