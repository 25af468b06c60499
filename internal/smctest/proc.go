// Package smctest helps to test gosmc from outside: processes to kill, and the resources of the
// system that a process holds. It is for tests only.
package smctest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childEnv names the program that a test binary is to be instead of running tests.
const childEnv = "GOSMC_TEST_CHILD"

// patience bounds every wait for another process.
const patience = 30 * time.Second

// A Parent is the test, as its child process sees it: it takes lines and gives lines.
type Parent struct {
	Args []string
	in   *bufio.Scanner
}

// RunChild turns the process into one of the programs if it was started by [Start], and does
// not return then. Call it from an init function, which runs before any test.
func RunChild(programs map[string]func(*Parent)) {
	name := os.Getenv(childEnv)
	program := programs[name]
	if program == nil {
		return
	}
	os.Unsetenv(childEnv)
	Apart()
	program(&Parent{Args: os.Args[1:], in: bufio.NewScanner(os.Stdin)})
	os.Exit(0)
}

// Say gives the test a line.
func (p *Parent) Say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// Hear waits for a line of the test. When there is none because the test has ended, so does the
// process.
func (p *Parent) Hear() string {
	if !p.in.Scan() {
		os.Exit(0)
	}
	return p.in.Text()
}

// Check ends the process if there is an error. The test sees it on the standard error.
func (p *Parent) Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
}

// A Process is a child of the test.
type Process struct {
	tb   testing.TB
	pid  int
	cmd  *exec.Cmd // nil once it was waited for
	in   *os.File  // its standard input
	out  *os.File  // its standard output
	read *bufio.Reader
	end  syscall.WaitStatus // and err: the results of Wait
	err  error
}

// Start runs a program given to [RunChild] in a new process. It is killed, if it still runs,
// when the test ends.
func Start(tb testing.TB, program string, args ...string) *Process {
	tb.Helper()
	return StartIn(tb, 0, program, args...)
}

// StartIn is Start in new namespaces, which are flags of clone such as [syscall.CLONE_NEWPID].
func StartIn(tb testing.TB, namespaces uintptr, program string, args ...string) *Process {
	tb.Helper()
	return start(tb, &syscall.SysProcAttr{Cloneflags: namespaces}, nil, program, args)
}

// StartRootless is Start as the root of a user namespace and a network namespace of its own, which
// is the unprivileged user of that number to the machine. The test is skipped where users may not
// make namespaces.
func StartRootless(tb testing.TB, user int, program string, args ...string) *Process {
	tb.Helper()
	return StartRootlessIn(tb, syscall.CLONE_NEWNET, user, program, args...)
}

// StartRootlessIn is StartRootless with other namespaces in place of the network namespace, which
// are flags of clone.
func StartRootlessIn(tb testing.TB, namespaces uintptr, user int, program string, args ...string) *Process {
	tb.Helper()
	if n, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil ||
		strings.TrimSpace(string(n)) == "0" {
		tb.Skipf("needs user namespaces: %q, %v", n, err)
	}
	only := []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}
	return start(tb, &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | namespaces, UidMappings: only, GidMappings: only,
		Credential: &syscall.Credential{NoSetGroups: true},
	}, nil, program, args)
}

// StartWith is Start with files that the process inherits, as descriptors from 3 on.
func StartWith(tb testing.TB, files []*os.File, program string, args ...string) *Process {
	tb.Helper()
	return start(tb, &syscall.SysProcAttr{}, files, program, args)
}

func start(tb testing.TB, attr *syscall.SysProcAttr, files []*os.File, program string,
	args []string) *Process {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	if attr.Credential != nil {
		exe = "/proc/self/exe" // other users may not see its directory
	}
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		inRead.Close()
		inWrite.Close()
		tb.Fatal(err)
	}
	p := &Process{tb: tb, in: inWrite, out: outRead, read: bufio.NewReader(outRead)}
	p.cmd = exec.Command(exe, args...)
	p.cmd.Env = append(os.Environ(), childEnv+"="+program)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = inRead, outWrite, os.Stderr
	p.cmd.ExtraFiles = files
	p.cmd.SysProcAttr = attr
	err = p.cmd.Start()
	inRead.Close()
	outWrite.Close()
	if err != nil {
		inWrite.Close()
		outRead.Close()
		tb.Fatal(err)
	}
	p.pid = p.cmd.Process.Pid
	tb.Cleanup(func() { p.Kill() })
	return p
}

// PID returns the process's number.
func (p *Process) PID() int { return p.pid }

