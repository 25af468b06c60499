package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// demo and bench run their two ends in two processes: this program again, with a hidden
// verb. Parent and child talk in JSON lines over the child's standard input and output. A child ends when
// its input does, so none survives its parent.

// maxChildLine bounds a line that a child sends.
const maxChildLine = 1 << 20

// childPatience is how long a child may take to end before it is killed, and to answer a
// command that it should answer at once.
const childPatience = 10 * time.Second

type child struct {
	name   string    // for errors: "server", "client"
	cmd    *exec.Cmd // nil if another child started it
	kill   func()
	stdin  io.WriteCloser
	lines  chan []byte // closed at the end of the output
	stderr *tail
	exited chan struct{} // closed when err is set
	err    error
}

func newChild(name string) *child {
	return &child{name: name, lines: make(chan []byte, 1), stderr: &tail{}, exited: make(chan struct{})}
}

// selfCommand is this program with another verb.
func selfCommand(ctx context.Context, verb string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", verb) // also if the file has been replaced meanwhile
	cmd.Args[0] = os.Args[0]
	return cmd
}

// startChild runs this program with the hidden verb. files become descriptors 3 and up.
// When ctx ends the child is killed.
func startChild(ctx context.Context, name, verb string, files ...*os.File) (*child, error) {
	return startChildIn(ctx, name, verb, &syscall.SysProcAttr{}, files...)
}

// startChildIn does the same; attr says in which namespaces.
func startChildIn(ctx context.Context, name, verb string, attr *syscall.SysProcAttr, files ...*os.File) (*child, error) {
	c := newChild(name)
	c.cmd = selfCommand(ctx, verb)
	c.cmd.ExtraFiles = files
	c.cmd.Stderr = c.stderr
	c.cmd.WaitDelay = childPatience
	c.cmd.SysProcAttr = attr
	attr.Setpgid = true // a Ctrl-C is for the parent, which ends us in order
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the %s process: %w", name, err)
	}
	c.stdin = stdin
	c.kill = func() { c.cmd.Process.Kill() }
	go c.follow(stdout, c.cmd.Wait)
	return c, nil
}

// follow takes the child's lines until there are no more, and then its end from wait.
func (c *child) follow(stdout io.Reader, wait func() error) {
	s := bufio.NewScanner(stdout)
	s.Buffer(nil, maxChildLine)
	for s.Scan() {
		c.lines <- append([]byte(nil), s.Bytes()...)
	}
	close(c.lines)
	c.err = wait()
	close(c.exited)
}

// send gives the child one object.
func (c *child) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := c.stdin.Write(append(b, '\n')); err != nil {
		return c.failure(err)
	}
	return nil
}

// receive takes one object from the child, within the given time.
func (c *child) receive(ctx context.Context, within time.Duration, v any) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("the %s process does not answer within %v%s", c.name, within, c.stderr.quote())
	case line, ok := <-c.lines:
		if !ok {
			return c.failure(io.ErrUnexpectedEOF)
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("the %s process says %q: %w", c.name, line, err)
		}
		return nil
	}
}

// failure explains why the child cannot be talked to.
func (c *child) failure(err error) error {
	select {
	case <-c.exited:
		if c.err != nil {
			err = c.err
		}
	case <-time.After(time.Second): // it is on its way out, or only closed its pipes
	}
	return fmt.Errorf("the %s process ended early: %w%s", c.name, err, c.stderr.quote())
}

// stop ends the child by ending its input, and kills it if that does not help.
func (c *child) stop() {
	c.stdin.Close()
	timer := time.NewTimer(childPatience)
	defer timer.Stop()
	for lines := c.lines; ; {
		select {
		case <-c.exited:
			return
		case _, ok := <-lines: // nobody wants to know any more
			if !ok {
				lines = nil
			}
		case <-timer.C:
			c.kill()
		}
	}
}

// A tail keeps the end of what a child writes to standard error.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const keep = 2000
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if n := len(t.text) - keep; n > 0 {
		t.text = append([]byte(nil), t.text[n:]...)
	}
	return len(b), nil
}

// quote is the text as the end of an error message.
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.text))
	if text == "" {
		return ""
	}
	return ": " + strings.TrimPrefix(text, "gosmc: ")
}

// A parentLink is the child's side: it takes objects from standard input and sends objects on standard output.
type parentLink struct {
	in  *json.Decoder
	mu  sync.Mutex
	out io.Writer
}

func newParentLink(in io.Reader, out io.Writer) *parentLink {
	return &parentLink{in: json.NewDecoder(in), out: out}
}

// receive takes one object; io.EOF says that the parent wants an end.
func (p *parentLink) receive(v any) error { return p.in.Decode(v) }

func (p *parentLink) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = p.out.Write(append(b, '\n'))
	return err
}

// cpuTime is the CPU time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// errNotFromHere is the answer to somebody who types a hidden verb.
var errNotFromHere = errors.New("this verb is for 'gosmc bench' and 'gosmc demo', which start it themselves")
