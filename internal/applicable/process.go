package applicable

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/procs"
)

// ticks is USER_HZ, the unit of processor time in /proc, which is the same on all architectures of ours.
const ticks = 100

// A process is one with a TCP connection or listener, as it was when it was first seen.
type process struct {
	pid      int
	start    uint64 // when it started, which tells it from a later one with the same number
	command  string
	uid      uint32
	obstacle string // to the library, as inspect.Obstacle says
	under    bool   // it was started by 'gosmc run'

	first, last cpu
}

// A cpu is the processor time of a process, in seconds, at a time.
type cpu struct {
	at           time.Time
	user, system float64
}

// load is the mean processor time of a process for each second between two looks.
type load struct{ user, system float64 }

func (l load) total() float64 { return l.user + l.system }

// load returns the load of a process between its first look and its last.
func (p *process) load() load {
	s := p.last.at.Sub(p.first.at).Seconds()
	if s <= 0 {
		return load{}
	}
	return load{(p.last.user - p.first.user) / s, (p.last.system - p.first.system) / s}
}

// look reads what is known of a process.
func look(pid int) (*process, error) {
	dir := filepath.Join(procs.Dir, strconv.Itoa(pid))
	p := &process{pid: pid}
	var err error
	if p.start, p.first, err = stat(pid); err != nil {
		return nil, err
	}
	p.uid, _ = procs.User(dir)
	p.last = p.first
	p.command = procs.Command(pid)
	p.under = procs.Supervisor(pid) != ""
	if exe := filepath.Join(dir, "exe"); !p.under {
		if _, err := os.Stat(exe); err == nil { // else it may not be looked at
			p.obstacle = inspect.Obstacle(exe)
		} else {
			p.obstacle = "it may not be looked at: run as root"
		}
	}
	return p, nil
}

// again reads the processor time of a process anew. It reports false if the process has ended.
func (p *process) again() bool {
	start, now, err := stat(p.pid)
	if err != nil || start != p.start { // rule: TestProcess
		return false
	}
	p.last = now
	return true
}

// stat reads /proc/PID/stat. The name in it, in parentheses, may have any characters.
func stat(pid int) (start uint64, c cpu, err error) {
	b, err := os.ReadFile(filepath.Join(procs.Dir, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, c, err
	}
	text := string(b)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const utime, stime, starttime = 11, 12, 19 // proc(5) counts from 1 and has two fields more
	if len(fields) <= starttime {
		return 0, c, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	user, _ := strconv.ParseUint(fields[utime], 10, 64)
	system, _ := strconv.ParseUint(fields[stime], 10, 64)
	start, err = strconv.ParseUint(fields[starttime], 10, 64)
	return start, cpu{time.Now(), float64(user) / ticks, float64(system) / ticks}, err
}

// owners finds the processes that have sockets, by inode. Of several with one socket, the one that
// was listed first counts, as the kernel lists by number. A process that may not be looked at, and one
// that ends meanwhile, has none.
func owners() map[uint32]int {
	owned := make(map[uint32]int)
	for _, pid := range procs.List(procs.Dir) {
		dir := filepath.Join(procs.Dir, strconv.Itoa(pid), "fd")
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		names, _ := f.Readdirnames(-1)
		f.Close()
		for _, name := range names {
			target, err := os.Readlink(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			text, ok := strings.CutPrefix(target, "socket:[")
			inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 32)
			if !ok || err != nil || len(owned) >= maxOwned {
				continue
			}
			if _, have := owned[uint32(inode)]; !have {
				owned[uint32(inode)] = pid
			}
		}
	}
	return owned
}
