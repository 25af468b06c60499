package broker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// Tidy removes the files that killed supervisors have left, and calls killed for each of them
// before, unless that is nil. A socket gets its final name when it can be connected to. Nothing is
// removed unless it has a name that only supervisors give: where others may have put the directory
// there, it may be a link to any.
func Tidy(dir string, killed func(socket string)) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	// by the name of a supervisor's socket, which its letterboxes have before a dot
	dead := make(map[string]bool)
	for _, e := range entries {
		name := proto.LinkedSocket(e.Name())
		if _, known := dead[name]; !known && e.Type() == fs.ModeSocket && proto.IsSocketName(name) {
			dead[name] = !proto.Answers(filepath.Join(dir, name))
		}
	}
	for name, ended := range dead {
		if ended && killed != nil {
			killed(filepath.Join(dir, name))
		}
	}
	for name, ended := range dead {
		if ended {
			removeSocket(filepath.Join(filepath.Dir(dir), rundir.Control, name)) // rule: internal/run/supervisor TestTidy
		}
	}
	for _, sockets := range []bool{true, false} { // then the links to them
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case sockets && (e.Type() == fs.ModeSocket && (proto.IsSocketName(e.Name()) || proto.IsBox(e.Name())) || proto.IsMark(e.Name())) && dead[proto.LinkedSocket(e.Name())]: // rule: internal/run/supervisor TestTidyElsewhere: (proto.IsSocketName(e.Name()) || proto.IsBox(e.Name())) -> true
				os.Remove(path)
			case !sockets && e.Type() == fs.ModeSymlink && proto.IsLink(e.Name()): // rule: internal/run/supervisor TestTidyElsewhere: proto.IsLink(e.Name()) -> true
				target, _ := os.Readlink(path)
				if _, err := os.Lstat(filepath.Join(dir, proto.LinkedSocket(target))); errors.Is(err,
					fs.ErrNotExist) {
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
