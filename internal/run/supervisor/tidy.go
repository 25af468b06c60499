package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// tidy removes the files that killed supervisors have left. It tells the log of the supervisors
// that have programs which still run: their new connections are TCP. A nil warn tells nobody, and
// looks for none. A socket gets its final name when it can be connected to. Nothing is removed
// unless it has a name that only supervisors give: where others may have put the directory there,
// it may be a link to any.
func tidy(dir string, warn func(string)) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	dead := make(map[string]bool) // by the name of a supervisor's socket, which its letterboxes have before a dot
	for _, e := range entries {
		name := proto.LinkedSocket(e.Name())
		if _, known := dead[name]; !known && e.Type() == fs.ModeSocket && proto.IsSocketName(name) {
			dead[name] = !proto.Answers(filepath.Join(dir, name))
		}
	}
	for name, ended := range dead {
		if !ended || warn == nil {
			continue
		}
		if pids, _ := procs.Supervised(filepath.Join(dir, name)); len(pids) > 0 { // rule: TestTidy
			warn(fmt.Sprintf("the supervisor of %s (pid %d) has ended, as if it was killed: new connections to it are TCP until it is started again",
				procs.Command(pids[0]), pids[0]))
		}
	}
	for name, ended := range dead {
		if ended {
			removeSocket(filepath.Join(filepath.Dir(dir), rundir.Control, name)) // rule: TestTidy
		}
	}
	for _, sockets := range []bool{true, false} { // then the links to them
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case sockets && (e.Type() == fs.ModeSocket && (proto.IsSocketName(e.Name()) || proto.IsBox(e.Name())) || proto.IsMark(e.Name())) && dead[proto.LinkedSocket(e.Name())]: // rule: TestTidyElsewhere: (proto.IsSocketName(e.Name()) || proto.IsBox(e.Name())) -> true
				os.Remove(path)
			case !sockets && e.Type() == fs.ModeSymlink && proto.IsLink(e.Name()): // rule: TestTidyElsewhere: proto.IsLink(e.Name()) -> true
				target, _ := os.Readlink(path)
				if _, err := os.Lstat(filepath.Join(dir, proto.LinkedSocket(target))); errors.Is(err, fs.ErrNotExist) {
					os.Remove(path)
				}
			}
		}
	}
}

// removeSocket removes a file if it is a socket.
func removeSocket(path string) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		os.Remove(path)
	}
}
