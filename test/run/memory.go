package main

import (
	"bufio"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed many.py
var manyScript string

const (
	groupMemory = 200 << 20
	// shakenMemory is for shaken rings: receives from them are of any length, and leave python's heap in pieces. 180 MB of it
	// were measured, with 1,000 threads; 98 MB over TCP.
	shakenMemory = 300 << 20
	manyConns    = 500
	manyBytes    = 4_000_000
	// idleShared is the memory that rings may keep for good, in all. There are 500 of them, both
	// ways, and of each stays at most a header, a page of each side and an amount that is too small
	// to be given back. 0.5 MB were measured.
	idleShared = 16 << 20
)

var memory = &program{
	name: "memory", what: "500 connections of 4 MB each in a control group of 200 MB, and what is left of their memory",
	packages: []string{"python3"},
	needs:    []string{"/usr/bin/python3"},
	root:     true,
	timeout:  5 * time.Minute,
	run: func(l *lab) {
		group, limit := l.controlGroup()
		most := groupMemory
		if l.way == shaken {
			most = shakenMemory
		}
		l.must(os.WriteFile(filepath.Join(group, limit), []byte(strconv.Itoa(most)), 0o600))
		defer l.leaveGroup(group)
		script := l.file("many.py", manyScript)
		for _, how := range []string{"loop", "threads"} {
			inside := func(mode string, port int) *exec.Cmd {
				cmd := l.command("/usr/bin/python3", script, mode, strconv.Itoa(port), how, strconv.Itoa(manyConns), strconv.Itoa(manyBytes))
				return l.plain("sh", append([]string{"-c", `ulimit -n 4096; echo $$ > "$0/cgroup.procs" && exec "$@"`, group}, cmd.Args...)...)
			}
			port := l.port()
			server := l.serveCommand(port, inside("serve", port))
			cmd := inside("connect", port)
			in, err := cmd.StdinPipe()
			l.must(err)
			out, err := os.CreateTemp(l.dir, "out")
			l.must(err)
			cmd.Stdout = out
			client := l.start(cmd)
			l.awaitLine(client, out.Name())
			if l.way.moves() {
				l.moved(port, 1)
			}
			// Shaken rings are tiny, and joined and left all the time.
			for deadline := time.Now().Add(time.Minute); l.way != shaken && sharedOf(l, group) > idleShared; time.Sleep(pollTime) {
				if time.Now().After(deadline) {
					l.failf("%s: quiet connections hold %d bytes of shared memory", how, sharedOf(l, group))
				}
			}
			in.Close()
			l.must(client.wait(l))
			text, err := os.ReadFile(out.Name())
			l.must(err)
			l.result("wrong hashes, "+how, strings.TrimPrefix(strings.TrimSpace(string(text)), "quiet "))
			select {
			case <-server.ended:
				l.failf("%s: the server has ended: %v", how, server.cmd.ProcessState)
			default:
			}
			l.must(server.stop())
		}
	},
}

// controlGroup makes a group for memory, and returns its directory and the file for the limit, in
// either version.
func (l *lab) controlGroup() (dir, limit string) {
	root, limit := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(root, "memory", "memory.limit_in_bytes")); err == nil {
		root, limit = filepath.Join(root, "memory"), "memory.limit_in_bytes"
	} else {
		l.must(os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0o600))
	}
	dir, err := os.MkdirTemp(root, "gosmc-test-")
	l.must(err)
	return dir, limit
}

// leaveGroup removes a group when the last process in it, a supervisor, has ended.
func (l *lab) leaveGroup(dir string) {
	for deadline := time.Now().Add(stopTime); os.Remove(dir) != nil && time.Now().Before(deadline); {
		time.Sleep(pollTime)
	}
}

// sharedOf is the shared memory of a group, in bytes.
func sharedOf(l *lab, group string) int {
	text, err := os.ReadFile(filepath.Join(group, "memory.stat"))
	l.must(err)
	for line := range strings.Lines(string(text)) {
		var n int
		if _, err := fmt.Sscanf(line, "shmem %d", &n); err == nil {
			return n
		}
	}
	l.failf("no shmem in memory.stat")
	return 0
}

// awaitLine waits until a program has written a line to a file.
func (l *lab) awaitLine(s *server, name string) {
	for {
		f, err := os.Open(name)
		l.must(err)
		_, err = bufio.NewReader(f).ReadString('\n')
		f.Close()
		if err == nil {
			return
		}
		select {
		case <-s.ended:
			l.failf("%s has ended: %v", s.name, s.cmd.ProcessState)
		case <-l.ctx.Done():
			l.failf("%s: %w", s.name, l.ctx.Err())
		case <-time.After(pollTime):
		}
	}
}
