package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A lab is where a program does its work in one way. Its methods end the work when something is
// wrong, so a program's function reads like a script.
type lab struct {
	ctx     context.Context
	way     way
	dir     string
	gosmc   string
	seed    uint
	rundir  string
	dirty   bool       // supervisors may be killed, and leave their sockets
	others  string     // the run directory of nobody
	mu      sync.Mutex // of servers
	servers []*server
	watch   *watch
	out     outcome
}

// A failure is the value that the methods of a lab panic with; do catches it.
type failure struct{ error }

// Times.
const (
	pollTime   = 20 * time.Millisecond // between two looks at a state without a notification
	listenTime = 40 * time.Second      // that a server may take to listen
	stopTime   = 20 * time.Second      // that it may take to end
)

func newLab(ctx context.Context, t *task) (*lab, error) {
	l := &lab{ctx: ctx, way: t.Way, dir: t.Dir, gosmc: t.Gosmc, seed: t.Seed}
	// Its name is short: sockets.
	var err error
	if l.rundir, err = os.MkdirTemp("", "run"); err != nil {
		return nil, err
	}
	l.others = l.rundir + "n"
	if err := os.Mkdir(l.others, 0o700); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(l.others, nobody, nobody); err != nil {
			return nil, err
		}
	}
	l.out = outcome{Results: map[string]string{}, Moved: map[string]int{}, Notes: []string{}}
	l.watch = newWatch(l)
	return l, nil
}

// do runs a script.
func (l *lab) do(script func(*lab)) *outcome {
	defer os.RemoveAll(l.rundir)
	defer os.RemoveAll(l.others)
	err := l.try(func() {
		go l.watch.run()
		script(l)
	})
	l.watch.stop()
	for _, s := range l.servers {
		if stopErr := s.stop(); err == nil && stopErr != nil {
			err = stopErr
		}
	}
	if err == nil {
		err = l.try(l.leavesNothing)
	}
	if err != nil {
		l.out.Error = err.Error()
		for _, s := range l.servers {
			if text := lastOf(s.output.String(), 600); text != "" {
				l.out.Error += fmt.Sprintf("\n%s says: %s", s.name, text)
			}
		}
	}
	l.out.Moved = l.watch.modes()
	return &l.out
}

func (l *lab) try(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			err = f.error
		}
	}()
	f()
	return nil
}

func (l *lab) failf(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

func (l *lab) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// result notes a value that has to be the same in all ways.
func (l *lab) result(name string, value any) { l.out.Results[name] = fmt.Sprint(value) }

func (l *lab) note(format string, args ...any) {
	l.out.Notes = append(l.out.Notes, fmt.Sprintf(format, args...))
}

// environ is the environment of programs in this way.
func (l *lab) environ() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "GOSMC_DIR", "GOSMC_RUN", "GOSMC_DISABLED", "GOSMC_SHORT_AFTER", "GOSMC_RUN_SHAKE", "LD_PRELOAD", "LANG", "LC_ALL", "TZ":
		default:
			env = append(env, v)
		}
	}
	env = append(env, "GOSMC_DIR="+l.rundir, "GOSMC_SHORT_AFTER=off", "LC_ALL=C.UTF-8", "TZ=UTC") // short connections are to be moved as well
	if l.way == disabled {
		env = append(env, "GOSMC_DISABLED=1")
	}
	if l.way == shaken {
		env = append(env, "GOSMC_RUN_SHAKE="+strconv.FormatUint(uint64(l.seed), 10))
	}
	return env
}

// command is a program with arguments, as this way runs it.
func (l *lab) command(name string, args ...string) *exec.Cmd {
	path := found(name)
	if path == "" {
		l.failf("%s is not installed", name)
	}
	words := append([]string{path}, args...)
	if l.way != bare {
		words = append([]string{l.gosmc, "run", "--"}, words...)
	}
	return l.plain(words[0], words[1:]...)
}

// plain is a program with arguments as it is, in every way.
func (l *lab) plain(name string, args ...string) *exec.Cmd {
	path := found(name)
	if path == "" {
		l.failf("%s is not installed", name)
	}
	cmd := exec.CommandContext(l.ctx, path, args...)
	cmd.Dir = l.dir
	cmd.Env = l.environ()
	cmd.WaitDelay = stopTime
	return cmd
}

// nobody is the user that servers run as which refuse to be root's.
const nobody = 65534

// asNobody has a command run as a user other than root, with a run directory of its own.
func (l *lab) asNobody(cmd *exec.Cmd) *exec.Cmd {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	cmd.Env = append(cmd.Env, "GOSMC_DIR="+l.others, "HOME="+l.dir, "USER=nobody")
	return cmd
}

// finish runs a command and returns its standard output. It has to succeed.
func (l *lab) finish(cmd *exec.Cmd) string {
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		l.failf("%s: %w%s\n%s\n%s", strings.Join(cmd.Args, " "), err, l.late(), lastOf(stdout.String(), 1500), lastOf(stderr.String(), 1500))
	}
	return stdout.String()
}

func (l *lab) late() string {
	if l.ctx.Err() != nil {
		return " (out of time)"
	}
	return ""
}

