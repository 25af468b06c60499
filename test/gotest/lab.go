package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Times.
const (
	pollTime   = 20 * time.Millisecond // between two looks at a state without a notification
	listenTime = time.Minute           // that a server may take to listen
	stopTime   = 20 * time.Second      // that it may take to end
)

// A lab is where a program does its work in one way. Its methods end the work when something is
// wrong, so a program's function reads like a script.
type lab struct {
	ctx      context.Context
	gosmc    string
	built    map[string]string // the files of programs
	dir      string
	rundir   string
	disabled bool
	servers  []*server
	out      outcome
}

// An outcome is the result of a program in one way.
type outcome struct {
	results    map[string]string
	moved, tcp int      // connections of servers
	reasons    []string // why some stayed TCP
	err        error
}

// A failure is the value that the methods of a lab panic with; try catches it.
type failure struct{ error }

func (l *lab) failf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func (l *lab) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// do runs a script, counts the connections of its servers, and stops them.
func (l *lab) do(script func(*lab)) *outcome {
	l.out.results = make(map[string]string)
	l.out.err = l.try(func() {
		script(l)
		l.count()
	})
	for _, s := range l.servers {
		if err := s.stop(); err != nil && l.out.err == nil {
			l.out.err = err
		}
	}
	if l.out.err != nil {
		for _, s := range l.servers {
			if text := lastOf(s.output.String(), 1000); text != "" {
				l.out.err = fmt.Errorf("%w\n%s says: %s", l.out.err, s.name, text)
			}
		}
	}
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

// result notes a value that has to be the same in both ways.
func (l *lab) result(name string, value any) { l.out.results[name] = fmt.Sprint(value) }

// environ is the environment of programs in this way. Short connections are to be moved, too.
func (l *lab) environ() []string {
	var env []string
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "GOSMC_") && name != "LD_PRELOAD" {
			env = append(env, v)
		}
	}
	env = append(env, "GOSMC_DIR="+l.rundir, "GOSMC_SHORT_AFTER=off")
	env = append(env, "HOME="+l.dir, "XDG_CONFIG_HOME="+l.dir, "XDG_DATA_HOME="+l.dir)
	if l.disabled {
		env = append(env, "GOSMC_DISABLED=1")
	}
	return env
}

// command is a program that was compiled, or one of the machine, which runs under 'gosmc run'.
func (l *lab) command(name string, args ...string) *exec.Cmd {
	words := []string{l.built[name]}
	if words[0] == "" {
		words = []string{l.gosmc, "run", "--", name}
	}
	words = append(words, args...)
	cmd := exec.CommandContext(l.ctx, words[0], words[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = l.dir, l.environ(), stopTime
	return cmd
}

// client runs a program and returns what it prints. It has to succeed.
func (l *lab) client(name string, args ...string) string { return l.finish(l.command(name, args...)) }

func (l *lab) finish(cmd *exec.Cmd) string {
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		l.failf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, lastOf(output.String(), 1500))
	}
	return output.String()
}

// A server is a process that runs until it is stopped.
type server struct {
	name   string
	cmd    *exec.Cmd
	output bytes.Buffer // to be read when it has ended
	ended  chan struct{}
}

// serve starts a server and waits until it listens on all ports.
func (l *lab) serve(ports []int, name string, args ...string) {
	s := &server{name: name, cmd: l.command(name, args...), ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	l.must(s.cmd.Start())
	go func() {
		s.cmd.Wait()
		close(s.ended)
	}()
	l.servers = append([]*server{s}, l.servers...) // the last one is stopped first
	for deadline := time.Now().Add(listenTime); ; {
		waiting := 0
		for _, port := range ports {
			if !listening(port) {
				waiting = port
			}
		}
		if waiting == 0 {
			return
		}
		select {
		case <-s.ended:
			l.failf("%s has ended: %v", name, s.cmd.ProcessState)
		case <-l.ctx.Done():
			l.failf("%s: %w", name, l.ctx.Err())
		case <-time.After(pollTime):
		}
		if time.Now().After(deadline) {
			l.failf("%s does not listen on port %d", name, waiting)
		}
	}
}

// stop ends a server, and says if it has to be killed for that.
func (s *server) stop() error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
		return nil
	case <-time.After(stopTime):
	}
	s.cmd.Process.Kill()
	<-s.ended
	return fmt.Errorf("%s had to be killed", s.name)
}

// listening asks the kernel, so that the server has no connection of this process.
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

// port returns a port that is free now.
func (l *lab) port() int {
	s, err := net.Listen("tcp", "127.0.0.1:0")
	l.must(err)
	defer s.Close()
	return s.Addr().(*net.TCPAddr).Port
}

// file writes a file of the lab and returns its path.
func (l *lab) file(name, text string) string {
	path := filepath.Join(l.dir, name)
	l.must(os.MkdirAll(filepath.Dir(path), 0o755))
	l.must(os.WriteFile(path, []byte(text), 0o644))
	return path
}

// A statsReport is the part of the output of 'gosmc stats --json' that is used here.
type statsReport struct {
	Hosts []struct {
		PID      int
		Counters struct {
			Connections map[string]int
			Fallbacks   []struct {
				Reason string
				Count  int
			}
		}
	}
}

// count adds up the connections that the servers have had.
func (l *lab) count() {
	cmd := exec.CommandContext(l.ctx, l.gosmc, "stats", "--json")
	cmd.Env = l.environ()
	text, err := cmd.Output() // it may say that there is no run directory
	var r statsReport
	if parse := json.Unmarshal(text, &r); parse != nil && !l.disabled {
		l.must(errors.Join(parse, err))
	}
	pids := make(map[int]bool)
	for _, s := range l.servers {
		pids[s.cmd.Process.Pid] = true
	}
	l.out.add(r, pids)
}

// add adds up the connections of the processes.
func (o *outcome) add(r statsReport, pids map[int]bool) {
	for _, h := range r.Hosts {
		if !pids[h.PID] {
			continue
		}
		for mode, n := range h.Counters.Connections {
			if mode == "TCP" {
				o.tcp += n
			} else {
				o.moved += n
			}
		}
		for _, f := range h.Counters.Fallbacks {
			o.reasons = append(o.reasons, fmt.Sprintf("%d: %s", f.Count, f.Reason))
		}
	}
}
