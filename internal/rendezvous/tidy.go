package rendezvous

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// A process that is killed, or ends without closing its host, leaves files in the run
// directory. They do no harm, since nobody answers behind them, but somebody has to remove
// them: each host looks at some when it opens.

// Tidy removes the files that dead processes of this user have left in the run directory. It looks
// at a bounded number of files.
func Tidy(dir string) {
	rundir.RemoveOtherBoots(dir)
	ism, err := rundir.OpenDir(rundir.Path(dir, rundir.ISM))
	if err != nil {
		return
	}
	defer ism.Close()
	rundir.RemoveDead(ism, unix.SOCK_SEQPACKET)
	if ctl, err := rundir.OpenDir(rundir.Path(dir, rundir.Control)); err == nil {
		rundir.RemoveDead(ctl, unix.SOCK_STREAM)
		ctl.Close()
	}
	listen, err := rundir.OpenDir(rundir.Path(dir, rundir.Listen))
	if err != nil {
		return
	}
	defer listen.Close()
	for _, name := range rundir.Names(listen) {
		tidyPort(listen, name, ism)
	}
}

// tidyPort removes each announcement on one port if the socket of its device is gone, and the
// folder if that was all.
func tidyPort(listen *os.File, name string, ism *os.File) {
	fd, err := unix.Openat(int(listen.Fd()), name,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	folder := os.NewFile(uintptr(fd), name)
	defer folder.Close()
	for _, name := range rundir.Names(folder) {
		gid, _, ok := parseAnnouncement(name)
		if !ok {
			continue
		}
		var st unix.Stat_t
		gone := unix.Fstatat(int(ism.Fd()), gid.String(), &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT
		if gone && rundir.LeftOver(folder, name, unix.S_IFREG) {
			unix.Unlinkat(fd, name, 0)
		}
	}
	unix.Unlinkat(int(listen.Fd()), name, unix.AT_REMOVEDIR) // fails unless it is empty
}
