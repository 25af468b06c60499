package survey

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/user"
)

// Bounds of the look at other mount namespaces. Users can make as many of them as they like, and
// what they like in them, also file systems that do not answer.
const (
	maxProcesses   = 1 << 16 // in /proc
	maxRoots       = 256     // mount namespaces of one owner
	maxOwners      = 32      // whose mount namespaces are looked into at a time
	maxRootsAtOnce = 8       // of one owner
	maxNamesInside = 4096    // in a directory there
	maxDirsInside  = 64      // run directories in one of them

	elsewhereTime     = 5 * time.Second // of one look
	elsewhereInterval = time.Second     // between two looks of one who follows
)

// A place is a run directory.
type place struct {
	dir   string
	key   string // the same for each path of the directory
	owner int    // the user who pays for the time that its hosts take
}

// A fileID says which file it is, whatever its path.
type fileID struct{ dev, ino uint64 }

// elsewhere returns the run directories in other mount namespaces than ours, such as
// containers, as paths below /proc/PID/root: those that hosts of this boot use, and none of those
// in known. Each is there once for each user namespace that shows it, since a user can show any
// directory in one, and its hosts are asked only if they are of that namespace. Only root sees
// them. [rundir.OpenDir] opens such a path. It takes no longer than elsewhereTime, and leaves out
// the places that it has not reached by then.
func elsewhere(known []string) []place {
	if os.Geteuid() != 0 {
		return nil
	}
	l := look{seen: make(map[string]bool)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, dir := range known {
			if id, ok := identify(dir); ok {
				l.known = append(l.known, id)
			}
		}
		l.run(roots("/proc"))
	}()
	select {
	case <-done:
	case <-time.After(elsewhereTime): // rule: TestElsewhereHung: elsewhereTime -> time.Hour
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	slices.SortFunc(l.found, func(a, b place) int { return strings.Compare(a.dir, b.dir) })
	return l.found
}

// A look is one search by elsewhere.
type look struct {
	known []fileID

	mu    sync.Mutex
	seen  map[string]bool // by key
	found []place
	over  bool // nobody reads found any more
}

// A root is the root directory of a process, the one with the smallest number in its mount
// namespace.
type root struct {
	dir       string
	namespace uint64
	home      user.Home
}

// stuck has the mount namespaces that are being looked into: one with a file system that does not
// answer takes no more than one thread.
var stuck sync.Map

// run looks below roots, some of each owner at a time. A file system that does not answer holds up
// nobody but its owner.
func (l *look) run(byOwner map[int][]root) {
	owners := slices.Sorted(maps.Keys(byOwner)) // users whom an administrator has made come first
	each(maxOwners, owners, func(owner int) {
		each(maxRootsAtOnce, byOwner[owner], func(r root) {
			// rule: TestElsewhereHung: there { -> !there && there {
			if _, there := stuck.LoadOrStore(r.namespace, true); there {
				return
			}
			defer stuck.Delete(r.namespace)
			l.below(r)
		})
	})
}

// below looks for run directories below a root.
func (l *look) below(r root) {
	n := 0
	for _, dir := range dirsInside(r.dir) {
		id, ok := identify(dir)
		if !ok || slices.Contains(l.known, id) { // rule: TestElsewhere: slices.Contains(l.known, id) -> false
			continue
		}
		if n++; n > maxDirsInside { // rule: TestElsewhere: maxDirsInside -> maxProcesses
			return
		}
		if !l.add(place{dir, fmt.Sprint(id, r.home.Namespace), r.home.Owner}) {
			return
		}
	}
}

// add reports whether the look goes on.
func (l *look) add(p place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && !l.seen[p.key] {
		l.seen[p.key] = true
		l.found = append(l.found, p)
	}
	return !l.over
}

// identify returns which directory of control sockets a run directory has, if any.
func identify(dir string) (fileID, bool) {
	d, err := rundir.OpenDir(rundir.Path(dir, rundir.Control))
	if err != nil {
		return fileID{}, false
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return fileID{}, false
	}
	return fileID{st.Dev, st.Ino}, true
}

// roots returns a root for each mount namespace but ours, by owner, at most maxRoots of each. A
// user of a user namespace is one of many that its owner has: the owner counts.
func roots(proc string) map[int][]root {
	var own, ns unix.Stat_t
	if unix.Stat(filepath.Join(proc, "self/ns/mnt"), &own) != nil {
		return nil
	}
	seen := map[uint64]bool{own.Ino: true}
	list := make(map[int][]root)
	for _, pid := range numbers(proc, maxProcesses) {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if unix.Stat(filepath.Join(dir, "ns/mnt"), &ns) != nil || seen[ns.Ino] {
			continue
		}
		home, err := user.HomeOf(pid)
		if err != nil {
			continue
		}
		seen[ns.Ino] = true
		if len(list[home.Owner]) < maxRoots {
			list[home.Owner] = append(list[home.Owner], root{filepath.Join(dir, "root"), ns.Ino, home})
		}
	}
	return list
}

// dirsInside returns the places of run directories below the root of a process.
func dirsInside(root string) []string {
	list := []string{filepath.Join(root, "run/gosmc")}
	for _, uid := range numbers(filepath.Join(root, "run/user"), maxNamesInside) {
		list = append(list, fmt.Sprintf("%s/run/user/%d/gosmc", root, uid))
	}
	for _, name := range namesIn(filepath.Join(root, "tmp"), maxNamesInside) {
		// rule: TestDirsInside: !strings.ContainsFunc(name, unicode.IsControl) -> unicode.IsPrint(65)
		if strings.HasPrefix(name, "gosmc-") && !strings.ContainsFunc(name, unicode.IsControl) {
			list = append(list, filepath.Join(root, "tmp", name))
		}
	}
	return list
}

// numbers returns the names in a directory that are numbers, in order.
func numbers(dir string, limit int) (list []int) {
	for _, name := range namesIn(dir, limit) {
		if n, err := strconv.Atoi(name); err == nil && n > 0 {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// namesIn returns names in a directory, in order.
func namesIn(dir string, limit int) []string {
	d, err := rundir.OpenDir(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(limit)
	slices.Sort(names)
	return names
}

// here returns the run directories of our own mount namespace as places. Their hosts are of several
// users, and an owner pays for those in the owner's directory.
func here(dirs []string) (list []place) {
	for _, dir := range dirs {
		p := place{dir: dir, key: dir}
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil {
			p.owner = int(st.Uid)
		}
		list = append(list, p)
	}
	return list
}

// byOwner sorts indices of places by owner, users whom an administrator has made first.
func byOwner(list []place) [][]int {
	of := make(map[int][]int)
	for i, p := range list {
		of[p.owner] = append(of[p.owner], i)
	}
	var lanes [][]int
	for _, lane := range of {
		lanes = append(lanes, lane)
	}
	slices.SortFunc(lanes, func(a, b []int) int { return cmp.Compare(list[a[0]].owner, list[b[0]].owner) })
	return lanes
}

// places are the run directories in which a follower looks now. It looks for other mount namespaces
// less often than for hosts, and does not wait for such a look but for the first.
func (f *follower) places() []place {
	known := dirs(f.Dir)
	list := here(known)
	if f.Dir != "" {
		return list
	}
	if f.looks == nil {
		f.looks, f.looked = make(chan []place, 1), time.Now()
		f.elsewhere = elsewhere(known)
	}
	select {
	case f.elsewhere = <-f.looks:
		f.looking = false
	default:
	}
	if !f.looking && time.Since(f.looked) >= elsewhereInterval {
		f.looking, f.looked = true, time.Now()
		go func() { f.looks <- elsewhere(known) }()
	}
	return append(list, f.elsewhere...)
}
