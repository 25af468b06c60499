package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

var container = &program{
	name: "container", what: "two programs in PID and mount namespaces of their own, which share the network and the run directory",
	packages: []string{"util-linux", "socat"},
	needs:    []string{"unshare", "socat"},
	root:     true,
	run: func(l *lab) {
		inside := func(name string, args ...string) *exec.Cmd {
			cmd := l.command(name, args...)
			return l.plain("unshare", append([]string{"--pid", "--fork", "--mount", "--mount-proc"}, cmd.Args...)...)
		}
		l.dirty = true // a supervisor is killed with its PID namespace; the next one tidies up
		port := l.port()
		server := l.serveCommand(port, inside("socat", "-t", "30", fmt.Sprintf("TCP4-LISTEN:%d,fork,reuseaddr", port), "EXEC:cat"))
		defer l.killChildren(server) // unshare waits for the first process of its namespace, and takes no signals itself
		in := l.random("in", 10_000_000)
		out := filepath.Join(l.dir, "out")
		f, err := os.Create(out)
		l.must(err)
		defer f.Close()
		cmd := inside("socat", "-t", "30", "-", fmt.Sprintf("TCP4:127.0.0.1:%d", port))
		cmd.Stdout = f
		to, err := cmd.StdinPipe()
		l.must(err)
		s := l.start(cmd)
		b, err := os.ReadFile(in)
		l.must(err)
		_, err = to.Write(b)
		l.must(err)
		l.moved(port, 1)
		to.Close()
		l.must(s.wait(l))
		l.result("there and back", l.sum(out) == l.sum(in))
	},
}

// killChildren kills the processes that a server has started.
func (l *lab) killChildren(s *server) {
	pid := s.cmd.Process.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	l.must(err)
	for _, child := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(child)
		l.must(err)
		l.must(syscall.Kill(n, syscall.SIGKILL))
	}
}
