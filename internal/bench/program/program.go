// Package program has the work of other projects' programs in the rows of gosmc bench, bare and under
// 'gosmc run'. The programs know nothing of us.
package program

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/run/inspect"
)

// Transport is 'gosmc run': programs as they are, beside tcp, which is the same programs bare.
// Where a row measures several things, the name of a transport has one of them behind it: "run
// get".
const Transport = "run"

// nobody is the user that servers run as which refuse to be root's.
const nobody = 65534

// A Result is one round of a work.
type Result struct {
	Rate    float64       // operations per second
	Bytes   float64       // payload bytes per second, where known
	P50     time.Duration // of the client's operations, where known
	P99     time.Duration // likewise
	CPU     float64       // processor seconds of all processes per second
	CPUEach float64       // processor seconds of all processes for an operation
	Calls   float64       // system calls of the servers for an operation, if the work counts them
	Mode    string        // of the connections, in words
}

// A Work is the work of other projects' programs in a round of a row. It does not change.
type Work struct {
	needs    []string // commands, or patterns of files
	packages string   // of Debian, which have them
	run      func(l *lab, what string) (Result, error)
	counts   bool // system calls
	short    bool // connections that are short stay TCP, as they do by default
}

// Counted is the work with the system calls of the servers counted. It takes longer then.
func (w *Work) Counted() *Work {
	counted := *w
	counted.counts = true
	return &counted
}

// Missing names the packages to install, "" if nothing is missing.
func (w *Work) Missing() string {
	for _, need := range w.needs {
		if pathOf(need) == "" {
			return fmt.Sprintf("%s is not installed: apt-get install %s", need, w.packages)
		}
	}
	return ""
}

// pathOf returns the path of a command, of one that only root has in its path, or of the last
// file that matches a pattern.
func pathOf(need string) string {
	if strings.Contains(need, "/") {
		if files, _ := filepath.Glob(need); len(files) > 0 {
			return files[len(files)-1]
		}
		return ""
	}
	if path, err := exec.LookPath(need); err == nil {
		return path
	}
	path := filepath.Join("/usr/sbin", need)
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		return ""
	}
	return path
}

// A Home is shared by the rounds of programs: a directory, and files that are costly to
// make. It is for one goroutine.
type Home struct {
	dir   string
	gosmc string // this program, where other users can execute it

	built map[string]bool // the Go programs that are up to date, see goSource
}

// NewHome makes the directory, and has this process inherit the supervisors that clients leave behind. The
// caller closes it. Errors are the kernel's.
func NewHome() (h *Home, err error) {
	h = &Home{}
	if h.dir, err = os.MkdirTemp("", "bench"); err != nil { // a short name: sockets
		return nil, err
	}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	if err := os.Chmod(h.dir, 0o755); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h.gosmc = filepath.Join(h.dir, "gosmc")
	b, err := os.ReadFile(self)
	if err != nil {
		return nil, err
	}
	if err := child.WriteProgram(h.gosmc, b); err != nil {
		return nil, err
	}
	// Supervisors are nobody's children: only the process that inherits them knows their time.
	return h, os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// Close removes the directory with all that is in it.
func (h *Home) Close() { os.RemoveAll(h.dir) }

// A lab is where the programs of one round run.
type lab struct {
	ctx     context.Context
	home    *Home
	span    time.Duration // of a measurement, by the plan
	dir     string        // of this round; everybody may write there
	under   bool          // 'gosmc run'
	smc     bool          // 'gosmc go build', of a Go program
	place   *Place        // nil: both ends are programs of this network namespace
	work    *Work
	others  map[int]process // those that were there before
	servers []*server
}

// A server is one that was started.
type server struct {
	cmd    *exec.Cmd
	output bytes.Buffer // to be read when it has ended
	ended  chan struct{}
}

// Measure measures one round of a work over a transport, tcp, [Transport] or [Compiled], with or without
// something behind it. place is nil if the programs run beside this one. span is how long the plan
// measures. Errors say why there is no result.
func (h *Home) Measure(
	ctx context.Context, w *Work, place *Place, transport string, span time.Duration,
) (r Result, err error) {
	l := &lab{ctx: ctx, home: h, work: w, place: place, span: span, others: processes()}
	way, what, _ := strings.Cut(transport, " ")
	l.under, l.smc = way == Transport, way == Compiled
	if l.dir, err = os.MkdirTemp(h.dir, "r"); err != nil {
		return r, err
	}
	defer os.RemoveAll(l.dir)
	if err := os.Chmod(l.dir, 0o777); err != nil {
		return r, err
	}
	for _, dir := range l.rundirs() {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return r, err
		}
	}
	defer l.stop()
	r, err = w.run(l, what)
	switch {
	case l.under:
		r.Mode = "gosmc run"
	case l.smc:
		r.Mode = "SMC-D"
	default:
		r.Mode = "TCP"
	}
	return r, err
}

// rundirs are the run directories of a round: of all programs, or of the servers and of the clients
// where these are in different containers.
func (l *lab) rundirs() []string {
	dirs := []string{filepath.Join(l.dir, "g"), filepath.Join(l.dir, "c")}
	if l.place == nil {
		return dirs[:1]
	}
	return dirs
}

// seconds is how long a client works that counts in whole seconds.
func (l *lab) seconds() int { return max(1, int(2*l.span/time.Second)) }

// scale makes the number of operations that is right for a second fit the plan.
func (l *lab) scale(perSecond int) int {
	return max(1, int(float64(perSecond)*2*l.span.Seconds()))
}

