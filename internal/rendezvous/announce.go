package rendezvous

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/wire"
)

// A listener announces itself with an empty file. Its name says everything:
//
//	<run directory>/<boot>/listen/<network namespace>.<port>/<gid>.<n>@<address>
//
//	boot               the kernel's boot id, 32 hexadecimal digits
//	network namespace  its cookie, 16 hexadecimal digits
//	port               decimal
//	gid                Extended GID of the host's Emulated-ISM device, in UUID form
//	n                  decimal, tells apart listeners of one host
//	address            an IP address, or "*" for every address of both families
//
// A client that finds none has asked with a single system call. The announcement proves
// nothing by itself: it says whom to ask.
type Announcement struct{ path string }

var announcements atomic.Uint64 // numbers the announcements of this process

// Announce makes the announcement of a listener at addr, which is not yet unmapped;
// dual says that an unspecified IPv6 address stands for IPv4 too.
func Announce(dir string, netns uint64, gid wire.ISMGID, addr netip.AddrPort,
	dual bool) (*Announcement, error) {
	host := addr.Addr().Unmap().WithZone("").String()
	if dual && addr.Addr().IsUnspecified() {
		host = "*"
	}
	folder := Folder(dir, netns, addr.Port())
	name := fmt.Sprintf("%s.%d@%s", gid, announcements.Add(1), host)
	for try := 1; ; try++ {
		err := makeAnnouncement(rundir.Path(dir, rundir.Listen), folder, name)
		if errors.Is(err, fs.ErrNotExist) && try < announceTries {
			continue // another listener on this port went away and took the folder along
		}
		if err != nil {
			return nil, err
		}
		return &Announcement{path: filepath.Join(folder, name)}, nil
	}
}

// announceMode is the mode of an announcement. The sticky bit of a file tells programs that clean
// up by age to pass it by: tmpfiles.d(5), XDG Base Directory Specification.
const announceMode = unix.S_ISVTX | 0o644

// makeAnnouncement makes an empty file in a folder under parent, and the folder if it is
// missing. Where several users share the run directory, any of them can have put something
// else in the folder's place, such as a symbolic link to a directory that is not theirs.
func makeAnnouncement(parent, folder, name string) error {
	info, err := os.Stat(parent)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSticky != 0 { // shared, so others may have a listener on this port, too
		err = rundir.Mkdir(folder, info.Mode()&(fs.ModePerm|fs.ModeSticky|fs.ModeSetgid))
	} else {
		err = os.Mkdir(folder, 0o755)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := rundir.OpenDir(folder)
	if err != nil {
		return err
	}
	defer f.Close()
	fd, err := unix.Openat(int(f.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC,
		announceMode)
	if err != nil {
		return &os.PathError{Op: "create", Path: filepath.Join(folder, name), Err: err}
	}
	return unix.Close(fd)
}

// isThere reports whether the announcement has not been removed by somebody else.
func (a *Announcement) isThere() bool {
	var st unix.Stat_t
	return unix.Lstat(a.path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

// Withdraw removes the announcement. nil does nothing.
func (a *Announcement) Withdraw() {
	if a != nil {
		removeAnnouncement(a.path)
	}
}

// removeAnnouncement removes a file and its folder if that was the last one.
func removeAnnouncement(path string) {
	os.Remove(path)
	unix.Rmdir(filepath.Dir(path)) // fails while others are announced
}

// Folder is where the listeners on a port of a network namespace announce themselves in a run
// directory.
func Folder(dir string, netns uint64, port uint16) string {
	return filepath.Join(rundir.Path(dir, rundir.Listen), fmt.Sprintf("%016x.%d", netns, port))
}

// listenOn is where a listener listens: one address, or any of one or both families.
type listenOn struct {
	addr netip.Addr
	any  bool // both families
}

func (l listenOn) covers(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return l.any || l.addr == a || l.addr.IsUnspecified() && l.addr.Is4() == a.Is4()
}

// parseAnnouncement takes a file name apart. Anybody may have put it there.
func parseAnnouncement(name string) (gid wire.ISMGID, on listenOn, ok bool) {
	id, host, ok := strings.Cut(name, "@")
	if !ok {
		return gid, on, false
	}
	uuid, number, ok := strings.Cut(id, ".")
	if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
		return gid, on, false
	}
	if gid, ok = ParseGID(uuid); !ok {
		return gid, on, false
	}
	if host == "*" {
		return gid, listenOn{any: true}, true
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" {
		return gid, on, false
	}
	return gid, listenOn{addr: addr}, true
}

// ParseGID is the inverse of ISMGID.String for Extended GIDs.
func ParseGID(s string) (gid wire.ISMGID, ok bool) {
	if len(s) != 36 {
		return gid, false
	}
	var u [16]byte
	n := 0
	for i := 0; i < len(s); {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if s[i] != '-' {
				return gid, false
			}
			i++
			continue
		}
		hi, lo := strings.IndexByte(hexDigits, s[i]), strings.IndexByte(hexDigits, s[i+1])
		if hi < 0 || lo < 0 {
			return gid, false
		}
		u[n] = byte(hi<<4 | lo)
		n++
		i += 2
	}
	gid = wire.ISMGIDFromUUID(u)
	return gid, gid.Lo != 0
}

const hexDigits = "0123456789abcdef"
