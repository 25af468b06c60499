// Package child runs this program a second time, as the other end of a measurement: gosmc bench and gosmc
// demo put their two ends in two processes. A child is the same program with a hidden verb. It and
// its parent talk in JSON lines over the child's standard input and output; it ends when its input
// does, so none survives its parent.
package child

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

// maxLine bounds a line that a child sends.
const maxLine = 1 << 20

// Patience is how long a child may take to end before it is killed, and to answer a
// command that it should answer at once.
const Patience = 10 * time.Second

// A Process is a child, as its parent sees it. Its methods may be called by several goroutines, but Receive
// and whatever reads Lines by one at a time.
type Process struct {
	name   string    // for errors: "server", "client"
	cmd    *exec.Cmd // nil if another child started it
	kill   func()
	stdin  io.WriteCloser
	lines  chan []byte // closed at the end of the output
	stderr *tail
	exited chan struct{} // closed when err is set
	err    error
}

func newProcess(name string) *Process {
	return &Process{name: name, lines: make(chan []byte, 1), stderr: &tail{}, exited: make(chan struct{})}
}

// Command is this program with another verb.
func Command(ctx context.Context, verb string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", verb) // also if the file has been replaced meanwhile
	cmd.Args[0] = os.Args[0]
	return cmd
}

// Start runs this program with the hidden verb. files become descriptors 3 and up.
// When ctx ends the child is killed.
func Start(ctx context.Context, name, verb string, files ...*os.File) (*Process, error) {
	return StartIn(ctx, name, verb, &syscall.SysProcAttr{}, files...)
}

// StartIn does the same; attr says in which namespaces.
func StartIn(ctx context.Context, name, verb string, attr *syscall.SysProcAttr, files ...*os.File) (*Process,
	error) {
	c := newProcess(name)
	c.cmd = Command(ctx, verb)
	c.cmd.ExtraFiles = files
	c.cmd.Stderr = c.stderr
	c.cmd.WaitDelay = Patience
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
func (c *Process) follow(stdout io.Reader, wait func() error) {
	s := bufio.NewScanner(stdout)
	s.Buffer(nil, maxLine)
	for s.Scan() {
		c.lines <- append([]byte(nil), s.Bytes()...)
	}
	close(c.lines)
	c.err = wait()
	close(c.exited)
}

// Send gives the child one object.
func (c *Process) Send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := c.stdin.Write(append(b, '\n')); err != nil {
		return c.Failure(err)
	}
	return nil
}

// Receive takes one object from the child, within the given time.
func (c *Process) Receive(ctx context.Context, within time.Duration, v any) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("the %s process does not answer within %v%s", c.name, within, c.stderr.quote())
	case line, ok := <-c.lines:
		if !ok {
			return c.Failure(io.ErrUnexpectedEOF)
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("the %s process says %q: %w", c.name, line, err)
		}
		return nil
	}
}

// Name is what errors call the child: "server", "client".
func (c *Process) Name() string { return c.name }

// PID is its process number; 0 if another child started it.
func (c *Process) PID() int {
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// Lines has what the child says, for who waits for several children. It is closed at the end of the output.
func (c *Process) Lines() <-chan []byte { return c.lines }

// Exited is closed when the child has ended.
func (c *Process) Exited() <-chan struct{} { return c.exited }

// CloseInput tells the child to end, and does not wait for that.
func (c *Process) CloseInput() { c.stdin.Close() }

// EndsWith says that a child which another one started is killed with that one.
func (c *Process) EndsWith(other *Process) { c.kill = other.kill }

// Failure explains why the child cannot be talked to.
func (c *Process) Failure(err error) error {
	select {
	case <-c.exited:
		if c.err != nil {
			err = c.err
		}
	case <-time.After(time.Second): // it is on its way out, or only closed its pipes
	}
	return fmt.Errorf("the %s process ended early: %w%s", c.name, err, c.stderr.quote())
}

// Stop ends the child by ending its input, and kills it if that does not help.
func (c *Process) Stop() {
	c.stdin.Close()
	timer := time.NewTimer(Patience)
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

// A Parent is the child's side: it takes objects from standard input and sends objects on standard output.
type Parent struct {
	in  *json.Decoder
	mu  sync.Mutex
	out io.Writer
}

// NewParent makes the child's side from its standard input and output.
func NewParent(in io.Reader, out io.Writer) *Parent {
	return &Parent{in: json.NewDecoder(in), out: out}
}

// Receive takes one object; io.EOF says that the parent wants an end.
func (p *Parent) Receive(v any) error { return p.in.Decode(v) }

// Send gives the parent one object.
func (p *Parent) Send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = p.out.Write(append(b, '\n'))
	return err
}

// ErrNotFromHere is the answer to somebody who types a hidden verb.
var ErrNotFromHere = errors.New("this verb is for 'gosmc bench' and 'gosmc demo', which start it themselves")
