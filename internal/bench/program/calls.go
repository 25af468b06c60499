package program

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tracepoint has the number of the event that each system call is.
var tracepoint = []string{
	"/sys/kernel/tracing/events/raw_syscalls/sys_enter/id",
	"/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id",
}

// A callCounter counts the system calls of processes, and of all threads and processes that they start.
type callCounter struct {
	events []int // descriptors
}

// countCalls counts from now on. Each system call of this machine takes longer meanwhile, so a round
// counts or measures time. The caller closes the counter.
func countCalls(pids []int) (_ *callCounter, err error) {
	c := new(callCounter)
	defer func() {
		if err != nil {
			c.close()
			err = fmt.Errorf("system calls cannot be counted here: %w", err)
		}
	}()
	id, err := tracepointID()
	if err != nil {
		return c, err
	}
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_TRACEPOINT, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: id, Bits: unix.PerfBitInherit,
	}
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err != nil {
				return c, err
			}
			fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if errors.Is(err, unix.ESRCH) { // it has just ended
				continue
			}
			if err != nil {
				return c, os.NewSyscallError("perf_event_open", err)
			}
			c.events = append(c.events, fd)
		}
	}
	return c, nil
}

func tracepointID() (uint64, error) {
	var text []byte
	var err error
	for _, file := range tracepoint {
		if text, err = os.ReadFile(file); err == nil {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// total returns the number of system calls since the counter was made.
func (c *callCounter) total() (n uint64, err error) {
	for _, fd := range c.events {
		var value [8]byte
		if got, err := unix.Read(fd, value[:]); err != nil || got != len(value) {
			return 0, fmt.Errorf("a count of system calls: %d bytes, %w", got, err)
		}
		n += binary.NativeEndian.Uint64(value[:])
	}
	return n, nil
}

func (c *callCounter) close() {
	for _, fd := range c.events {
		unix.Close(fd)
	}
}
