package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/run/inspect"
)

// transportRun is 'gosmc run': programs as they are, beside tcp, which is the same programs bare.
// Where a row measures several things, the name of a transport has one of them behind it: "run
// get".
const transportRun = "run"

// nobody is the user that servers run as which refuse to be root's.
const nobody = 65534

// A programWork is the work of other projects' programs in a round of a row.
type programWork struct {
	needs    []string // commands, or patterns of files
	packages string   // of Debian, which have them
	run      func(l *programLab, what string) (roundResult, error)
}

// missing names the packages to install, "" if nothing is missing.
func (w *programWork) missing() string {
	for _, need := range w.needs {
		if programPath(need) == "" {
			return fmt.Sprintf("%s is not installed: apt-get install %s", need, w.packages)
		}
	}
	return ""
}

// programPath returns the path of a command, of one that only root has in its path, or of the last
// file that matches a pattern.
func programPath(need string) string {
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

// A programHome is shared by the rounds of programs: a directory, and files that are costly to
// make.
type programHome struct {
	dir   string
	gosmc string // this program, where other users can execute it
}

func newProgramHome() (h *programHome, err error) {
	h = &programHome{}
	if h.dir, err = os.MkdirTemp("", "bench"); err != nil { // a short name: sockets
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
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
	if err := os.WriteFile(h.gosmc, b, 0o755); err != nil {
		return nil, err
	}
	// Supervisors are nobody's children: only the process that inherits them knows their time.
	return h, os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

func (h *programHome) close() { os.RemoveAll(h.dir) }

// A programLab is where the programs of one round run.
type programLab struct {
	ctx     context.Context
	home    *programHome
	plan    Plan
	dir     string // of this round; everybody may write there
	under   bool   // 'gosmc run'
	servers []*programServer
}

// A programServer is one that was started.
type programServer struct {
	cmd    *exec.Cmd
	output bytes.Buffer // to be read when it has ended
	ended  chan struct{}
}

// measureProgram measures one round of a row of programs.
func (s *stage) measureProgram(ctx context.Context, b *Row, transport string, plan Plan) (r roundResult, err error) {
	if missing := b.program.missing(); missing != "" {
		return r, errors.New(missing)
	}
	if s.home == nil {
		if s.home, err = newProgramHome(); err != nil {
			return r, err
		}
	}
	l := &programLab{ctx: ctx, home: s.home, plan: plan}
	way, what, _ := strings.Cut(transport, " ")
	l.under = way == transportRun
	if l.dir, err = os.MkdirTemp(s.home.dir, "r"); err != nil {
		return r, err
	}
	defer os.RemoveAll(l.dir)
	if err := os.Chmod(l.dir, 0o777); err != nil {
		return r, err
	}
	if err := os.Mkdir(l.rundir(), 0o700); err != nil {
		return r, err
	}
	defer l.stop()
	r, err = b.program.run(l, what)
	r.mode = "TCP"
	if l.under {
		r.mode = "gosmc run"
	}
	return r, err
}

// rundir is the run directory of a round.
func (l *programLab) rundir() string { return filepath.Join(l.dir, "g") }

// seconds is how long a client works that counts in whole seconds.
func (l *programLab) seconds() int { return max(1, int(2*l.plan.Measure/time.Second)) }

// scale makes the number of operations that is right for a second fit the plan.
func (l *programLab) scale(perSecond int) int {
	return max(1, int(float64(perSecond)*2*l.plan.Measure.Seconds()))
}

// command is a program as the round runs it: bare, or under 'gosmc run'.
func (l *programLab) command(name string, args ...string) *exec.Cmd {
	words := append([]string{cmp.Or(programPath(name), name)}, args...)
	if l.under {
		words = append([]string{l.home.gosmc, "run", "--"}, words...)
	}
	return l.bare(words[0], words[1:]...)
}

// on is a command on one processor; "" is any.
func (l *programLab) on(processor, name string, args ...string) *exec.Cmd {
	cmd := l.command(name, args...)
	if processor == "" {
		return cmd
	}
	pinned := l.bare("taskset", append([]string{"-c", processor}, cmd.Args...)...)
	pinned.Args[3] = cmd.Path
	return pinned
}

// bare is a program that runs without us in every round.
func (l *programLab) bare(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(l.ctx, cmp.Or(programPath(name), name), args...)
	cmd.Dir = l.dir
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "GOSMC_RUN", "GOSMC_DISABLED", "LD_PRELOAD", "GOSMC_DIR", "GOSMC_SHORT_AFTER":
		default:
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "GOSMC_DIR="+l.rundir(), "GOSMC_SHORT_AFTER=off")
	cmd.WaitDelay = child.Patience
	return cmd
}

// asNobody has a command run as somebody else than root. All of a round are.
func (l *programLab) asNobody(cmd *exec.Cmd) *exec.Cmd {
	if os.Geteuid() == 0 {
		os.Chown(l.rundir(), nobody, nobody)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	cmd.Env = append(cmd.Env, "HOME="+cmd.Dir, "USER=nobody")
	return cmd
}

// start starts a server.
func (l *programLab) start(cmd *exec.Cmd) (*programServer, error) {
	s := &programServer{cmd: cmd, ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = &s.output
	}
	cmd.Stderr = &s.output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	l.servers = append(l.servers, s)
	go func() {
		cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// serve starts a server and waits until it listens on a port.
func (l *programLab) serve(port int, cmd *exec.Cmd) error {
	s, err := l.start(cmd)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(child.Patience); !listensOn(port); {
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
func (l *programLab) stop() {
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
	orphans(child.Patience, nil)
}

// An account is the cost of a client, with all processes that serve it.
type account struct {
	output  string
	seconds float64
	cpu     float64 // processor seconds of all processes
}

// client measures a client of the server on a port, and checks the mode of its connections.
func (l *programLab) client(port int, cmd *exec.Cmd) (account, error) {
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
func (l *programLab) measure(cmd *exec.Cmd) (a account, err error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	before := processes()
	began := time.Now()
	err = cmd.Run()
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
