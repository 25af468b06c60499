package applicable

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/netns"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/sockdiag"
)

// An id names an end of a connection for as long as the machine runs.
type id struct {
	ns     uint64
	cookie uint64
}

// A route is the addresses of an end in a network namespace.
type route struct {
	ns          uint64
	local, peer netip.AddrPort
}

// An end is one end of a connection that is followed.
type end struct {
	route
	uid         uint32
	pid         int // 0: not known
	inode       uint32
	old         bool // it was there when sampling began
	first, last sockdiag.Info
	born, seen  time.Time
}

// A gone is an end of which the kernel has said that it has ended.
type gone struct {
	ns     uint64
	socket sockdiag.Socket
	info   sockdiag.Info
}

// A namespace is a network namespace.
type namespace struct {
	id   uint64
	pid  int // a process in it
	ends *sockdiag.Ends
}

// A listener is a socket that listens, or has listened while we sampled.
type listener struct {
	socket sockdiag.Socket
	pid    int
}

// A sampler follows the connections of the machine. One goroutine uses it; those that hear of ends
// use news alone.
type sampler struct {
	spaces    map[uint64]*namespace
	ends      map[id]*end
	byRoute   map[route]*end
	counted   map[id]bool                       // missed in a look; news of them may come later
	listeners map[uint64]map[uint16][]*listener // by namespace and port
	listening int
	addresses map[netip.Addr]bool // of all namespaces
	owned     map[uint32]int      // processes by inode
	processes map[int]*process
	pairs     map[pairKey]*pair

	scanned  time.Time // end of the last look at processes
	scanCost time.Duration
	unknown  bool // an end has no process yet

	began   time.Time
	omitted int // ends beyond maxEnds or maxPairs
	denied  int // namespaces that could not be joined
	deaf    int // namespaces whose ends could not be heard of

	readers sync.WaitGroup
	news    news
}

// news are ends that were heard of and not yet counted.
type news struct {
	mu   sync.Mutex
	list []gone
	lost bool
}

func (n *news) add(g gone) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.list) >= maxEnded { // rule: TestNewsBound
		n.lost = true
		return
	}
	n.list = append(n.list, g)
}

func (n *news) lose() {
	n.mu.Lock()
	n.lost = true
	n.mu.Unlock()
}

func (n *news) take() []gone {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.list
	n.list = nil
	return list
}

func newSampler() *sampler {
	return &sampler{
		spaces: make(map[uint64]*namespace), ends: make(map[id]*end),
		byRoute: make(map[route]*end), counted: make(map[id]bool),
		listeners: make(map[uint64]map[uint16][]*listener), addresses: make(map[netip.Addr]bool),
		processes: make(map[int]*process), pairs: make(map[pairKey]*pair),
	}
}

// sample follows connections until ctx ends or the time is over.
func (s *sampler) sample(ctx context.Context, period time.Duration) error {
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, period)
	defer cancel()
	s.began = time.Now()
	for first := true; ; first = false {
		start := time.Now()
		s.scan(first)
		if err := s.look(first); err != nil {
			return err
		}
		timer := time.NewTimer(max(minEvery, costly*time.Since(start)))
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			timer.Stop()
		}
		// The last look tells of connections that are there yet.
		s.scan(true)
		if err := s.look(false); err != nil {
			return err
		}
		for _, e := range s.ends {
			s.count(e, false)
		}
		for _, p := range s.processes {
			p.again()
		}
		return nil
	}
}

func (s *sampler) close() {
	for _, n := range s.spaces {
		if n.ends != nil {
			n.ends.Close()
		}
	}
	s.readers.Wait()
}

// scan finds network namespaces and the processes of sockets, if must is true or an end has no
// process yet. It rests in between, as a look at all descriptors of a machine takes long.
func (s *sampler) scan(must bool) {
	if !must && (!s.unknown || time.Since(s.scanned) < costly*s.scanCost) {
		return
	}
	start := time.Now()
	s.findSpaces()
	s.owned = owners()
	for _, e := range s.ends {
		if e.pid == 0 {
			e.pid = s.owner(e.inode)
		}
	}
	for _, p := range s.processes {
		p.again()
	}
	s.scanned, s.scanCost, s.unknown = time.Now(), time.Since(start), false
}