// Say gives the process a line.
func (p *Process) Say(format string, args ...any) {
	p.tb.Helper()
	p.in.SetWriteDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.tb.Fatalf("telling the child %q: %v", fmt.Sprintf(format, args...), err)
	}
}

// Hear waits for a line that begins with the word, and returns the rest of the line.
func (p *Process) Hear(word string) string {
	p.tb.Helper()
	p.out.SetReadDeadline(time.Now().Add(patience))
	line, err := p.read.ReadString('\n')
	if err != nil {
		p.tb.Fatalf("waiting for the child to say %q: %v", word, err)
	}
	rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), word)
	if !ok {
		p.tb.Fatalf("child said %q, want %q", line, word)
	}
	return strings.TrimPrefix(rest, " ")
}

// Ask gives the process a line and waits for one that is the word. It reports false if the process has
// ended before that.
func (p *Process) Ask(word, format string, args ...any) bool {
	p.tb.Helper()
	p.in.SetWriteDeadline(time.Now().Add(patience))
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	if err == nil {
		p.out.SetReadDeadline(time.Now().Add(patience))
		var line string
		if line, err = p.read.ReadString('\n'); err == nil && line != word+"\n" {
			p.tb.Fatalf("the child says %q, want %q", line, word)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) {
		p.tb.Fatalf("waiting for the child to say %q: %v", word, err)
	}
	return err == nil
}

// Rest returns all that the process says until its end, for which it waits.
func (p *Process) Rest() string {
	p.tb.Helper()
	p.out.SetReadDeadline(time.Now().Add(patience))
	rest, err := io.ReadAll(p.read)
	if err != nil {
		p.tb.Fatalf("waiting for the end of the child: %v (said %q)", err, rest)
	}
	return string(rest)
}

// HearEnd waits until the process has nothing more to say, which is at its end.
func (p *Process) HearEnd() {
	p.tb.Helper()
	p.out.SetReadDeadline(time.Now().Add(patience))
	if rest, err := io.ReadAll(p.read); err != nil {
		p.tb.Fatalf("waiting for the end of the child: %v (said %q)", err, rest)
	}
}

// Signal sends a signal.
func (p *Process) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.tb.Errorf("signal %v: %v", sig, err)
	}
}

// Kill ends the process with SIGKILL and waits for its end. It returns when the signal was sent.
func (p *Process) Kill() time.Time {
	at := time.Now()
	if p.cmd != nil {
		p.cmd.Process.Signal(syscall.SIGKILL)
		p.Wait()
	}
	return at
}

// Wait waits for the end of the process. The error is nil if it has exited with status 0.
func (p *Process) Wait() error {
	if p.cmd != nil {
		p.in.Close()
		p.err = p.cmd.Wait()
		p.out.Close()
		p.end, _ = p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		p.cmd, p.read = nil, nil // a test may have had many
	}
	return p.err
}

// Killed reports whether the process, which was waited for, died of SIGKILL.
func (p *Process) Killed() bool {
	return p.end.Signaled() && p.end.Signal() == syscall.SIGKILL
}

// Eventually waits until cond holds.
func Eventually(tb testing.TB, within time.Duration, what string, cond func() bool) {
	tb.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", within, what)
		}
		<-tick.C
	}
}

// Words are numbers that several processes see, and that outlive each of them.
type Words [64]atomic.Uint64

// NewWords makes a file of zeroes and maps it. The mapping goes away with the test.
func NewWords(tb testing.TB) (words *Words, path string) {
	tb.Helper()
	path = tb.TempDir() + "/words"
	if err := os.WriteFile(path, make([]byte, unsafe.Sizeof(Words{})), 0o600); err != nil {
		tb.Fatal(err)
	}
	words, err := OpenWords(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.MunmapPtr(unsafe.Pointer(words), unsafe.Sizeof(Words{})) })
	return words, path
}

// OpenWords maps a file that NewWords has made.
func OpenWords(path string) (*Words, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := unix.MmapPtr(int(f.Fd()), 0, nil, unsafe.Sizeof(Words{}), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*Words)(p), nil
}

// Pattern fills b with the bytes that belong at an offset of a stream. No two places of a stream
// that are near each other look the same for more than a few bytes.
func Pattern(b []byte, offset uint64) {
	for i := range b {
		b[i] = patternByte(offset + uint64(i))
	}
}

func patternByte(at uint64) byte { return byte(at * 0x9e3779b97f4a7c15 >> 56) }

// A Mismatch is a byte that differs from the pattern's.
type Mismatch struct {
	Offset    uint64
	Got, Want byte
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("byte %d is %#x, want %#x", m.Offset, m.Got, m.Want)
}

