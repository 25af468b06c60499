package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rdma/orphan"
)

// A vacancy is a shared port without a process, of which the last one has ended a short time ago.
// If that process ended without a word, queue pairs of soft-RoCE send to it for ever. The agent
// answers them ([rdma.OrphanResponder]), as a process on the port would. The vacancy ends after
// vacancyTime, and at once when somebody has the port again.
type vacancy struct {
	orphans *orphan.Responder
	account account // of the process that was given a socket last; of root if that is not known
	began   time.Time
	netns   uint64 // inode of the network namespace, 0 for the agent's own
}

// tick looks for ports whose last process has gone, and for vacancies that end, again and again as
// long as there are ports.
func (p *ports) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.prune()
	for e, v := range p.vacant {
		if owned, err := v.orphans.Owned(); owned || err != nil {
			p.forget(e)
		}
	}
	p.watch()
}

// watch has tick called if there are ports. The caller holds mu, or is alone.
func (p *ports) watch() {
	switch {
	case len(p.open) == 0 || p.closed:
	case p.timer == nil:
		p.timer = time.AfterFunc(p.period, p.tick)
	default:
		p.timer.Reset(p.period)
	}
}

// prune forgets the ports that nobody has any more, and that need no answers. The caller holds mu,
// or is alone.
func (p *ports) prune() {
	var inhabited map[uint64]string // read once, if need be
	for e, sp := range p.open {
		used, err := sp.Used()
		if err != nil {
			continue
		}
		v := p.vacant[e]
		if used {
			if v != nil {
				p.endVacancy(e)
			}
			continue
		}
		if inhabited == nil && e.netns != p.netns {
			inhabited = inhabitedNamespaces()
		}
		if v == nil && p.given[e] {
			v = p.begin(e, inhabited)
		}
		if v == nil || !v.goesOn(p.vacancy, inhabited) {
			p.forget(e)
		}
	}
}

// forget removes a port that nobody has.
func (p *ports) forget(e endpoint) {
	p.endVacancy(e)
	_ = p.open[e].Remove() // a file that stays is found next time
	delete(p.open, e)
	delete(p.given, e)
	delete(p.accounts, e)
}

// endVacancy has the agent answer nobody at e.
func (p *ports) endVacancy(e endpoint) {
	if v := p.vacant[e]; v != nil {
		if n := v.orphans.Refused(); n > 0 {
			p.log.Info("queue pairs of ended processes answered", "address", e.addr, "answers", n)
		}
		v.orphans.Close()
		delete(p.vacant, e)
	}
}

// begin begins a vacancy, nil if that is not possible.
func (p *ports) begin(e endpoint, inhabited map[uint64]string) *vacancy {
	v := &vacancy{account: p.accounts[e], began: time.Now()}
	p.makeRoom(v.account)
	var err error
	respond := func() error {
		addr, err := withIndex(e.addr)
		if err == nil {
			v.orphans, err = orphan.Respond(addr)
		}
		return err
	}
	if e.netns == p.netns {
		err = respond()
	} else {
		v.netns, err = inNamespace(e.netns, inhabited, respond)
	}
	if err != nil {
		p.log.Warn("queue pairs of ended processes are not answered", "address", e.addr, "reason", err)
		return nil
	}
	p.vacant[e] = v
	return v
}

// goesOn reports whether a vacancy is to last. A socket keeps its network namespace, with the
// interfaces in it: so the agent leaves a namespace in which no process is any more.
func (v *vacancy) goesOn(limit time.Duration, inhabited map[uint64]string) bool {
	return time.Since(v.began) <= limit && (v.netns == 0 || inhabited[v.netns] != "")
}

// makeRoom ends the oldest vacancy of an account that has many, or if all accounts together have
// too many, of the account that has the most.
func (p *ports) makeRoom(whose account) {
	count := make(map[account]int)
	for _, v := range p.vacant {
		count[v.account]++
	}
	if count[whose] < maxAccountVacancies {
		if len(p.vacant) < maxVacancies {
			return
		}
		for a, n := range count {
			if n > count[whose] {
				whose = a
			}
		}
	}
	var oldest endpoint
	var since time.Time
	for e, v := range p.vacant {
		if v.account == whose && (since.IsZero() || v.began.Before(since)) {
			oldest, since = e, v.began
		}
	}
	p.forget(oldest)
}

// withIndex replaces an interface's name in the zone of an address by its number, in the network
// namespace of the calling thread.
func withIndex(addr netip.AddrPort) (netip.AddrPort, error) {
	zone := addr.Addr().Zone()
	if zone == "" {
		return addr, nil
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return addr, err
	}
	defer unix.Close(fd)
	index, err := zoneIndex(fd, zone)
	return netip.AddrPortFrom(addr.Addr().WithZone(strconv.FormatUint(uint64(index), 10)), addr.Port()), err
}

// inhabitedNamespaces returns the network namespaces that a process is in, by inode, with a file
// that stands for each. A process is where its first thread is.
func inhabitedNamespaces() map[uint64]string {
	files := make(map[uint64]string)
	names, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, name := range names {
		var st unix.Stat_t
		if unix.Stat(name, &st) == nil && files[st.Ino] == "" { // it may have ended
			files[st.Ino] = name
		}
	}
	return files
}

// errNobodyThere is that no process is in a network namespace.
var errNobodyThere = errors.New("no process is in the network namespace")

// inNamespace calls f in the network namespace with a cookie, which is one of those that processes
// are in, and returns its inode.
func inNamespace(cookie uint64, inhabited map[uint64]string, f func() error) (inode uint64, err error) {
	for inode, name := range inhabited {
		err := onThreadIn(name, inode, cookie, f)
		if !errors.Is(err, errOtherNamespace) {
			return inode, err
		}
	}
	return 0, errNobodyThere
}

// onThreadIn calls f on a thread of its own, in the network namespace of a file.
func onThreadIn(name string, inode, cookie uint64, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			ns, err := os.Open(name)
			if err != nil {
				return errOtherNamespace // the process has ended
			}
			defer ns.Close()
			var st unix.Stat_t
			if err := unix.Fstat(int(ns.Fd()), &st); err != nil || st.Ino != inode {
				return errOtherNamespace // another process has its number
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("network namespace %d: %w", inode, err)
			}
			if own, err := netnsCookie(); err != nil || own != cookie {
				return errOtherNamespace
			}
			return f()
		}()
	}()
	return <-done
}
