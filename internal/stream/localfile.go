package stream

import (
	"os"
	"syscall"
)

// Magic numbers of file systems that have their data on this machine: linux/magic.h.
const (
	magicTmpfs = 0x01021994
	magicExt   = 0xef53
	magicXFS   = 0x58465342
	magicBtrfs = 0x9123683e
	magicF2FS  = 0xf2f52010
)

// localFile reports whether f is known to be on a file system whose reads do not depend on
// another machine or another process.
func localFile(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	local := false
	raw.Control(func(fd uintptr) {
		var st syscall.Statfs_t
		if syscall.Fstatfs(int(fd), &st) != nil {
			return
		}
		switch uint32(st.Type) {
		case magicTmpfs, magicExt, magicXFS, magicBtrfs, magicF2FS:
			local = true
		}
	})
	return local
}