// command is a program as the round runs it: bare, or under 'gosmc run'.
func (l *lab) command(name string, args ...string) *exec.Cmd {
	words := append([]string{cmp.Or(pathOf(name), name)}, args...)
	if l.under {
		words = append([]string{l.home.gosmc, "run", "--"}, words...)
	}
	return l.bare(words[0], words[1:]...)
}

// on is a command on one processor; "" is any.
func (l *lab) on(processor, name string, args ...string) *exec.Cmd {
	cmd := l.command(name, args...)
	if processor == "" {
		return cmd
	}
	pinned := l.bare("taskset", append([]string{"-c", processor}, cmd.Args...)...)
	pinned.Args[3] = cmd.Path
	return pinned
}

// bare is a program that runs without us in every round.
func (l *lab) bare(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(l.ctx, cmp.Or(pathOf(name), name), args...)
	cmd.Dir = l.dir
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "GOSMC_RUN", "GOSMC_DISABLED", "LD_PRELOAD", "GOSMC_DIR", "GOSMC_SHORT_AFTER":
		default:
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "GOSMC_DIR="+l.rundirs()[0])
	if !l.work.short {
		cmd.Env = append(cmd.Env, "GOSMC_SHORT_AFTER=off")
	}
	cmd.WaitDelay = child.Patience
	return cmd
}

// asNobody has a command run as somebody else than root. All of a round are.
func (l *lab) asNobody(cmd *exec.Cmd) *exec.Cmd {
	if os.Geteuid() == 0 {
		for _, dir := range l.rundirs() {
			os.Chown(dir, nobody, nobody)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	cmd.Env = append(cmd.Env, "HOME="+cmd.Dir, "USER=nobody")
	return cmd
}

// start starts a server.
func (l *lab) start(cmd *exec.Cmd) (*server, error) {
	s := &server{cmd: cmd, ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = &s.output
	}
	cmd.Stderr = &s.output
	if err := l.begin(cmd, false); err != nil {
		return nil, err
	}
	l.servers = append(l.servers, s)
	go func() {
		cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// begin starts a program, in a container if there are any.
func (l *lab) begin(cmd *exec.Cmd, client bool) error {
	if l.place != nil {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = new(syscall.SysProcAttr)
		}
		l.place.Begin(cmd.SysProcAttr)
		if client {
			cmd.Env = append(cmd.Env, "GOSMC_DIR="+l.rundirs()[1])
		}
	}
	return l.place.enter(client, cmd.Start)
}

// serve starts a server and waits until it listens on a port.
func (l *lab) serve(port int, cmd *exec.Cmd) error {
	s, err := l.start(cmd)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(child.Patience); !listensOn(l.place, port); {
		select {
		case <-s.ended:
			return fmt.Errorf("%s has ended, %v: %s", cmd.Path, cmd.ProcessState, s.output.String())
		case <-l.ctx.Done():
			return l.ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not listen", cmd.Path)
		}
	}
	return nil
}

// stop ends the servers, and reaps the processes that they have left to us.
func (l *lab) stop() {
	for _, s := range l.servers {
		s.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, s := range l.servers {
		select {
		case <-s.ended:
		case <-time.After(child.Patience):
			s.cmd.Process.Kill()
			<-s.ended
		}
	}
	orphans(child.Patience, l.others)
}

// An account is the cost of a client, with all processes that serve it.
type account struct {
	output  string
	seconds float64
	cpu     float64 // processor seconds of all processes
	calls   uint64  // system calls of the servers, if the work counts them
}

// client measures a client of the server on a port, and checks the mode of its connections.
func (l *lab) client(port int, cmd *exec.Cmd) (account, error) {
	if l.place != nil { // sockets of other network namespaces are not seen from here
		a, err := l.measure(cmd)
		if err == nil {
			err = l.checkHosts()
		}
		return a, err
	}
	done, seen := make(chan struct{}), make(chan bool, 1)
	go func() { seen <- seesMoved(port, done) }()
	a, err := l.measure(cmd)
	close(done)
	if moved := <-seen; err == nil && moved != l.under {
		err = fmt.Errorf("connections were moved: %t", moved)
	}
	return a, err
}

// seesMoved looks now and then, until it has seen a connection to a port that was moved, or is done.
func seesMoved(port int, done <-chan struct{}) bool {
	for {
		select {
		case <-done:
			return false
		case <-time.After(50 * time.Millisecond):
		}
		list, _ := inspect.Connections()
		for _, c := range list {
			if int(c.Peer.Port()) == port {
				return true
			}
		}
	}
}

// measure runs a program to its end and counts the processor time of the servers meanwhile, of the
// client, and of its supervisor.
func (l *lab) measure(cmd *exec.Cmd) (a account, err error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	before := processes()
	if l.work.counts {
		calls, err := countCalls(slices.Collect(maps.Keys(before)))
		if err != nil {
			return a, err
		}
		defer calls.close()
		defer func() {
			if err == nil {
				a.calls, err = calls.total()
			}
		}()
	}
	began := time.Now()
	if err = l.begin(cmd, true); err == nil {
		err = cmd.Wait()
	}
	a.seconds = time.Since(began).Seconds()
	if err != nil {
		return a, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	gone := orphans(child.Patience, before)
	after := processes()
	a.output = stdout.String()
	a.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() + gone
	for pid, p := range after {
		a.cpu += p.cpu - before[pid].cpu
	}
	return a, nil
}
