package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	killRounds = flag.Int("kill-rounds", 24, "rounds of TestRunKills")
	killSeed   = flag.Uint64("kill-seed", 0, "what chooses who is killed and stopped in TestRunKills; 0: another one each time")
)

// killPatience is longer than anything takes that does not hang.
const killPatience = time.Minute

// A trafficEnd is testdata/traffic.c under 'gosmc run'.
type trafficEnd struct {
	*talker
	name       string
	lines      chan string // its output; closed with it
	port       string
	supervisor int // process ID
	pidfd      int // of the supervisor
	files      int // that it had open before there was a connection
}

func startTraffic(t *testing.T, name string, environ []string, args ...string) *trafficEnd {
	t.Helper()
	e := &trafficEnd{name: name, talker: startTalker(t, runCommand(t, environ, args...)), lines: make(chan string)}
	go func() {
		defer close(e.lines)
		for {
			line, err := e.out.ReadString('\n')
			if err != nil {
				return
			}
			e.lines <- strings.TrimSpace(line)
		}
	}()
	port, socket, ok := strings.Cut(e.line(t), " ")
	if !ok || socket == "" {
		t.Fatalf("the %s says %q, want a port and a supervisor", name, port)
	}
	e.port, e.supervisor = port, supervisorOf(t, socket)
	pidfd, err := unix.PidfdOpen(e.supervisor, 0)
	if err != nil {
		t.Fatalf("supervisor of the %s: %v", name, err)
	}
	e.pidfd = pidfd
	t.Cleanup(func() { unix.Close(pidfd) })
	return e
}

// line returns the next line that it prints, "" at its end.
func (e *trafficEnd) line(t *testing.T) string {
	t.Helper()
	select {
	case line := <-e.lines:
		return line
	case <-time.After(killPatience):
		t.Fatalf("the %s hangs", e.name)
		return ""
	}
}

// rings returns the mappings that a process has of rings: their memory, and the memory that one
// side has for itself.
func (e *trafficEnd) rings(t *testing.T) (list []string) {
	t.Helper()
	maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(e.cmd.Process.Pid), "maps"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "gosmc-ring") || strings.Contains(line, "/dev/zero") {
			list = append(list, line)
		}
	}
	return list
}

// left returns the open descriptors and mappings of a process that it did not have before there was
// a connection.
func (e *trafficEnd) left(t *testing.T) string {
	t.Helper()
	fds, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(e.cmd.Process.Pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	rings := e.rings(t)
	if len(fds) > e.files || len(rings) > 0 {
		return fmt.Sprintf("%d descriptors, %d before; mapped: %q", len(fds), e.files, rings)
	}
	return ""
}

func (e *trafficEnd) kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := unix.Kill(pid, sig); err != nil && err != unix.ESRCH {
		t.Fatal(err)
	}
}

// finish has a program end that was left alone, and looks at the things that it leaves.
func (e *trafficEnd) finish(t *testing.T) {
	t.Helper()
	// It says "idle" when its last connection ends, and nothing if it had none.
	deadline := time.After(killPatience)
	for left, alive := e.left(t), true; left != "" && alive; {
		select {
		case _, alive = <-e.lines: // if it has ended Wait says how
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatalf("the %s has connections still: %s", e.name, left)
		}
		if alive {
			left = e.left(t)
		}
	}
	e.in.Close()
	for range e.lines {
	}
	if err := e.cmd.Wait(); err != nil {
		t.Fatalf("the %s: %v", e.name, err)
	}
}

// gone waits for a supervisor to end.
func (e *trafficEnd) gone(t *testing.T) {
	t.Helper()
	if ended, err := readable(e.pidfd, killPatience); !ended {
		t.Fatalf("the supervisor of the %s has not ended: %v", e.name, err)
	}
}

// compiled compiles a C program of testdata.
func compiled(t *testing.T, name string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler")
	}
	program := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command(cc, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/"+name+".c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return program
}

// TestRunKills kills and stops programs and their supervisors at random moments, with many connections full of bytes between them, made and closed
// all the time. The other program reads no wrong byte, hears of it, and has nothing open or mapped in the end; nothing is left of the rest.
func TestRunKills(t *testing.T) {
	program := compiled(t, "traffic")
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	environ := runEnviron(t)
	onRings := 0
	for round := range *killRounds {
		if !t.Run(strconv.Itoa(round), func(t *testing.T) {
			if killRound(t, environ, program, rand.New(rand.NewPCG(seed, uint64(round)))) {
				onRings++
			}
		}) {
			t.Fatalf("-kill-seed %d", seed)
		}
	}
	if onRings == 0 {
		t.Errorf("nobody had a ring in %d rounds", *killRounds)
	}
	t.Logf("%d rounds, %d of them with rings in the end", *killRounds, onRings)
	// The next supervisor that starts there tidies up after killed supervisors, and so does a verb
	// that asks for their status.
	for _, cmd := range []*exec.Cmd{runCommand(t, environ, "true"), exec.Command(os.Args[0], "ss")} {
		cmd.Env = environ
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
		}
	}
	dir := strings.TrimPrefix(environ[len(environ)-1], "GOSMC_DIR=")
	deadline := time.Now().Add(killPatience)
	for left := "?"; left != ""; {
		left = ""
		filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err == nil && info.Mode()&(os.ModeSocket|os.ModeSymlink) != 0 {
				left += " " + path
			}
			return nil
		})
		if time.Now().After(deadline) {
			t.Fatalf("there are%s still", left)
		}
	}
}

// killRound is one round. It reports whether the surviving side had rings just before.
func killRound(t *testing.T, environ []string, program string, random *rand.Rand) (onRings bool) {
	pause := func(most time.Duration) { <-time.After(time.Duration(random.Int64N(int64(most)))) }
	if random.IntN(2) == 0 {
		environ = append(environ[:len(environ):len(environ)], "GOSMC_RUN_SHAKE="+strconv.Itoa(1+random.IntN(1000000)))
	}
	server := startTraffic(t, "server", environ, program, "serve")
	fds, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(server.cmd.Process.Pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	server.files = len(fds)
	client := startTraffic(t, "client", environ, program, "connect", server.port)
	client.files = server.files - 1 // it does not listen
	pause(150 * time.Millisecond)

	// Some are stopped for a moment, or their supervisors are killed.
	for range random.IntN(4) {
		e := []*trafficEnd{server, client}[random.IntN(2)]
		switch random.IntN(4) {
		case 0, 1:
			pid := []int{e.cmd.Process.Pid, e.supervisor}[random.IntN(2)]
			e.kill(t, pid, unix.SIGSTOP)
			pause(40 * time.Millisecond)
			e.kill(t, pid, unix.SIGCONT)
		case 2:
			e.kill(t, e.supervisor, unix.SIGKILL)
		}
		pause(30 * time.Millisecond)
	}
	// One of the two is killed, perhaps while it is stopped.
	dead, alive := server, client
	if random.IntN(2) == 0 {
		dead, alive = client, server
	}
	if random.IntN(4) == 0 {
		dead.kill(t, dead.cmd.Process.Pid, unix.SIGSTOP)
		pause(20 * time.Millisecond)
	}
	onRings = len(alive.rings(t)) > 0
	dead.kill(t, dead.cmd.Process.Pid, unix.SIGKILL)
	for range dead.lines {
	}
	dead.cmd.Wait()
	alive.finish(t)
	server.gone(t)
	client.gone(t)
	return onRings
}
