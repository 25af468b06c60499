package supervisor

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A callTrace counts the system calls of a process with one thread, by number.
type callTrace struct {
	cmd   *exec.Cmd
	calls map[uint64]int
}

// traceCalls starts a program and follows it to its end, or until more says no after a call. The caller has locked its
// thread.
func traceCalls(t *testing.T, cmd *exec.Cmd, more func(c *callTrace) bool) *callTrace {
	t.Helper()
	c := &callTrace{cmd: cmd, calls: make(map[uint64]int)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	for began := false; ; {
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		signal := 0
		switch {
		case status.Exited() || status.Signaled():
			if status.ExitStatus() != 0 {
				t.Fatalf("%v ended with %v", cmd.Args, status)
			}
			return c
		case status.Stopped() && status.StopSignal() == unix.SIGTRAP|0x80:
			if nr, entry := callOf(t, pid); entry {
				c.calls[nr]++
				if !more(c) {
					if err := unix.PtraceDetach(pid); err != nil {
						t.Fatal(err)
					}
					return c
				}
			}
		case status.Stopped() && status.StopSignal() == unix.SIGTRAP && !began: // its exec
			began = true
			if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
				t.Fatal(err)
			}
		case status.Stopped():
			signal = int(status.StopSignal())
		}
		if err := unix.PtraceSyscall(pid, signal); err != nil {
			t.Fatal(err)
		}
	}
}

// callOf returns the number of the call at whose beginning a process stands, or that it is at an end.
func callOf(t *testing.T, pid int) (nr uint64, entry bool) {
	t.Helper()
	var info struct { // struct ptrace_syscall_info, linux/ptrace.h
		op      uint8
		_       [3]uint8
		arch    uint32
		ip, sp  uint64
		nr      uint64
		further [7]uint64
	}
	const getSyscallInfo, opEntry = 0x420e, 1
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(pid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	return info.nr, info.op == opEntry
}

// perConnection returns how many calls a client of testdata/admission.c makes for each of its connections but the first ones.
func (r *admissionRig) perConnection(environ []string, after, kind string) float64 {
	r.t.Helper()
	const few, many = 200, 600
	total := func(n int) (calls int) {
		cmd := r.command(after, fmt.Sprintf("%s:%d", kind, n))
		if environ != nil {
			cmd.Env = environ
		}
		for _, n := range traceCalls(r.t, cmd, func(*callTrace) bool { return true }).calls {
			calls += n
		}
		return calls
	}
	return float64(total(many)-total(few)) / (many - few)
}

// least returns the least of some values, as a busy machine has programs ask again: an answer is good for 100 ms.
func least(f func() float64) float64 {
	return min(f(), f(), f())
}

// sysAccept is the number of accept, which not every machine has.
var sysAccept = map[string]uint64{"amd64": 43, "arm64": 202}

// perAccept returns how many calls a server of testdata/admission.c makes for each connection of a program without the library.
func (r *admissionRig) perAccept(environ []string) float64 {
	r.t.Helper()
	const few, many = 200, 600
	cmd := exec.CommandContext(r.t.Context(), r.path, "serve")
	cmd.Env = environ
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	go func() {
		client := &admissionRig{t: r.t}
		if _, err := fmt.Fscanln(out, &client.port); err != nil {
			r.t.Error(err)
		}
		for range many - 1 { // served before that accept
			client.ask("127.0.0.1")
		}
	}()
	all, begin := 0, 0
	c := traceCalls(r.t, cmd, func(c *callTrace) bool {
		all++
		switch accepts := c.calls[sysAccept[runtime.GOARCH]] + c.calls[unix.SYS_ACCEPT4]; {
		case accepts == few && begin == 0:
			begin = all
		case accepts == many:
			return false
		}
		return true
	})
	c.cmd.Process.Kill()
	c.cmd.Wait()
	return float64(all-begin) / (many - few)
}

// TestCallsShort bounds the system calls that a connection costs which is not moved, beyond those of a program without the
// library: the client's to a server that is not under the library, and to one whose connections are short; and the server's.
// No agent pairs sockets.
func TestCallsShort(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := newAdmissionRig(t)
	plain := &admissionRig{t: t, path: r.path}
	plain.serve()
	environ := r.environ
	for _, kind := range []string{"short", "again"} {
		base := plain.perConnection([]string{}, "", kind)
		plain.environ = environ
		if got := least(func() float64 { return plain.perConnection(nil, "16", kind) }) - base; got > 1.27 {
			t.Errorf("%s: a client whose server is bare makes %.2f calls more for a connection; want 1: it asks for the cookie",
				kind, got)
		}
		r.connect("16", kind+":100")
		if got := least(func() float64 { return r.perConnection(nil, "16", kind) }) - base; got > 2.5 {
			t.Errorf("%s: a client whose connections are short makes %.2f calls more for one; want 1, and its part of those "+
				"that are moved", kind, got)
		}
	}
	if got := r.perAccept(r.environ) - r.perAccept([]string{}); got > 4.4 {
		t.Errorf("a server makes %.2f calls more for a client without the library; want 4: it looks before it waits, for a mark, "+
			"and at its table", got)
	}
}
