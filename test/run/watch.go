package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"time"
)

// watchTime is between two looks at what ss shows.
const watchTime = 60 * time.Millisecond

// A watch looks at what 'gosmc ss' shows, again and again, while a program works.
type watch struct {
	l    *lab
	quit chan struct{}
	done chan struct{}
	once sync.Once

	mu   sync.Mutex
	seen map[movedEnd]bool
	err  error
}

// A movedEnd is an end of a connection that is not TCP.
type movedEnd struct{ local, peer, mode string }

func newWatch(l *lab) *watch {
	return &watch{l: l, quit: make(chan struct{}), done: make(chan struct{}), seen: make(map[movedEnd]bool)}
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

// look asks once.
func (w *watch) look() {
	cmd := exec.CommandContext(w.l.ctx, w.l.gosmc, "ss", "--json")
	cmd.Env = w.l.environ()
	var out bytes.Buffer
	cmd.Stdout = &out
	runErr := cmd.Run() // it may complain that there is no run directory yet
	var r struct {
		Connections []struct {
			Local, Peer, Mode, Dir string
		}
	}
	err := json.Unmarshal(out.Bytes(), &r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if !strings.Contains(fmt.Sprint(runErr), "exit status 1") {
			w.err = fmt.Errorf("gosmc ss: %v, %v", runErr, err)
		}
		return
	}
	for _, c := range r.Connections {
		// Others, in run directories of their own, may do what they like on this machine.
		if c.Mode != "TCP" && (c.Dir == "" || strings.HasPrefix(c.Dir, w.l.rundir)) {
			w.seen[movedEnd{c.Local, c.Peer, c.Mode}] = true
		}
	}
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

// moved says that ss has to have shown least connections to a port; under 'gosmc run', that is, and none otherwise.
func (l *lab) moved(port, least int) {
	l.watch.look()
	n := l.watch.to(port)
	if l.way.moves() && n < least {
		l.failf("ss has shown %d connections to port %d that were moved, want %d; it has shown: %s", n, port, least, l.watch.list())
	}
}
