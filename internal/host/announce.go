package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// A listener announces itself with an empty file whose name says everything:
//
//	<run directory>/listen/<network namespace>.<port>/<gid>.<n>@<address>
//
//	network namespace  its cookie, 16 hexadecimal digits
//	port               decimal
//	gid                Extended GID of the host's Emulated-ISM device, in UUID form
//	n                  decimal, tells apart listeners of one host
//	address            an IP address, or "*" for every address of both families
//
// A client that finds none has asked with a single system call. The announcement proves
// nothing by itself: it says whom to ask.
type announcement struct{ path string }

var announcements atomic.Uint64 // numbers the announcements of this process

// announce makes the announcement of a listener at addr, which is not yet unmapped;
// dual says that an unspecified IPv6 address stands for IPv4 too.
func announce(dir string, netns uint64, gid wire.ISMGID, addr netip.AddrPort, dual bool) (*announcement, error) {
	host := addr.Addr().Unmap().WithZone("").String()
	if dual && addr.Addr().IsUnspecified() {
		host = "*"
	}
	folder := announceDir(dir, netns, addr.Port())
	name := fmt.Sprintf("%s.%d@%s", gid, announcements.Add(1), host)
	for try := 1; ; try++ {
		err := makeAnnouncement(filepath.Join(dir, dirListen), folder, name)
		if errors.Is(err, fs.ErrNotExist) && try < announceTries {
			continue // another listener on this port went away and took the folder along
		}
		if err != nil {
			return nil, err
		}
		return &announcement{path: filepath.Join(folder, name)}, nil
	}
}

// makeAnnouncement makes an empty file in a folder under parent, and the folder if it is
// missing. Where several users share the run directory, any of them can have put something
// else in the folder's place, such as a symbolic link to a directory that is not theirs.
func makeAnnouncement(parent, folder, name string) error {
	made := os.Mkdir(folder, 0o755)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return made
	}
	f, err := openFolder(folder)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := os.Stat(parent); made == nil && err == nil && info.Mode()&fs.ModeSticky != 0 {
		if err := f.Chmod(info.Mode() & (fs.ModePerm | fs.ModeSticky)); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(int(f.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &os.PathError{Op: "create", Path: filepath.Join(folder, name), Err: err}
	}
	return unix.Close(fd)
}

// openFolder opens a directory that somebody else may have made: it follows no link, and does
// not wait for a writer of a FIFO.
func openFolder(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// withdraw removes the announcement. nil does nothing.
func (a *announcement) withdraw() {
	if a != nil {
		removeAnnouncement(a.path)
	}
}

// removeAnnouncement removes a file and its folder if that was the last one.
func removeAnnouncement(path string) {
	os.Remove(path)
	unix.Rmdir(filepath.Dir(path)) // fails while others are announced
}

func announceDir(dir string, netns uint64, port uint16) string {
	return filepath.Join(dir, dirListen, fmt.Sprintf("%016x.%d", netns, port))
}

// announced is what a client reads.
type announced struct {
	gid  wire.ISMGID
	on   listenOn
	path string
}

// announcementCache remembers the folders of ports for as long as they do not change, so
// that a client which connects again and again reads them once.
type announcementCache struct {
	mu      sync.Mutex
	folders map[string]announceFolder
}

type announceFolder struct {
	ino     uint64
	changed unix.Timespec
	read    time.Time
	found   []announced
}

// lookup returns who says that it listens at addr. An error means that it could not be found out.
func (c *announcementCache) lookup(dir string, netns uint64, addr netip.AddrPort) ([]announced, error) {
	path := announceDir(dir, netns, addr.Port())
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, nil
	}
	c.mu.Lock()
	f, ok := c.folders[path]
	c.mu.Unlock()
	// The clock of the file system ticks some hundred times a second: what was read just
	// after a change may have missed another one in the same tick.
	changed := time.Unix(st.Mtim.Unix())
	if !ok || f.ino != st.Ino || f.changed != st.Mtim || f.read.Sub(changed) < announceSettled {
		read := time.Now()
		found, err := readAnnouncements(path)
		if err != nil {
			return nil, err // not remembered: next time there may be a descriptor for it
		}
		f = announceFolder{ino: st.Ino, changed: st.Mtim, read: read, found: found}
		c.mu.Lock()
		if c.folders == nil || len(c.folders) >= maxAnnounceFolders {
			c.folders = make(map[string]announceFolder)
		}
		c.folders[path] = f
		c.mu.Unlock()
	}
	var found []announced
	for _, a := range f.found {
		if a.on.covers(addr.Addr()) {
			found = append(found, a)
		}
	}
	return found, nil
}

// readAnnouncements reads the folder of a port.
func readAnnouncements(folder string) (found []announced, err error) {
	f, err := openFolder(folder)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxAnnouncementsRead)
	if err != nil && err != io.EOF {
		return nil, err
	}
	for _, name := range names {
		if gid, on, ok := parseAnnouncement(name); ok {
			found = append(found, announced{gid, on, filepath.Join(folder, name)})
		}
	}
	return found, nil
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
	if gid, ok = parseGID(uuid); !ok {
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

// parseGID is the inverse of ISMGID.String for Extended GIDs.
func parseGID(s string) (gid wire.ISMGID, ok bool) {
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
