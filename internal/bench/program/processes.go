package program

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A process is one of our descendants.
type process struct {
	parent int
	zombie bool
	cpu    float64 // seconds, with the time of children that it has waited for
}

// clockTicks is USER_HZ, which is 100 on every architecture that Linux has.
const clockTicks = 100

// processes returns our descendants by their process ID. Our own time is not theirs.
func processes() map[int]process {
	all := make(map[int]process)
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			if pid, p, ok := parseStat(text); ok {
				all[pid] = p
			}
		}
	}
	ours := make(map[int]process)
	for pid, p := range all {
		for up, n := p.parent, 0; up > 0 && n < len(all); n++ {
			if up == os.Getpid() {
				ours[pid] = p
				break
			}
			up = all[up].parent
		}
	}
	return ours
}

// parseStat reads /proc/PID/stat.
func parseStat(text []byte) (pid int, p process, ok bool) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return 0, p, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:open])))
	fields := strings.Fields(string(text[end+1:]))
	if err != nil || len(fields) < 15 {
		return 0, p, false
	}
	p.zombie = fields[0] == "Z"
	if p.parent, err = strconv.Atoi(fields[1]); err != nil {
		return 0, p, false
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, p, false
		}
		p.cpu += float64(ticks) / clockTicks
	}
	return pid, p, true
}

// orphans waits for processes that were not there before, and that have become our children because
// their parents did not wait for them: the supervisors of clients. It returns the processor seconds
// that they had taken. Nobody else waits for them.
func orphans(within time.Duration, before map[int]process) (cpu float64) {
	for deadline := time.Now().Add(within); ; {
		left := 0
		for pid, p := range processes() {
			if _, known := before[pid]; known || p.parent != os.Getpid() {
				continue
			}
			var status unix.WaitStatus
			var usage unix.Rusage
			if got, _ := unix.Wait4(pid, &status, unix.WNOHANG, &usage); got == pid {
				cpu += time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
				continue
			}
			left++
		}
		if left == 0 || time.Now().After(deadline) {
			return cpu
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// freePort returns a port of 127.0.0.1 on which nobody listens.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// listensOn asks the kernel whether somebody listens on a port, so that the server sees nobody come.
func listensOn(place *Place, port int) bool {
	const listen = "0A"
	var text []byte
	place.enter(false, func() error {
		for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
			table, _ := os.ReadFile(file)
			text = append(text, table...)
		}
		return nil
	})
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != listen {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
			return true
		}
	}
	return false
}