// client runs a program in this way and returns its output.
func (l *lab) client(name string, args ...string) string { return l.finish(l.command(name, args...)) }

// helper runs a program that is no part of the test: one that makes files.
func (l *lab) helper(name string, args ...string) string { return l.finish(l.plain(name, args...)) }

// A server is a process that runs until it is stopped.
type server struct {
	name   string
	cmd    *exec.Cmd
	output bytes.Buffer // of both kinds; to be read when it has ended
	ended  chan struct{}
	signal syscall.Signal // that ends it
}

// start starts a command that runs on.
func (l *lab) start(cmd *exec.Cmd) *server {
	s := &server{name: filepath.Base(cmd.Path), cmd: cmd, ended: make(chan struct{}), signal: syscall.SIGTERM}
	if cmd.Stdout == nil {
		cmd.Stdout = &s.output
	}
	cmd.Stderr = &s.output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	l.must(cmd.Start())
	go func() {
		cmd.Wait()
		close(s.ended)
	}()
	l.mu.Lock()
	l.servers = append([]*server{s}, l.servers...) // the last one is stopped first
	l.mu.Unlock()
	return s
}

// serve starts a server in this way and waits until it listens on a port.
func (l *lab) serve(port int, name string, args ...string) *server {
	return l.serveCommand(port, l.command(name, args...))
}

func (l *lab) serveCommand(port int, cmd *exec.Cmd) *server {
	s := l.start(cmd)
	if l.way != bare && len(cmd.Args) > 3 {
		s.name = filepath.Base(cmd.Args[3])
	}
	l.awaitListener(port, s)
	return s
}

func (l *lab) awaitListener(port int, s *server) {
	for deadline := time.Now().Add(listenTime); ; {
		if listening(port) {
			return
		}
		select {
		case <-s.ended:
			l.failf("%s has ended: %v", s.name, s.cmd.ProcessState)
		case <-l.ctx.Done():
			l.failf("%s: %w", s.name, l.ctx.Err())
		case <-time.After(pollTime):
		}
		if time.Now().After(deadline) {
			l.failf("%s does not listen on port %d", s.name, port)
		}
	}
}

// listening asks the kernel, so that the server sees nobody come.
func listening(port int) bool {
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 4 || fields[3] != "0A" {
				continue
			}
			_, p, _ := strings.Cut(fields[1], ":")
			if n, err := strconv.ParseUint(p, 16, 16); err == nil && int(n) == port {
				return true
			}
		}
	}
	return false
}

// stop ends a server, and says if it has to be killed for that.
func (s *server) stop() error {
	s.cmd.Process.Signal(s.signal)
	select {
	case <-s.ended:
		return nil
	case <-time.After(stopTime):
	}
	s.cmd.Process.Kill()
	<-s.ended
	return fmt.Errorf("%s had to be killed", s.name)
}

// wait waits for it to end by itself, with status 0.
func (s *server) wait(l *lab) error {
	select {
	case <-s.ended:
	case <-l.ctx.Done():
		return fmt.Errorf("%s: %w", s.name, l.ctx.Err())
	}
	if !s.cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %v", s.name, s.cmd.ProcessState)
	}
	return nil
}

// port returns a free port for a server, none that the kernel would give to a client meanwhile.
func (l *lab) port() int {
	for range 100 {
		if port := 20_000 + rand.IntN(12_000); isFree(port) {
			return port
		}
	}
	l.failf("no port is free from 20000 to 31999")
	return 0
}

// isFree reports whether a server can have a port at any address, also one that does not set
// SO_REUSEADDR: nobody was connected to the port lately.
func isFree(port int) bool {
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) }), err)
	}}
	s, err := c.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return false
	}
	s.Close()
	return true
}

// leavesNothing waits for the supervisors to end: they have nobody left to serve.
func (l *lab) leavesNothing() {
	if l.way == bare || l.dirty {
		return
	}
	for deadline := time.Now().Add(stopTime); ; {
		var left []string
		for _, dir := range []string{l.rundir, l.others} {
			filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
				if err == nil && info.Mode()&(os.ModeSocket|os.ModeSymlink) != 0 {
					left = append(left, filepath.Base(path))
				}
				return nil
			})
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			l.failf("the supervisors have left %v", left)
		}
		time.Sleep(pollTime)
	}
}

// file writes a file of the lab and returns its path. Everybody may read it.
func (l *lab) file(name, text string) string {
	path := filepath.Join(l.dir, name)
	l.must(os.MkdirAll(filepath.Dir(path), 0o755))
	l.must(os.WriteFile(path, []byte(text), 0o644))
	return path
}

// random writes a file of bytes that are the same in all ways.
func (l *lab) random(name string, size int) string {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{1, byte(size), byte(size >> 8), byte(size >> 16)}).Read(b)
	return l.file(name, string(b))
}

// sum returns the SHA-256 of a file.
func (l *lab) sum(path string) string {
	f, err := os.Open(path)
	l.must(err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	l.must(err)
	return hex.EncodeToString(h.Sum(nil))
}

func sumOf(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

func isExit(err error, code int) bool {
	var e *exec.ExitError
	return errors.As(err, &e) && e.ExitCode() == code
}
