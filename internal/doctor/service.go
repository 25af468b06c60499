package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/text"
)

// serviceProcess returns the main process of a service of systemd, with or without .service in its
// name: of the processes in the control group of that name, the first that has its parent elsewhere.
// proc is a directory like [procs.Dir].
func serviceProcess(proc, name string) (pid int, err error) {
	if !strings.HasSuffix(name, ".service") {
		name += ".service"
	}
	var members []int
	for _, pid := range procs.List(proc) {
		groups, _ := procs.ReadFile(filepath.Join(proc, strconv.Itoa(pid)), "cgroup")
		for line := range strings.Lines(string(groups)) {
			if slices.Contains(strings.Split(strings.TrimSuffix(line, "\n"), "/"), name) {
				members = append(members, pid)
				break
			}
		}
	}
	slices.Sort(members)
	for _, pid := range members {
		if !slices.Contains(members, parentOf(proc, pid)) { // rule: TestServiceProcess
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process of the service %s runs here; of a server give the address, HOST:PORT",
		text.Printable(name))
}

// parentOf returns the parent of a process, 0 if it has ended.
func parentOf(proc string, pid int) int {
	stat, _ := procs.ReadFile(filepath.Join(proc, strconv.Itoa(pid)), "stat")
	// The name, in brackets, may have blanks and brackets in it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// noProcess is the error for a number that no process has. It may have been meant as a port.
func noProcess(pid int) error {
	if pid > 0 && pid < 1<<16 { // rule: TestNoProcess: pid > 0 -> false
		return fmt.Errorf("there is no process %d; of a server at that port: gosmc doctor :%d", pid, pid)
	}
	return fmt.Errorf("there is no process %d", pid)
}
