package inventory

import (
	"os"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/procs"
)

// NamedNetNS is where ip-netns(8) keeps network namespaces.
const NamedNetNS = "/run/netns"

// A Place says where a process runs. A part that is not known is empty.
type Place struct {
	// User is the effective user of the process, by name, or by number if that has no name.
	User string `json:"user,omitempty"`
	// Namespace is the network namespace: its name of ip-netns(8), or its number as of lsns(8).
	Namespace string `json:"namespace,omitempty"`
	// Container is the container: the first 12 digits of its ID, as docker(1) shows it, or its name.
	// It is empty for a process in none.
	Container string `json:"container,omitempty"`
}

// AddPlaces gives connections and listeners the places of their processes, of both ends where they
// are known and this user may look at them. It comes after all that adds some, in the network
// namespace of the report, which is netns.
func (r *Report) AddPlaces(netns uint64) { r.addPlaces(newPlaces(netns)) }

func (r *Report) addPlaces(p *places) {
	ends := make(map[end]*Conn, len(r.Connections)) // by their addresses
	for i := range r.Connections {
		c := &r.Connections[i]
		c.Place = p.of(c.PID, &c.UID, c.NetNS)
		ends[end{local: c.Local, peer: c.Peer, netns: c.NetNS}] = c
	}
	for i := range r.Listeners {
		l := &r.Listeners[i]
		l.Place = p.of(l.PID, &l.UID, l.NetNS)
	}
	for i := range r.Connections {
		c := &r.Connections[i]
		other := ends[end{local: c.Peer, peer: c.Local, netns: c.NetNS}]
		switch {
		case other != nil && other != c && (c.PeerPID == 0 || c.PeerPID == other.PID):
			c.setPeer(other.Place)
		case c.PeerPID != 0 && (c.Dir == "" || p.sees(c.PID)): // rule: TestAddPlaces: p.sees(c.PID) -> true
			c.setPeer(p.of(c.PeerPID, c.PeerUID, 0))
		case c.PeerUID != nil:
			c.PeerUser = p.user(*c.PeerUID)
		}
	}
}

// setPeer takes over the place of the other end.
func (c *Conn) setPeer(p Place) {
	c.PeerUser, c.PeerNamespace, c.PeerContainer = p.User, p.Namespace, p.Container
}

// places remembers the places of processes, and the names of users and namespaces.
type places struct {
	proc    string            // of procfs
	netns   uint64            // cookie of the report's network namespace
	own     string            // the name of that
	pids    string            // the process namespace of this process
	names   map[string]string // of network namespaces, by number
	users   map[uint32]string
	seen    map[int]Place
	visible map[int]bool
}

func newPlaces(netns uint64) *places {
	p := &places{
		proc: procs.Dir, netns: netns, names: netnsNames(NamedNetNS), users: make(map[uint32]string),
		seen: make(map[int]Place), visible: make(map[int]bool),
	}
	p.own = p.namespace("thread-self")
	p.pids, _ = os.Readlink(filepath.Join(p.proc, "self/ns/pid"))
	return p
}

// of returns the place of a process, which has a socket of a user in a network namespace with a
// cookie. 0 and nil are not known.
func (p *places) of(pid int, uid *uint32, netns uint64) Place {
	place, known := p.seen[pid]
	if !known && pid > 0 {
		dir := filepath.Join(p.proc, strconv.Itoa(pid))
		if uid, ok := procs.User(dir); ok {
			place.User = p.user(uid)
		}
		place.Namespace = p.namespace(strconv.Itoa(pid))
		pids, err := os.Readlink(filepath.Join(dir, "ns/pid"))
		groups, _ := procs.ReadFile(dir, "cgroup")
		place.Container = containerOf(string(groups), err == nil && pids != p.pids)
		p.seen[pid] = place
	}
	if place.User == "" && uid != nil {
		place.User = p.user(*uid)
	}
	switch { // a process can have sockets of another namespace than its own
	case netns == 0 || p.netns == 0:
	case netns == p.netns:
		place.Namespace = p.own
	case place.Namespace == p.own: // rule: TestAddPlaces: place.Namespace == p.own -> false
		place.Namespace = ""
	}
	return place
}

// sees reports whether numbers of processes mean the same to a process and to this one.
func (p *places) sees(pid int) bool {
	seen, known := p.visible[pid]
	if !known {
		pids, err := os.Readlink(filepath.Join(p.proc, strconv.Itoa(pid), "ns/pid"))
		seen = err == nil && pids == p.pids
		p.visible[pid] = seen
	}
	return seen
}

// user returns the name of a user, or the number.
func (p *places) user(uid uint32) string {
	name, known := p.users[uid]
	if !known {
		name = strconv.FormatUint(uint64(uid), 10)
		if u, err := osuser.LookupId(name); err == nil {
			name = u.Username
		}
		p.users[uid] = name
	}
	return name
}

// namespace returns the name of the network namespace of a process, or its number.
func (p *places) namespace(process string) string {
	link, _ := os.Readlink(filepath.Join(p.proc, process, "ns/net"))
	number := strings.TrimSuffix(strings.TrimPrefix(link, "net:["), "]")
	if name := p.names[number]; name != "" {
		return name
	}
	return number
}

// netnsNames returns the names of the network namespaces in a directory like [NamedNetNS], by their
// numbers.
func netnsNames(dir string) map[string]string {
	names := make(map[string]string)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, e.Name()), &st) == nil {
			names[strconv.FormatUint(st.Ino, 10)] = e.Name()
		}
	}
	return names
}

// shortID is how many digits of the ID of a container tools show.
const shortID = 12

// containerOf returns the container of a process, by the text of its /proc/PID/cgroup. apart says that
// the process has a process namespace of its own.
func containerOf(groups string, apart bool) string {
	last := ""
	for line := range strings.Lines(groups) { // number:controllers:path
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		elements := strings.Split(parts[2], "/")
		for i := len(elements) - 1; i >= 0; i-- {
			e := elements[i]
			if id := containerID(e); id != "" {
				return id
			}
			if name, ok := strings.CutPrefix(e, "lxc.payload."); ok {
				return name
			}
			unit := slices.Contains([]string{".scope", ".service", ".slice"}, filepath.Ext(e))
			if last == "" && e != "" && e != ".." && !unit {
				last = e
			}
			// Of systemd-nspawn; apart, since virtual machines have such a name, too.
			name, ok := strings.CutPrefix(strings.TrimSuffix(e, ".scope"), "machine-")
			if ok && apart {
				return unescapeUnit(name)
			}
		}
	}
	if apart { // rule: TestContainerOf: apart -> true
		return last
	}
	return ""
}

// containerID returns the ID of a container from an element of a control group's path, as docker,
// containerd, CRI-O and podman name them: PREFIX-ID.scope, or ID.
func containerID(element string) string {
	id := strings.TrimSuffix(element, ".scope")
	if strings.Contains(id, "conmon") { // the process that looks after a container
		return ""
	}
	id = id[strings.LastIndexAny(id, "-:")+1:]
	if len(id) != 64 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id[:shortID]
}

// unescapeUnit takes the escapes of systemd out of the name of a unit: \x2d is a hyphen.
func unescapeUnit(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if rest, ok := strings.CutPrefix(name[i:], `\x`); ok && len(rest) >= 2 {
			if c, err := strconv.ParseUint(rest[:2], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += len(`\x2d`) - 1
				continue
			}
		}
		b.WriteByte(name[i])
	}
	return b.String()
}
