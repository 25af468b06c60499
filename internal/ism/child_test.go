package ism

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// Tests that need a second process run this test binary again, with a role in its environment.
const (
	childRole = "GOSMC_ISM_TEST_CHILD"
	childDir  = "GOSMC_ISM_TEST_DIR"
	childPeer = "GOSMC_ISM_TEST_PEER" // 32 hexadecimal digits, the GID of a device of the parent
	childAny  = "GOSMC_ISM_TEST_ANY"  // not empty: Config.AnyUser
)

// A child is a running process. Its output comes line by line.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
}

// startChild starts a process that ends, at the latest, with the test.
func startChild(t testing.TB, binary, role string, attr *syscall.SysProcAttr, env ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(binary), lines: make(chan string, 100)}
	c.cmd.Env = append(os.Environ(), append(env, childRole+"="+role)...)
	c.cmd.SysProcAttr = attr
	c.cmd.Stderr = os.Stderr
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		c.stdin.Close() // the child ends
		timer := time.AfterFunc(patience, func() { c.cmd.Process.Kill() })
		<-read
		c.cmd.Wait()
		timer.Stop()
	})
	return c
}

func (c *child) line() string {
	c.t.Helper()
	return await(c.t, "line from the child", c.lines)
}

func gidText(g wire.ISMGID) string { return fmt.Sprintf("%016x%016x", g.Hi, g.Lo) }

func parseGID(s string) (g wire.ISMGID) {
	fmt.Sscanf(s, "%016x%016x", &g.Hi, &g.Lo)
	return g
}

// runChild is the child's main function. It returns the exit code.
func runChild(role string) int {
	roles := map[string]func() error{"echo": childEcho, "files": childFiles, "user": childUser, "denied": childDenied}
	if err := roles[role](); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// A rig holds the parts of one end of a test connection between processes.
type rig struct {
	p      *Peer
	dmb    *DMB
	window *Window
	rung   chan struct{}
}

// word returns a counter in an element.
func word(mem []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[64])) }

const rigSize = 64 << 10

