package admission

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// ProgramHash is that of a program in a key: exe is its file; script its first argument, "" if
// there is none. Of an interpreter that is what runs.
func ProgramHash(exe, script string) (uint64, error) {
	of, err := fileID(exe, false)
	if err != nil {
		return 0, err
	}
	var argument []byte
	if script != "" && script[0] != '-' {
		argument, _ = fileID(script, true)
	}
	return hash(of, argument) | 1, nil
}

// fileID is by what a file is known, nil if it is to be a regular one and is none.
func fileID(path string, regular bool) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if regular && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil
	}
	o := binary.NativeEndian
	return o.AppendUint64(o.AppendUint64(nil, uint64(st.Dev)), uint64(st.Ino)), nil
}

// ownHash is that of this process.
func ownHash() (uint64, error) {
	script := ""
	if len(os.Args) > 1 {
		script = os.Args[1]
	}
	return ProgramHash("/proc/self/exe", script)
}
