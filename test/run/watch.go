package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"time"
)

// watchTime is between two looks at the output of ss.
const watchTime = 60 * time.Millisecond

// showTime is how long ss may not show a connection that is there.
const showTime = 20 * time.Second

// A watch looks at the output of 'gosmc ss', again and again, while a program works.
type watch struct {
	l    *lab
	quit chan struct{}
	done chan struct{}
	once sync.Once

	mu     sync.Mutex
	seen   map[movedEnd]bool
	hosts  map[hostID]int // connections moved, as the supervisor of their server counts them
	before int            // their number when counted was called last
	err    error
}

// A movedEnd is an end of a connection that is not TCP.
type movedEnd struct{ local, peer, mode string }

// A hostID is a supervisor.
type hostID struct {
	dir string
	pid int
}

func newWatch(l *lab) *watch {
	return &watch{l: l, quit: make(chan struct{}), done: make(chan struct{}), seen: make(map[movedEnd]bool), hosts: make(map[hostID]int)}
}

func (w *watch) run() {
	defer close(w.done)
	for {
		select {
		case <-w.quit:
			return
		case <-time.After(watchTime):
			w.look()
		}
	}
}

func (w *watch) stop() {
	w.once.Do(func() { close(w.quit) })
	<-w.done
}

// ask has gosmc print JSON.
func (w *watch) ask(into any, command ...string) bool {
	cmd := exec.CommandContext(w.l.ctx, w.l.gosmc, append(command, "--json")...)
	cmd.Env = w.l.environ()
	var out bytes.Buffer
	cmd.Stdout = &out
	runErr := cmd.Run() // it may complain that there is no run directory yet
	err := json.Unmarshal(out.Bytes(), into)
	if err != nil && !strings.Contains(fmt.Sprint(runErr), "exit status 1") {
		w.mu.Lock()
		w.err = fmt.Errorf("gosmc %s: %v, %v", strings.Join(command, " "), runErr, err)
		w.mu.Unlock()
	}
	return err == nil
}

// look asks ss once.
func (w *watch) look() {
	var r struct {
		Connections []struct {
			Local, Peer, Mode, Dir string
		}
	}
	if !w.ask(&r, "ss") {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range r.Connections {
		// Other supervisors, in run directories of their own, may do anything on this machine.
		if c.Mode != "TCP" && (c.Dir == "" || strings.HasPrefix(c.Dir, w.l.rundir)) {
			w.seen[movedEnd{c.Local, c.Peer, c.Mode}] = true
		}
	}
}

// count asks stats once, and returns how many connections there were that somebody has claimed.
func (w *watch) count() (all int) {
	for _, dir := range []string{w.l.rundir, w.l.others} {
		var r struct {
			Hosts []struct {
				PID      int
				Counters struct{ Connections map[string]int }
			}
		}
		if !w.ask(&r, "stats", "--dir", dir) {
			continue
		}
		w.mu.Lock()
		for _, h := range r.Hosts {
			w.hosts[hostID{dir, h.PID}] = h.Counters.Connections["Unix"]
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.hosts {
		all += n
	}
	return all
}

func (w *watch) modes() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	modes := make(map[string]int)
	for c := range w.seen {
		modes[c.mode]++
	}
	return modes
}

// to counts the connections to a port, and lists them.
func (w *watch) to(port int) (clients int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	suffix := fmt.Sprintf(":%d", port)
	for c := range w.seen {
		if strings.HasSuffix(c.peer, suffix) {
			clients++
		}
	}
	return clients
}

func (w *watch) list() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var text []string
	for c := range w.seen {
		text = append(text, c.local+" to "+c.peer+" "+c.mode)
	}
	sort.Strings(text)
	return strings.Join(text[:min(len(text), 20)], ", ")
}

// moved says that ss has to have shown least connections to a port; under 'gosmc run', that is, and
// none otherwise. Those that it is about have to be there for long, or still.
func (l *lab) moved(port, least int) {
	l.watch.look()
	n := l.watch.to(port)
	if l.way.moves() && n < least {
		l.failf("ss has shown %d connections to port %d that were moved, want %d; it has shown: %s", n, port, least, l.watch.list())
	}
}

// shown makes a connection to a port that says nothing, and waits until ss has shown it.
// Connections that are there for a moment it may miss.
func (l *lab) shown(port int, as ...func(*exec.Cmd) *exec.Cmd) {
	if !l.way.moves() {
		return
	}
	script := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d && echo connected && read -r line", port)
	cmd := l.command("bash", "-c", script)
	for _, f := range as {
		cmd = f(cmd)
	}
	in, err := cmd.StdinPipe()
	l.must(err)
	out, err := cmd.StdoutPipe()
	l.must(err)
	l.must(cmd.Start())
	defer func() {
		in.Close()
		cmd.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		l.failf("no connection to port %d: %q, %v", port, line, err)
	}
	for deadline := time.Now().Add(showTime); l.watch.to(port) == 0; {
		if time.Now().After(deadline) || l.ctx.Err() != nil {
			l.failf("ss shows no connection to port %d that was moved; it has shown: %s", port, l.watch.list())
		}
		l.watch.look()
	}
}

// counted says how many connections have to have been moved since it was called before, by the
// count of the supervisors that moved them.
func (l *lab) counted(least int) {
	all := l.watch.count()
	n := all - l.watch.before
	l.watch.before = all
	if l.way.moves() && n < least {
		l.failf("%d connections were moved, as stats has it, want %d", n, least)
	}
}