// newRig makes the DMB and tells the other side its token by a signal.
func newRig(p *Peer) (*rig, error) {
	g := &rig{p: p, rung: make(chan struct{}, 1)}
	var err error
	g.dmb, err = p.NewDMB(rigSize, func() {
		select {
		case g.rung <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, err
	}
	return g, p.Send(binary.BigEndian.AppendUint64(nil, uint64(g.dmb.Token())))
}

func (g *rig) attach(ctx context.Context, signal string) (err error) {
	g.window, err = g.p.Attach(ctx, wire.Token(binary.BigEndian.Uint64([]byte(signal))), rigSize)
	return err
}

func (g *rig) release(clean bool) {
	if g.window != nil {
		g.window.Release(clean)
	}
	g.dmb.Release(clean)
}

// A pipeHandler hands signals to a channel, as many as fit.
type pipeHandler chan string

func (h pipeHandler) PeerUp(*Peer)          {}
func (h pipeHandler) PeerGone(*Peer, error) {}
func (h pipeHandler) Signal(_ *Peer, b []byte) {
	select {
	case h <- string(b):
	default:
	}
}

// childEcho writes back the counter that the parent writes.
func childEcho() error {
	h := make(pipeHandler, 10)
	d, err := Open(Config{Dir: os.Getenv(childDir), Handler: h})
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := d.Peer(ctx, parseGID(os.Getenv(childPeer)))
	if err != nil {
		return err
	}
	g, err := newRig(p)
	if err != nil {
		return err
	}
	if err := g.attach(ctx, <-h); err != nil {
		return err
	}
	fmt.Println("attached")
	go func() {
		for range g.rung {
			word(g.window.Mem()).Store(word(g.dmb.Mem()).Load())
			g.window.Ring()
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// startEcho returns a child and the parent's end of the connection to it.
func startEcho(t testing.TB) (*child, *rig, *recorder) {
	t.Helper()
	checkLeaks(t)
	dir := t.TempDir()
	d, r := openDevice(t, Config{Dir: dir})
	c := startChild(t, "/proc/self/exe", "echo", nil, childDir+"="+dir, childPeer+"="+gidText(d.GID()))
	p := await(t, "PeerUp", r.ups)
	g, err := newRig(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.attach(testContext(t), r.next(t, 0)); err != nil {
		t.Fatal(err)
	}
	if got := c.line(); got != "attached" {
		t.Fatalf("child: %s", got)
	}
	return c, g, r
}

// The lost-wakeup hunter between two processes: each waits for the other, every time.
func TestTwoProcesses(t *testing.T) {
	c, g, r := startEcho(t)
	if got, want := g.p.Cred().PID, c.cmd.Process.Pid; got != want {
		t.Errorf("Cred().PID = %d, want %d", got, want)
	}
	rounds := uint64(20000)
	if testing.Short() {
		rounds = 2000
	}
	for n := uint64(1); n <= rounds; n++ {
		word(g.window.Mem()).Store(n)
		g.window.Ring()
		for word(g.dmb.Mem()).Load() != n {
			await(t, fmt.Sprintf("answer %d", n), g.rung)
		}
	}
	c.stdin.Close()
	if e := await(t, "PeerGone", r.gone); e.err != io.EOF {
		t.Errorf("PeerGone(%v), want EOF", e.err)
	}
	g.release(true)
}

// A process that is killed is missed at once, and the memory that it shared stays readable until it
// is released.
func TestKilledPeer(t *testing.T) {
	c, g, r := startEcho(t)
	word(g.window.Mem()).Store(1)
	g.window.Ring()
	for word(g.dmb.Mem()).Load() != 1 {
		await(t, "answer", g.rung)
	}
	start := time.Now()
	if err := c.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := await(t, "PeerGone", r.gone)
	took := time.Since(start)
	t.Logf("PeerGone %v after SIGKILL", took)
	if e.err != io.EOF {
		t.Errorf("PeerGone(%v), want EOF", e.err)
	}
	if took > 5*time.Second { // milliseconds, on a machine that has time
		t.Errorf("PeerGone %v after SIGKILL, want milliseconds", took)
	}
	if got := word(g.dmb.Mem()).Load(); got != 1 {
		t.Errorf("Mem() has %d, want 1", got)
	}
	word(g.window.Mem()).Store(2)
	for range 1000 {
		g.window.Ring()
	}
	g.release(true)
	// Its socket is still there. The first process to come takes it away.
	if _, err := g.p.dev.Peer(testContext(t), g.p.GID()); !errors.Is(err, ErrDead) {
		t.Errorf("Peer of a killed process = %v, want ErrDead", err)
	}
	// Unless the kernel had not come to close it yet.
	eventually(t, "removal of the socket", func() bool {
		g.p.dev.Peer(testContext(t), g.p.GID())
		list, _ := os.ReadDir(g.p.dev.dir.Path())
		return len(list) == 1
	})
}

// A process that is stopped is no dead one: everything waits, and goes on.
func TestStoppedPeer(t *testing.T) {
	c, g, _ := startEcho(t)
	c.cmd.Process.Signal(syscall.SIGSTOP)
	var status unix.WaitStatus
	if _, err := unix.Wait4(c.cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("child is not stopped: %v, %v", status, err)
	}
	word(g.window.Mem()).Store(7)
	for range 10000 {
		g.window.Ring()
	}
	for g.p.Send([]byte("ignored")) == nil {
	}
	if err := g.p.Send(nil); !errors.Is(err, ErrCongested) {
		t.Errorf("Send to a stopped process = %v, want ErrCongested", err)
	}
	if err := g.p.Err(); err != nil {
		t.Errorf("Err() = %v, want nil", err)
	}
	c.cmd.Process.Signal(syscall.SIGCONT)
	for word(g.dmb.Mem()).Load() != 7 {
		await(t, "answer", g.rung)
	}
	g.release(true)
}

// childFiles lets the process run out of descriptors. The parent sends three tokens.
func childFiles() error {
	h := make(pipeHandler, 10)
	d, err := Open(Config{Dir: os.Getenv(childDir), Handler: h})
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := d.Peer(ctx, parseGID(os.Getenv(childPeer)))
	if err != nil {
		return err
	}
	var tokens [3]wire.Token
	for i := range tokens {
		tokens[i] = wire.Token(binary.BigEndian.Uint64([]byte(<-h)))
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: 100}); err != nil {
		return err
	}
	// A DMB that nobody has attached takes one.
	var dmbs []*DMB
	for {
		dmb, err := p.NewDMB(16<<10, nil)
		if err != nil {
			if !errors.Is(err, unix.EMFILE) {
				return fmt.Errorf("NewDMB without descriptors = %v, want EMFILE", err)
			}
			break
		}
		if dmbs = append(dmbs, dmb); len(dmbs) > 100 {
			return errors.New("more than 100 DMBs with 100 descriptors")
		}
	}
	if got := d.Stats(); got.DMBs != int64(len(dmbs)) || got.Bytes != got.DMBs*16<<10 {
		return fmt.Errorf("Stats() = %+v with %d DMBs", got, len(dmbs))
	}
	// Attaching needs one in this process, for a moment. The device has a few for that.
	w, err := p.Attach(ctx, tokens[0], 16<<10)
	if err != nil {
		return fmt.Errorf("Attach with spare descriptors only = %v", err)
	}
	w.Release(true)
	d.spares.close() // and so that none can be made: others have taken their places
	for {
		if _, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
			break
		}
	}
	if w, err := p.Attach(ctx, tokens[1], 16<<10); !errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("Attach without descriptors = %v, %v; want EMFILE", w, err)
	}
	other, err := Open(Config{Dir: os.Getenv(childDir)})
	if !errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("Open without descriptors = %v, %v; want EMFILE", other, err)
	}
	// A peering needs several: neither the dialler nor the listener may get stuck.
	if _, err := d.Peer(ctx, d.GID()); !errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("Peer without descriptors = %v, want EMFILE", err)
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("Err() = %v, want that the peering stands", err)
	}
	// All is well again when there are descriptors.
	for _, dmb := range dmbs {
		dmb.Release(true)
	}
	if w, err = p.Attach(ctx, tokens[2], 16<<10); err != nil {
		return err
	}
	w.Release(true)
	dmb, err := p.NewDMB(16<<10, nil)
	if err != nil {
		return err
	}
	dmb.Release(true)
	if _, err := d.Peer(ctx, d.GID()); err != nil {
		return fmt.Errorf("Peer with descriptors again = %v", err)
	}
	return nil
}

func TestOutOfDescriptors(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	d, r := openDevice(t, Config{Dir: dir})
	c := startChild(t, "/proc/self/exe", "files", nil, childDir+"="+dir, childPeer+"="+gidText(d.GID()))
	p := await(t, "PeerUp", r.ups)
	var dmbs [3]*DMB
	for i := range dmbs {
		dmbs[i] = mustDMB(t, p, 16<<10, nil)
		if err := p.Send(binary.BigEndian.AppendUint64(nil, uint64(dmbs[i].Token()))); err != nil {
			t.Fatal(err)
		}
	}
	for line := range c.all() {
		t.Error(line)
	}
	await(t, "PeerGone", r.gone)
	for i, dmb := range dmbs {
		if got, want := dmb.seg.dropped, i == 1; got != want {
			t.Errorf("DMB %d: dropped = %t, want %t: only the second could not be received", i, got, want)
		}
		dmb.Release(true)
	}
}

// all waits for the child to end and returns its output.
func (c *child) all() <-chan string {
	lines := make(chan string, 100)
	timer := time.AfterFunc(patience, func() { c.cmd.Process.Kill() })
	err := c.cmd.Wait()
	timer.Stop()
	for len(c.lines) > 0 {
		lines <- <-c.lines
	}
	if err != nil {
		lines <- err.Error()
	}
	close(lines)
	return lines
}

// childUser opens a device, prints its GID, dials the parent's devices and prints the outcomes,
// and waits.
func childUser() error {
	d, err := Open(Config{Dir: os.Getenv(childDir), AnyUser: os.Getenv(childAny) != ""})
	if err != nil {
		return err
	}
	defer d.Close()
	fmt.Println(gidText(d.GID()))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for gid := range strings.FieldsSeq(os.Getenv(childPeer)) {
		_, err := d.Peer(ctx, parseGID(gid))
		switch {
		case err == nil:
			fmt.Println("peer")
		case errors.Is(err, ErrOtherUser):
			fmt.Println("other user")
		default:
			fmt.Println("error:", err)
		}
	}
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// Processes of different users are peers only if both want that.
func TestOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to run a process of another user; see TestCheckUser")
	}
	checkLeaks(t)
	const nobody = 65534
	// Others can see neither the directory of the test nor the directory of its binary.
	dir, err := os.MkdirTemp("", "gosmc-ism")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "child")
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, exe, 0o755); err != nil {
		t.Fatal(err)
	}
	open, _ := openDevice(t, Config{Dir: dir, AnyUser: true}) // makes the directory of sockets, for all
	private, _ := openDevice(t, Config{Dir: dir})
	// Its socket can be connected to in spite of its mode, as if someone had changed that.
	exposed, _ := openDevice(t, Config{Dir: dir})
	if err := os.Chmod(filepath.Join(dir, socketsDir, exposed.GID().String()), 0o666); err != nil {
		t.Fatal(err)
	}
	peers := childPeer + "=" + gidText(open.GID()) + " " + gidText(private.GID()) + " " + gidText(exposed.GID())
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	for _, tt := range []struct {
		any                     string
		open, private, exposed  string // the directories that the child sees
		fromOpen, fromPrivate   error  // the errors of these devices when they dial the child
		refusedOpen, refusedExp uint64
	}{
		{"yes", "peer", "other user", "other user", nil, ErrOtherUser, 0, 1},
		{"", "other user", "other user", "other user", ErrOtherUser, ErrOtherUser, 0, 2},
	} {
		c := startChild(t, binary, "user", attr, childDir+"="+dir, peers, childAny+"="+tt.any)
		gid := parseGID(c.line())
		for _, want := range []string{tt.open, tt.private, tt.exposed} {
			if got := c.line(); got != want {
				t.Errorf("child with any %q: %s, want %s", tt.any, got, want)
			}
		}
		// Root may connect to every socket, whatever its mode.
		if _, err := open.Peer(testContext(t), gid); !errors.Is(err, tt.fromOpen) {
			t.Errorf("any %q: Peer = %v, want %v", tt.any, err, tt.fromOpen)
		}
		if _, err := private.Peer(testContext(t), gid); !errors.Is(err, tt.fromPrivate) {
			t.Errorf("any %q: Peer = %v, want %v", tt.any, err, tt.fromPrivate)
		}
	}
	if s := exposed.Stats(); s.OtherUsers == 0 || s.PeersAccepted != 0 {
		t.Errorf("Stats() = %+v, want other users counted and no peer", s)
	}
	if s := private.Stats(); s.OtherUsers == 0 {
		t.Errorf("Stats() = %+v, want other users counted", s)
	}
	// A user without the right to write there.
	sealed := filepath.Join(dir, "sealed")
	if err := os.Mkdir(sealed, 0o555); err != nil {
		t.Fatal(err)
	}
	c := startChild(t, binary, "user", attr, childDir+"="+sealed)
	if got := c.line(); !strings.Contains(got, "permission denied") {
		t.Errorf("child in a directory it may not write: %s, want permission denied", got)
	}
	if err := os.Mkdir(filepath.Join(sealed, socketsDir), 0o755); err != nil { // root's, to be read by all
		t.Fatal(err)
	}
	c = startChild(t, binary, "user", attr, childDir+"="+sealed)
	if got := c.line(); !strings.Contains(got, "permission denied") {
		t.Errorf("child in a directory it may not write: %s, want permission denied", got)
	}
}

// BenchmarkTwoProcesses is a round trip in which both processes sleep, through bell goroutine and
// channel.
func BenchmarkTwoProcesses(b *testing.B) {
	_, g, _ := startEcho(b)
	var n uint64
	for b.Loop() {
		n++
		word(g.window.Mem()).Store(n)
		g.window.Ring()
		for word(g.dmb.Mem()).Load() != n {
			<-g.rung
		}
	}
	g.release(true)
}
