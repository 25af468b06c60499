package survey

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gosmc/smc/internal/rundir"
)

// offList remembers, until the next boot, which run directories root has switched off: the programs
// that used them may have ended.
const offList = "/run/gosmc.off"

// A Switched is a run directory that is switched off or on.
type Switched struct {
	Dir     string `json:"dir"`
	Changed bool   `json:"changed"`         // it was not so before
	Error   string `json:"error,omitempty"` // why it could not be
}

// Switch switches run directories off or on: one, or with "" all that this user may.
func Switch(dir string, off bool) []Switched {
	if dir != "" {
		return []Switched{switchOne(dir, off)}
	}
	text, _ := os.ReadFile(offList)
	dirs := append(Dirs(), strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })...)
	sockets, _ := os.ReadFile("/proc/net/unix")
	dirs = append(dirs, dirsOfSockets(string(sockets))...)
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	if off && os.Geteuid() == 0 {
		remember(offList, dirs) // without it 'gosmc on' still finds those that are in use
	}
	var list []Switched
	for _, dir := range dirs {
		s := switchOne(dir, off)
		if s.Error == "" && !s.Changed && !(off && rundir.IsOff(dir)) {
			continue // nobody uses it, or it was on
		}
		list = append(list, s)
	}
	if !off && os.Geteuid() == 0 &&
		!slices.ContainsFunc(list, func(s Switched) bool { return s.Error != "" }) {
		os.Remove(offList)
	}
	return list
}

// remember writes a list of directories at once: one that is there stays if there is no room.
func remember(list string, dirs []string) {
	early := list + ".new"
	if os.WriteFile(early, []byte(strings.Join(dirs, "\n")+"\n"), 0o644) != nil || os.Rename(early, list) != nil { // rule: TestRemember
		os.Remove(early)
	}
}

func switchOne(dir string, off bool) Switched {
	change := rundir.SwitchOn
	if off {
		change = rundir.SwitchOff
	}
	changed, err := change(dir)
	s := Switched{Dir: dir, Changed: changed}
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		s.Error = err.Error() + ": run as root"
	default:
		s.Error = err.Error()
	}
	return s
}

// dirsOfSockets returns the run directories of the control sockets in a text such as
// /proc/net/unix: DIR/BOOT/ctl/NAME. Every program that uses SMC has one. Directories of other mount
// namespaces may be none here.
func dirsOfSockets(text string) (dirs []string) {
	for line := range strings.Lines(text) {
		name := strings.TrimSuffix(line, "\n")
		for range 7 { // fields in front of the name, which may have blanks
			_, name, _ = strings.Cut(strings.TrimLeft(name, " "), " ")
		}
		part, ok := strings.CutSuffix(filepath.Dir(name), "/"+rundir.Control)
		if dir := filepath.Dir(part); ok && filepath.IsAbs(dir) && rundir.Own(dir) == part {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Off returns the run directories that are switched off, of those in which somebody looks: dir, or
// all that [Dirs] finds if it is empty.
func Off(dir string) (off []string) {
	for _, d := range dirs(dir) {
		if rundir.IsOff(d) {
			off = append(off, d)
		}
	}
	return off
}