// CheckPattern returns a [*Mismatch] if b has not the bytes that belong at the offset.
func CheckPattern(b []byte, offset uint64) error {
	for i := range b {
		if want := patternByte(offset + uint64(i)); b[i] != want {
			return &Mismatch{offset + uint64(i), b[i], want}
		}
	}
	return nil
}

// A Usage has the resources of the system that a process holds.
type Usage struct {
	Descriptors []string // the targets of their links
	Mappings    int      // of memory shared by gosmc
}

// UsageOf returns the resources that a process holds.
func UsageOf(pid int) (u Usage, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	names, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return u, err
	}
	for _, name := range names {
		if target, err := os.Readlink(dir + "/fd/" + name.Name()); err == nil && target != dir+"/fd" {
			u.Descriptors = append(u.Descriptors, target)
		}
	}
	u.Mappings, err = countLines(dir+"/maps", "/memfd:gosmc-")
	return u, err
}

// countLines returns how many lines of a file have the text.
func countLines(path, text string) (n int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			n++
		}
	}
	return n, lines.Err()
}

// CheckLeaks remembers the resources that the test's process holds now, and fails the test if it
// holds more at the end. Call it first, so that it looks after all other clean-up.
func CheckLeaks(tb testing.TB) {
	tb.Helper()
	if r, w, err := os.Pipe(); err == nil { // so that Go's poller has its descriptors
		r.Close()
		w.Close()
	}
	before, err := UsageOf(os.Getpid())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			runtime.GC() // package net keeps pipes for splice(2) until then
			now, err := UsageOf(os.Getpid())
			if err != nil {
				tb.Error(err)
				return
			}
			if len(now.Descriptors) <= len(before.Descriptors) && now.Mappings <= before.Mappings {
				return
			}
			if time.Now().After(deadline) {
				tb.Errorf("leak: %d descriptors, were %d; %d mappings, were %d\n%q", len(now.Descriptors),
					len(before.Descriptors), now.Mappings, before.Mappings, now.Descriptors)
				return
			}
			<-tick.C
		}
	})
}

// Memory is a part of a process's resident memory, in bytes: /proc/PID/status.
type Memory struct{ Total, Anon, Shmem int64 }

// MemoryOf returns the resident memory of a process.
func MemoryOf(pid int) (m Memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	for name, value := range map[string]*int64{"VmRSS:": &m.Total, "RssAnon:": &m.Anon,
		"RssShmem:": &m.Shmem} {
		n, err := statusField(string(text), name)
		if err != nil {
			return m, err
		}
		*value = n << 10
	}
	return m, nil
}

// statusField returns the number in a line of a status file.
func statusField(text, name string) (int64, error) {
	_, rest, ok := strings.Cut(text, "\n"+name)
	line, _, _ := strings.Cut(rest, "\n")
	fields := strings.Fields(line)
	if !ok || len(fields) == 0 {
		return 0, fmt.Errorf("no %s in status", name)
	}
	return strconv.ParseInt(fields[0], 10, 64)
}

// BufferPages returns how many bytes of DMBs, its own and its peers', a process has resident.
func BufferPages(pid int) (bytes int64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	inside := false
	for lines.Scan() {
		line := lines.Text()
		if kib, ok := strings.CutPrefix(line, "Rss:"); ok && inside {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(kib, "kB")), 10, 64)
			if err != nil {
				return 0, err
			}
			bytes += n << 10
		} else if len(line) > 0 && (line[0] < 'A' || line[0] > 'Z') {
			// a mapping's first line begins with a hexadecimal digit
			inside = strings.Contains(line, "/memfd:gosmc-dmb")
		}
	}
	return bytes, lines.Err()
}

// Wakeups returns how often the threads of a process have gone to sleep by themselves, by thread.
func Wakeups(pid int) (map[string]int64, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	wakeups := make(map[string]int64)
	for _, name := range names {
		text, err := os.ReadFile(dir + "/" + name.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		n, err := statusField(string(text), "voluntary_ctxt_switches:")
		if err != nil {
			return nil, err
		}
		wakeups[name.Name()] = n
	}
	return wakeups, nil
}

// StateOf returns the state of a process as /proc/PID/stat has it: 'T' is stopped.
func StateOf(pid int) (byte, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(text), ") ") // after the name of the program
	if !ok || rest == "" {
		return 0, fmt.Errorf("malformed stat: %q", text)
	}
	return rest[0], nil
}
