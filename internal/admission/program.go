package admission

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// ProgramHash is the hash of a program in a key: exe is its file; script its first argument, "" if
// there is none. The first argument of an interpreter is the program that runs.
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

// fileID is the identity of a file, nil if it is to be a regular one and is none.
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

// ownHash is the hash of this process.
func ownHash() (uint64, error) {
	script := ""
	if len(os.Args) > 1 {
		script = os.Args[1]
	}
	return ProgramHash("/proc/self/exe", script)
}