// findSpaces adds network namespaces that have appeared, leaves those that have no process any more,
// and finds another process for those whose process has ended.
func (s *sampler) findSpaces() {
	there := make(map[uint64]bool)
	for _, pid := range procs.List(procs.Dir) {
		ns, err := namespaceOf(pid)
		if err != nil {
			continue
		}
		there[ns] = true
		n := s.spaces[ns]
		switch {
		case n == nil && len(s.spaces) < maxNamespaces:
			s.open(ns, pid)
		case n != nil:
			if was, err := namespaceOf(n.pid); err != nil || was != ns {
				n.pid = pid
			}
		}
	}
	own, _ := ownNamespace()
	for ns, n := range s.spaces {
		if there[ns] || ns == own {
			continue
		}
		if n.ends != nil {
			n.ends.Close() // else the socket would keep the namespace
		}
		delete(s.spaces, ns) // rule: TestForget
	}
}

// open begins to listen for ends in a namespace.
func (s *sampler) open(ns uint64, pid int) {
	n := &namespace{id: ns, pid: pid}
	s.spaces[ns] = n
	own, err := ownNamespace()
	if err != nil {
		s.deaf++
		return
	}
	err = in(n, own, func() (err error) {
		n.ends, err = sockdiag.WatchEnds()
		return err
	})
	if err != nil {
		s.deaf++
		return
	}
	s.readers.Go(func() {
		for {
			lost, err := n.ends.Read(func(k sockdiag.Socket, i sockdiag.Info) {
				s.news.add(gone{ns, k, i})
			})
			if lost {
				s.news.lose()
			}
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				s.news.lose()
				return
			}
		}
	})
}

// in calls a function in a namespace. That of this process needs no privilege. The process by which
// the namespace was found may have ended since, or be in another one, so the thread is checked.
func in(n *namespace, own uint64, f func() error) error {
	if n.id == own {
		return f()
	}
	return netns.In(n.pid, func() error {
		if have, err := ownNamespace(); err != nil || have != n.id { // rule: TestStranger
			return errElsewhere
		}
		return f()
	})
}

// ownNamespace returns the namespace of the calling thread. That of the process is no substitute:
// its first thread may be one that a call of netns.In has left in another one.
func ownNamespace() (uint64, error) {
	text, err := os.Readlink(filepath.Join(procs.Dir, "thread-self/ns/net"))
	if err != nil {
		return 0, err
	}
	return parseNamespace(text)
}

var errElsewhere = errors.New("the process is in another network namespace by now")

func namespaceOf(pid int) (uint64, error) {
	text, err := os.Readlink(filepath.Join(procs.Dir, strconv.Itoa(pid), "ns/net"))
	if err != nil {
		return 0, err
	}
	return parseNamespace(text)
}

// parseNamespace reads the target of a link to a network namespace: net:[4026531833].
func parseNamespace(text string) (uint64, error) {
	const prefix = "net:["
	if len(text) <= len(prefix) {
		return 0, errors.New("no namespace")
	}
	return strconv.ParseUint(text[len(prefix):len(text)-1], 10, 64)
}

// look takes a sample of all namespaces. The error is that of our own one.
func (s *sampler) look(first bool) error {
	now := time.Now()
	own, err := ownNamespace()
	if err != nil {
		return err
	}
	if s.spaces[own] == nil {
		s.open(own, os.Getpid())
	}
	s.denied = 0
	complete := make(map[uint64]bool)
	for _, n := range s.spaces {
		err := in(n, own, func() error { return s.lookAt(n, now, first) })
		if err != nil && n.id == own {
			return err
		}
		if errors.Is(err, os.ErrPermission) { // else the namespace has ended, or its process
			s.denied++
		}
		complete[n.id] = err == nil
	}
	// The ends of a connection are counted before either is forgotten, as each names the other's program.
	over := make(map[id]*end)
	for _, g := range s.news.take() {
		s.end(g, now, over)
	}
	for key, e := range s.ends {
		if !e.seen.Equal(now) && (complete[key.ns] || now.Sub(e.seen) > time.Minute) { // rule: TestForget
			over[key] = e
			if len(s.counted) >= maxEnded {
				clear(s.counted)
			}
			s.counted[key] = true
		}
	}
	for _, e := range over {
		s.count(e, true)
	}
	for key, e := range over {
		delete(s.ends, key)
		if s.byRoute[e.route] == e {
			delete(s.byRoute, e.route)
		}
	}
	return nil
}

