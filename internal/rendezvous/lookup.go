package rendezvous

import (
	"io"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/wire"
)

// announced is an announcement as a client reads it.
type announced struct {
	gid  wire.ISMGID
	on   listenOn
	path string
}

// announcementCache remembers the folders of ports for as long as they do not change, so
// that a client which connects again and again reads them once.
type announcementCache struct {
	mu      sync.Mutex
	folders map[folderKey]announceFolder
}

// folderKey has the parts of the path of a folder.
type folderKey struct {
	dir   string
	netns uint64
	port  uint16
}

type announceFolder struct {
	path    string
	ino     uint64
	changed unix.Timespec
	read    time.Time
	found   []announced
}

// lookup returns the announcements of processes that say that they listen at addr. An error means
// that these could not be found out.
func (c *announcementCache) lookup(dir string, netns uint64, addr netip.AddrPort) ([]announced, error) {
	key := folderKey{dir, netns, addr.Port()}
	c.mu.Lock()
	f, ok := c.folders[key]
	c.mu.Unlock()
	if !ok {
		f.path = Folder(dir, netns, addr.Port())
	}
	var st unix.Stat_t
	if unix.Lstat(f.path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, nil
	}
	// The clock of the file system ticks some hundred times a second: a read just after a change
	// may have missed another one in the same tick.
	changed := time.Unix(st.Mtim.Unix())
	if !ok || f.ino != st.Ino || f.changed != st.Mtim || f.read.Sub(changed) < announceSettled {
		read := time.Now()
		found, err := readAnnouncements(f.path)
		if err != nil {
			return nil, err // not remembered: next time there may be a descriptor for it
		}
		f = announceFolder{path: f.path, ino: st.Ino, changed: st.Mtim, read: read, found: found}
		c.mu.Lock()
		if c.folders == nil || len(c.folders) >= maxAnnounceFolders {
			c.folders = make(map[folderKey]announceFolder)
		}
		c.folders[key] = f
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
	f, err := rundir.OpenDir(folder)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(MaxAnnouncements)
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
