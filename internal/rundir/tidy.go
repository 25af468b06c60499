package rundir

import (
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/user"
)

const (
	// maxTidied is how many files of each kind are looked at for left-overs of dead
	// processes, of at most maxNames, and tidyAge how old they must be.
	maxTidied = 64
	maxNames  = 16 << 10
	tidyAge   = time.Minute

	// otherBootAge is how old a file of another boot must be to be taken for left over. It may
	// belong to another machine that runs; that one then makes it again.
	otherBootAge = 10 * 24 * time.Hour
)

// RemoveDead removes the sockets of type kind in a directory behind which nobody listens, if they
// are this user's and not just being made: old enough, for those get their name only when they
// listen. Files of any other kind are not touched: the directory may have been somebody's before it
// became a run directory. It looks at a bounded number of files.
func RemoveDead(d *os.File, kind int) {
	for _, name := range Names(d) {
		if !leftOver(d, name, unix.S_IFSOCK, tidyAge) {
			continue
		}
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return
		}
		// The path of a socket may have 107 bytes; this one leads to the same place.
		addr := unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)}
		if unix.Connect(fd, &addr) == unix.ECONNREFUSED {
			unix.Unlinkat(int(d.Fd()), name, 0)
		}
		unix.Close(fd)
	}
}

// LeftOver reports whether a file is of a type (such as [unix.S_IFREG]), this user's to remove, and
// not just being made.
func LeftOver(d *os.File, name string, format uint32) bool { return leftOver(d, name, format, tidyAge) }

func leftOver(d *os.File, name string, format uint32, age time.Duration) bool {
	var st unix.Stat_t
	if unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil ||
		st.Mode&unix.S_IFMT != format {
		return false
	}
	return user.Ours(int(st.Uid)) && time.Since(time.Unix(st.Mtim.Unix())) > age
}

// Names returns names in a directory, at most those that are looked at for left-overs. Where there
// are more it chooses by chance: tmpfs lists the newest files first. Behind the files of
// short-lived processes, of which one a second is enough, nothing old would ever be seen.
func Names(d *os.File) []string {
	names, _ := d.Readdirnames(maxNames)
	if len(names) > maxTidied {
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names = names[:maxTidied]
	}
	return names
}

// RemoveOtherBoots removes the files that this user's processes have left in a run directory when
// an earlier boot of this machine ended, a long time ago. It looks at a bounded number of files.
func RemoveOtherBoots(dir string) {
	d, err := OpenDir(dir)
	if err != nil {
		return
	}
	defer d.Close()
	for _, name := range Names(d) {
		if !isBoot(name) || name == boot() {
			continue
		}
		each(d, name, func(own *os.File) {
			for _, sub := range []string{ISM, Control} {
				each(own, sub, func(f *os.File) { removeOld(f, unix.S_IFSOCK) })
			}
			for _, sub := range []string{Run, partOf(os.Geteuid())} {
				each(own, sub, func(f *os.File) { removeOld(f, unix.S_IFREG) }) // tables
			}
			each(own, Listen, func(listen *os.File) {
				for _, port := range Names(listen) {
					each(listen, port, func(f *os.File) { removeOld(f, unix.S_IFREG) })
				}
			})
		})
	}
}

// each calls f with a subdirectory, and then removes that if it is empty and ours.
func each(parent *os.File, name string, f func(*os.File)) {
	fd, err := unix.Openat(int(parent.Fd()), name,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	f(d)
	if leftOver(parent, name, unix.S_IFDIR, otherBootAge) {
		unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
	}
}

func removeOld(d *os.File, format uint32) {
	for _, name := range Names(d) {
		if leftOver(d, name, format, otherBootAge) {
			unix.Unlinkat(int(d.Fd()), name, 0)
		}
	}
}