// lookAt takes a sample of the namespace of the calling thread.
func (s *sampler) lookAt(n *namespace, now time.Time, first bool) error {
	list, err := sockdiag.Listeners(0)
	if err != nil {
		return err
	}
	for _, l := range list {
		s.listen(n.id, l)
	}
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if p, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(p.IP); ok {
				s.addresses[ip.Unmap()] = true
			}
		}
	}
	return sockdiag.EachTCP(func(k sockdiag.Socket, i sockdiag.Info) { s.see(n.id, k, i, now, first) })
}

// listen notes a socket that listens. It stays known when it is closed: its connections may live on.
func (s *sampler) listen(ns uint64, k sockdiag.Socket) {
	ports := s.listeners[ns]
	if ports == nil {
		ports = make(map[uint16][]*listener)
		s.listeners[ns] = ports
	}
	port := k.Local.Port()
	for _, l := range ports[port] {
		if l.socket.Cookie == k.Cookie {
			if l.pid == 0 {
				l.pid = s.owner(k.Inode)
			}
			return
		}
	}
	if s.listening >= maxListeners {
		return
	}
	s.listening++
	l := &listener{k, s.owner(k.Inode)}
	if l.pid == 0 {
		s.unknown = true
	}
	ports[port] = append(ports[port], l)
}

// listener returns the one that an address belongs to, nil if there is none.
func (s *sampler) listener(ns uint64, a netip.AddrPort) *listener {
	var found *listener
	for _, l := range s.listeners[ns][a.Port()] {
		if l.socket.Gets(a) && (found == nil || found.pid == 0) {
			found = l
		}
	}
	return found
}

// owner returns the process with a socket, 0 if it is not known, and makes it a known process.
func (s *sampler) owner(inode uint32) int {
	pid := s.owned[inode]
	if pid == 0 || inode == 0 {
		return 0
	}
	if s.processes[pid] == nil && len(s.processes) < maxProcesses {
		if p, err := look(pid); err == nil {
			s.processes[pid] = p
		}
	}
	return pid
}

// see notes an end that there is.
func (s *sampler) see(ns uint64, k sockdiag.Socket, i sockdiag.Info, now time.Time, first bool) {
	key := id{ns, k.Cookie}
	e := s.ends[key]
	if e == nil {
		if len(s.ends) >= maxEnds { // rule: TestBounds
			s.omitted++
			return
		}
		e = &end{
			route: route{ns, k.Local, k.Peer}, uid: k.UID, inode: k.Inode, old: first, born: now,
		}
		if first {
			e.first = i
		}
		s.ends[key], s.byRoute[e.route] = e, e
	}
	e.last, e.seen = i, now
	if e.inode == 0 {
		e.inode = k.Inode // it is accepted by now
	}
	if e.pid == 0 {
		if e.pid = s.owner(e.inode); e.pid == 0 {
			s.unknown = true
		}
	}
}

// end notes an end that has ended. It may have been too short for a look.
func (s *sampler) end(g gone, now time.Time, over map[id]*end) {
	key := id{g.ns, g.socket.Cookie}
	if s.counted[key] { // rule: TestLateNews
		delete(s.counted, key)
		return
	}
	e := s.ends[key]
	if e == nil {
		e = &end{
			route: route{g.ns, g.socket.Local, g.socket.Peer}, uid: g.socket.UID, born: now, seen: now,
		}
		if s.byRoute[e.route] == nil {
			s.byRoute[e.route] = e
		}
	}
	if g.info.Known {
		e.last = g.info
	}
	over[key] = e
}
