package inspect

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
)

// A Process is a program that was started by 'gosmc run' and has the library.
type Process struct {
	PID     int
	Command string
	UID     int
	Dir     string // its run directory
	Ended   bool   // its supervisor has ended, as if it was killed: new connections are TCP
	Old     bool   // the file of its library has been replaced or removed since: it has another version
}

// Processes returns the programs of 'gosmc run' that the caller may look at, by process ID.
func Processes() []Process {
	var list []Process
	for pid, socket := range programsOfRun() {
		path := procs.Reach(pid, socket) // rule: cmd/gosmc TestDoctorElsewhere: procs.Reach(pid, socket) -> socket
		p := Process{PID: pid, Command: procs.Command(pid), Dir: above(filepath.Dir(socket)),
			Ended: !proto.Answers(path)}
		dir := filepath.Join(procs.Dir, strconv.Itoa(pid))
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil {
			continue // it has ended
		}
		p.UID = int(st.Uid)
		maps, _ := procs.ReadFile(dir, "maps")
		p.Old = packagedAndGone(maps)
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	return list
}

// packagedAndGone reports whether a memory map has the library of a package whose file is not there
// any more. Copies elsewhere are removed while programs have them.
func packagedAndGone(maps []byte) bool {
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "/libgosmc-run.so") && strings.HasSuffix(line, " (deleted)\n") {
			return true
		}
	}
	return false
}

// WhyNotRun says why a process is none of 'gosmc run', "" if it is one. The error tells that it
// cannot be looked at.
func WhyNotRun(pid int) (string, error) {
	dir := filepath.Join(procs.Dir, strconv.Itoa(pid))
	if _, err := os.Stat(dir); err != nil {
		return "", err
	}
	maps, err := procs.ReadFile(dir, "maps")
	switch {
	case err != nil:
		return "", err
	case procs.Loaded(maps):
		return "", nil
	}
	if why := Obstacle(filepath.Join(dir, "exe")); why != "" {
		return "the library cannot be loaded into it: " + why, nil
	}
	return "it was not started by 'gosmc run'", nil
}

// maxGenerations bounds the way from a process up to those that have started it.
const maxGenerations = 64

// IsOrIsBelow reports whether a process is another one, or was started by it or its children.
func IsOrIsBelow(pid, ancestor int) bool {
	for range maxGenerations {
		if pid == ancestor {
			return true
		}
		stat, err := procs.ReadFile(filepath.Join(procs.Dir, strconv.Itoa(pid)), "stat")
		if err != nil {
			return false
		}
		// The name, in brackets, may have blanks and brackets in it.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			return false
		}
		if pid, err = strconv.Atoi(fields[1]); err != nil || pid == 0 {
			return false
		}
	}
	return false
}
