package agent

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/introduce"
)

// An introducer is the agent's introduction service. Processes reach it at the agent's socket, and in each
// network namespace at a room.
type introducer struct {
	server *introduce.Server
	kernel *bpf.Pairing
	log    *slog.Logger
	own    uint64 // cookie of the agent's network namespace
	period time.Duration

	reports *bpf.Reports
	pace    pace // of the goroutine that reads reports
	wg      sync.WaitGroup
	stop    chan struct{}
	given   chan struct{} // closed when the server has ended

	mu     sync.Mutex
	closed bool
	rooms  map[uint64]*room
}

// A room is an abstract Unix socket in a network namespace, at which processes reach the agent. Its name is
// random, and the kernel tells it to the processes: nobody else can have it before. Whoever has it after
// the agent was killed cannot sign as the agent does: [introduce.Room].
type room struct {
	listener *net.UnixListener
	inode    uint64 // of the namespace
	account  account
}

// tokens is the kernel as the server asks it.
type tokens struct{ kernel *bpf.Pairing }

// Tokens implements [introduce.Verifier].
func (t tokens) Tokens(fd int) (mine, theirs uint64, err error) {
	s, err := t.kernel.Read(fd)
	return s.Tokens.Mine, s.Tokens.Theirs, err
}

// newIntroducer begins to introduce processes. The error says which part of the system is missing.
func newIntroducer(cfg *Config, own uint64, kernel *bpf.Pairing, log *slog.Logger) (*introducer, error) {
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	i := &introducer{
		kernel: kernel, log: log, own: own,
		stop: make(chan struct{}), given: make(chan struct{}), rooms: make(map[uint64]*room),
		period: cfg.lookPeriod,
	}
	if i.period == 0 {
		i.period = lookPeriod
	}
	users := introduce.Users{Mode: introduce.ModeAny}
	if cfg.Introduce != nil {
		users = *cfg.Introduce
	}
	i.server = introduce.NewServer(introduce.Config{
		Verifier: tokens{kernel}, Users: users, BootID: boot, Overcommit: overcommit, Logger: log,
		Identify: func(c *net.UnixConn) (introduce.Identity, error) {
			who, err := identify(c)
			return who.identity(own), err
		},
	})
	if i.reports, err = kernel.Reports(); err != nil {
		i.server.Close()
		return nil, err
	}
	if err := i.keep(cfg.Keeper); err != nil {
		log.Warn("introduction: without a keeper, if the agent is killed connections end", "err", err)
	}
	i.reopen()
	i.wg.Go(i.listenToKernel)
	i.wg.Go(i.tidy)
	return i, nil
}

// startIntroducer starts the introduction service, if the kernel pairs sockets.
func (a *Agent) startIntroducer() (*introducer, error) {
	if a.option == nil {
		return nil, errors.New("the programs in the kernel are switched off")
	}
	kernel, err := a.option.Pairing()
	if err != nil {
		return nil, err
	}
	return newIntroducer(&a.cfg, a.netns, kernel, a.log)
}

// identity returns a client as the server knows it. own is the cookie of the agent's network namespace.
func (c *client) identity(own uint64) introduce.Identity {
	a, limited := accountOf(c.user, c.netns, own)
	return introduce.Identity{
		PID: int32(c.pid), UID: c.user, GID: c.group, Groups: c.supplementary,
		Account: introduce.Account{User: a.user, Netns: a.netns}, Limited: limited,
	}
}

// reopen opens rooms in the namespaces in which the agent before this one had some.
func (i *introducer) reopen() {
	old, err := i.kernel.Names()
	if err != nil {
		i.log.Warn("introduction: names of another agent", "err", err)
	}
	for _, netns := range old {
		if err := i.kernel.RemoveName(netns); err != nil {
			i.log.Warn("introduction: name of another agent", "err", err)
		}
	}
	i.enter(bpf.Report{Netns: i.own, Process: uint32(os.Getpid())}, nil)
	if len(old) == 0 {
		return
	}
	inhabited := inhabitedNamespaces()
	for _, netns := range old {
		i.enter(bpf.Report{Netns: netns}, inhabited)
	}
}

// listenToKernel opens a room in each network namespace in which a process asks.
func (i *introducer) listenToKernel() {
	for {
		r, err := i.reports.Next()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			i.log.Warn("introduction: report of the kernel", "err", err)
			return
		}
		whose, limited := accountOf(r.User, r.Netns, i.own)
		if limited && !i.pace.mayGo(whose, time.Now()) {
			continue
		}
		if began := time.Now(); !i.enter(r, nil) {
			i.pace.failed(whose, time.Since(began), time.Now())
		}
	}
}

// enter opens a room in the namespace of a report. inhabited may be nil. It reports false if that failed.
func (i *introducer) enter(r bpf.Report, inhabited map[uint64]string) bool {
	whose, limited := accountOf(r.User, r.Netns, i.own)
	if !i.hasRoom(r.Netns, whose, limited) {
		return true // without a look
	}
	var l *net.UnixListener
	key := introduce.NewRoom()
	open := func() (err error) {
		l, err = listenAbstract(key.Name())
		return err
	}
	inode, err := uint64(0), errOtherNamespace
	if r.Process != 0 {
		inode, err = inNamespaceOf(r.Process, r.Netns, open)
	}
	if r.Process == 0 { // which takes long, so not for processes that ask and end at once
		if inhabited == nil {
			inhabited = inhabitedNamespaces()
		}
		inode, err = inNamespace(r.Netns, inhabited, open)
	}
	if err != nil {
		i.log.Warn("introduction: network namespace", "cookie", r.Netns, "pid", r.Process, "err", err)
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || i.rooms[r.Netns] != nil {
		l.Close()
		return true
	}
	if err := i.kernel.SetName(r.Netns, key.Name()); err != nil {
		i.log.Warn("introduction: name", "cookie", r.Netns, "err", err)
		l.Close()
		return false
	}
	i.rooms[r.Netns] = &room{listener: l, inode: inode, account: whose}
	i.wg.Go(func() { i.server.Serve(l, key) })
	i.log.Info("introduction: network namespace", "cookie", r.Netns, "pid", r.Process, "uid", r.User)
	return true
}

// hasRoom reports whether a namespace that has none may have a room.
func (i *introducer) hasRoom(netns uint64, whose account, limited bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || i.rooms[netns] != nil {
		return false
	}
	own := 0
	for _, r := range i.rooms {
		if r.account == whose {
			own++
		}
	}
	return len(i.rooms) < maxRooms && (!limited || own < maxAccountRooms) // rule: TestRooms: own < maxAccountRooms -> own >= 0
}

// tidy closes the rooms of namespaces in which no process is any more, again and again. A socket keeps its
// network namespace, with the interfaces in it.
func (i *introducer) tidy() {
	tick := time.NewTicker(i.period)
	defer tick.Stop()
	for {
		select {
		case <-i.stop:
			return
		case <-tick.C:
		}
		i.mu.Lock()
		others := len(i.rooms) > 1 || i.rooms[i.own] == nil && len(i.rooms) > 0
		i.mu.Unlock()
		if !others {
			continue
		}
		inhabited := inhabitedNamespaces()
		i.mu.Lock()
		for netns, r := range i.rooms {
			if netns != i.own && inhabited[r.inode] == "" { // rule: internal/host TestPodsEnd
				i.closeRoomLocked(netns, r)
			}
		}
		i.mu.Unlock()
	}
}

func (i *introducer) closeRoomLocked(netns uint64, r *room) {
	if err := i.kernel.RemoveName(netns); err != nil {
		i.log.Warn("introduction: name", "cookie", netns, "err", err)
	}
	r.listener.Close()
	delete(i.rooms, netns)
}

// namespaces counts the rooms.
func (i *introducer) namespaces() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.rooms)
}

// close ends the service. Processes that were introduced go on.
func (i *introducer) close() {
	close(i.stop)
	i.reports.Close()
	i.mu.Lock()
	i.closed = true
	for netns, r := range i.rooms {
		i.closeRoomLocked(netns, r)
	}
	i.mu.Unlock()
	i.server.Close()
	close(i.given)
	i.wg.Wait()
}

// listenAbstract makes a socket with an abstract name in the network namespace of the calling thread.
func listenAbstract(name string) (l *net.UnixListener, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "introduction")
	defer f.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, roomBacklog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	made, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return made.(*net.UnixListener), nil
}

// inNamespaceOf calls f in the network namespace with a cookie, in which a thread of the process is. A
// process may be in several.
func inNamespaceOf(process uint32, cookie uint64, f func() error) (inode uint64, err error) {
	return lookThrough(process, cookie, f, onThreadIn)
}

// lookThrough is inNamespaceOf by a function that enters the namespace of a file.
func lookThrough(
	process uint32, cookie uint64, f func() error, enter func(string, uint64, uint64, func() error) error,
) (inode uint64, err error) {
	files := []string{fmt.Sprintf("/proc/%d/ns/net", process)}
	if threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/ns/net", process)); err == nil {
		files = append(files, threads[:min(len(threads), maxThreads)]...)
	}
	tried := make(map[uint64]bool)
	for _, file := range files {
		var st unix.Stat_t
		if unix.Stat(file, &st) != nil || tried[st.Ino] {
			continue
		}
		if len(tried) >= maxThreadNamespaces { // rule: TestManyNamespaces
			break
		}
		tried[st.Ino] = true
		if err := enter(file, st.Ino, cookie, f); !errors.Is(err, errOtherNamespace) {
			return st.Ino, err
		}
	}
	return 0, errOtherNamespace
}

// bootID reads the kernel's boot ID.
func bootID() (id [16]byte, err error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, err
	}
	n, err := hex.Decode(id[:], []byte(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")))
	if err == nil && n != len(id) {
		err = errors.New("the kernel's boot ID is too short")
	}
	return id, err
}

// overcommit reads vm.overcommit_memory. A setting that cannot be read is the strict one, which costs
// memory only.
func overcommit() uint8 {
	text, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if err != nil || len(text) == 0 {
		return 2
	}
	return text[0] - '0'
}

// isHello waits for the first message of a client, and reports whether it is for the introducer. The
// message stays. The error is that none comes.
func isHello(c *net.UnixConn) (bool, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var b [1]byte
	n := 0
	cerr := raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	switch {
	case cerr != nil:
		return false, cerr
	case err != nil:
		return false, err
	case n == 0:
		return false, errSilent
	}
	return introduce.Kind(b[0]) == introduce.KindHello, nil
}
