package broker

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sockdiag"
)

// A listener is a TCP socket on which a program of ours listens. OnlyIPv6 counts: connections of
// IPv4 to its port come to others, maybe of another user.
type listener = sockdiag.Socket

// Listeners are the listening sockets of one supervisor's programs, by port. A symbolic link
// <netns>.<port> in the directory tells programs that connect which supervisor to ask. Its target
// is the name of the supervisor's socket. Where all listeners of the port have one address, and the
// policy allows all connections there, a dot and the address follow: connections to it need not
// wait for an answer.
type Listeners struct {
	dir, socket string // socket is a name in dir
	NetNS       uint64
	ports       map[uint16][]listener
	looked      map[uint16]time.Time
	records     map[uint16]claimRecord
	count       int
	swept       time.Time // when all of them were last looked for
	policy      *config.Policy
	ask         bool         // clients have to ask: there are no letterboxes
	Programs    func() []int // whose listeners are no strangers; nil: nobody's
}

// A claimRecord records the claims and relays of connections to a port.
type claimRecord struct {
	claims int       // how many more connections were claimed than relayed
	lost   time.Time // when a letter was the first that nobody claimed: clients ask since; zero: none was
}

// NewListeners returns the listeners of the supervisor with a socket of this name in a directory, and
// in a network namespace with this cookie.
func NewListeners(dir, socket string, netns uint64) *Listeners {
	return &Listeners{
		dir: dir, socket: socket, NetNS: netns,
		ports: make(map[uint16][]listener), looked: make(map[uint16]time.Time), records: make(map[uint16]claimRecord),
	}
}

// OpenLetters has links say the addresses of listeners where the policy allows all connections: there
// are letterboxes now.
func (l *Listeners) OpenLetters(policy *config.Policy) { l.policy, l.ask = policy, false }

// Reload has links follow another policy. Where that refuses connections, clients have to ask, and
// are told so; connections that were offered before go on.
func (l *Listeners) Reload(policy *config.Policy) {
	if l.policy == nil {
		return // links say no addresses
	}
	l.policy = policy
	for port := range l.ports {
		l.renew(port)
	}
}

// Link is the path of the link for a port.
func (l *Listeners) Link(port uint16) string { return proto.LinkPath(l.dir, l.NetNS, port) }

// Add announces a listener. It reports false if connections to it have to stay TCP: another
// supervisor has the port, or the program is in another network namespace than its supervisor.
func (l *Listeners) Add(m proto.Message) bool {
	port := m.Local.Port()
	if m.NetNS != l.NetNS || port == 0 {
		return false
	}
	if l.count >= maxListeners {
		l.sweep() // rule: TestListenersOfThePast
	}
	if l.count >= maxListeners {
		return false
	}
	if slices.ContainsFunc(l.ports[port], func(have listener) bool { return have.Cookie == m.Unique }) {
		return true // listen may be called again
	}
	ours := listener{Local: m.Local, Cookie: m.Unique}
	if m.Local.Addr() == netip.IPv6Unspecified() {
		ours.OnlyIPv6 = onlyIPv6(ours)
	}
	if len(l.ports[port]) > 0 && !l.linked(port) { // rule: TestPortComesBack
		l.Look(port) // another supervisor has had the port since ours listened there
	}
	if len(l.ports[port]) == 0 && !l.publish(port, ours) {
		return false
	}
	l.ports[port] = append(l.ports[port], ours)
	l.looked[port] = time.Now()
	l.count++
	l.renew(port)
	return true
}

// target is the target of a port's link.
func (l *Listeners) target(port uint16) string {
	list := l.ports[port]
	if len(list) == 0 || l.ask || !l.records[port].lost.IsZero() || list[0].OnlyIPv6 || slices.ContainsFunc(list, func(have listener) bool { return have.Local != list[0].Local }) { // rule: TestOnly6: list[0].OnlyIPv6 -> false
		return l.socket
	}
	local := list[0].Local
	if l.policy != nil && (local.Addr().IsUnspecified() && !l.policy.Listen.AnyAddress(port) || l.policy.Listen.RefusesListener(local) != "") { // rule: internal/run/supervisor TestLinkSaysAddress
		return l.socket
	}
	ip := local.Addr().As16()
	return l.socket + "." + hex.EncodeToString(ip[:])
}

// linked reports whether the link of a port is ours.
func (l *Listeners) linked(port uint16) bool {
	target, err := os.Readlink(l.Link(port))
	return err == nil && proto.LinkedSocket(target) == l.socket
}

// renew corrects the target of a port's link, if the link is ours.
func (l *Listeners) renew(port uint16) {
	want := l.target(port)
	if target, err := os.Readlink(l.Link(port)); err == nil && proto.LinkedSocket(target) == l.socket &&
		target != want && !l.replace(port, want) {
		os.Remove(l.Link(port)) // its target would be wrong: TCP
	}
}

// replace puts a link in the place of the one that a port has.
func (l *Listeners) replace(port uint16, target string) bool {
	early := filepath.Join(l.dir, fmt.Sprintf(".new-%s-%d", l.socket, port))
	if os.Symlink(target, early) != nil {
		return false
	}
	if os.Rename(early, l.Link(port)) != nil {
		os.Remove(early)
		return false
	}
	return true
}

// publish makes the link for a port on which a socket of ours listens. A link that is there already
// belongs to a program that listens beside us, if there is one; else it was left over.
func (l *Listeners) publish(port uint16, ours listener) bool {
	err := os.Symlink(l.socket, l.Link(port))
	if err == nil {
		// A later supervisor finds the link. An earlier listener may have no link: the listener of
		// a second supervisor's program, or of a program without a supervisor.
		others, err := l.strangers(ours)
		if err == nil && len(others) > 0 { // rule: TestListenersShared
			os.Remove(l.Link(port))
			return false
		}
		return true
	}
	target, err2 := os.Readlink(l.Link(port))
	if !errors.Is(err, fs.ErrExist) || err2 != nil {
		return false
	}
	target = proto.LinkedSocket(target)
	if target == l.socket {
		return true
	}
	if target != "" && filepath.Base(target) == target && proto.Answers(filepath.Join(l.dir, target)) {
		now, err := sockdiag.Listeners(port)
		if err != nil {
			return false
		}
		if slices.ContainsFunc(now, func(s sockdiag.Socket) bool { return s.Cookie != ours.Cookie }) {
			// The kernel shares connections out between the listeners, so most would be offered to
			// one and accepted by another.
			os.Remove(l.Link(port)) // rule: TestListenersShared
			return false
		}
	}
	return l.replace(port, l.socket)
}

// remove withdraws one of the listeners on a port. It returns its address, the zero value if there
// is no such.
func (l *Listeners) remove(port uint16, cookie uint64) (local netip.AddrPort) {
	i := slices.IndexFunc(l.ports[port], func(have listener) bool { return have.Cookie == cookie })
	if i < 0 {
		return local
	}
	local = l.ports[port][i].Local
	l.ports[port] = slices.Delete(l.ports[port], i, i+1)
	l.count--
	if len(l.ports[port]) == 0 {
		l.withdraw(port)
	}
	return local
}

// Has reports whether one of ours gets connections to an address.
func (l *Listeners) Has(to netip.AddrPort) bool {
	l.refresh(to.Port())
	return slices.ContainsFunc(l.ports[to.Port()], func(have listener) bool { return have.Gets(to) })
}

// onlyIPv6 asks the kernel whether a listener gets connections of IPv6 only. It may not be asked: then
// offers for connections that do not come show it.
func onlyIPv6(l listener) bool {
	now, _ := sockdiag.Listeners(l.Local.Port())
	return slices.ContainsFunc(now,
		func(s sockdiag.Socket) bool { return s.Cookie == l.Cookie && s.OnlyIPv6 })
}

// refresh forgets the listeners on a port that are not there any more.
func (l *Listeners) refresh(port uint16) {
	if time.Since(l.looked[port]) >= listenerAge {
		l.Look(port)
	}
}

// Look is refresh, however long ago that was done.
func (l *Listeners) Look(port uint16) {
	if len(l.ports[port]) == 0 {
		return
	}
	now, err := sockdiag.Listeners(port)
	if err != nil {
		return // an error shows when nobody claims
	}
	l.keep(port, cookies(now))
}

// sweep forgets all listeners that are not there any more, unless that was done just now. Programs
// that listen at another port for each connection, as servers of FTP do, leave many behind for
// which no offer ever comes.
func (l *Listeners) sweep() {
	if time.Since(l.swept) < listenerAge {
		return
	}
	now, err := sockdiag.Listeners(0)
	if err != nil {
		return
	}
	l.swept = time.Now()
	there := cookies(now)
	for port := range l.ports {
		l.keep(port, there)
	}
}

// keep keeps those listeners on a port that are there.
func (l *Listeners) keep(port uint16, there map[uint64]bool) {
	l.looked[port] = time.Now()
	before := len(l.ports[port])
	l.ports[port] = slices.DeleteFunc(l.ports[port], func(have listener) bool { return !there[have.Cookie] })
	l.count -= before - len(l.ports[port])
	if len(l.ports[port]) == 0 {
		l.withdraw(port)
	} else {
		l.renew(port)
	}
}

func cookies(list []sockdiag.Socket) map[uint64]bool {
	there := make(map[uint64]bool, len(list))
	for _, s := range list {
		there[s.Cookie] = true
	}
	return there
}

// Claims is how many more connections to a port were claimed than relayed.
func (l *Listeners) Claims(port uint16) int { return l.records[port].claims }

// Claimed notes that programs have claimed n connections to a port.
func (l *Listeners) Claimed(port uint16, n int) {
	r := l.records[port]
	r.claims += n
	l.records[port] = r
}

// relayed notes that nobody has claimed: the program that accepts there does so without us. A relay
// costs more than it could gain, so where that is the rule connections stay TCP, until a program
// listens on the port anew.
//
// Of a letter the server may have known nothing: its mark is a size of segments, which a loopback
// interface with a small MTU cuts down, and which SYN cookies forget. So clients of the port have
// to ask first, and letters that were on their way count for nothing.
func (l *Listeners) relayed(now time.Time, port uint16, letter bool) {
	r := l.records[port]
	first := r.lost.IsZero()
	if letter && !first && now.Sub(r.lost) < lostLetters { // rule: TestLettersLost
		return
	}
	r.claims--
	if r.claims < 0 && letter && first && len(l.ports[port]) > 0 { // rule: TestLettersLost
		l.records[port] = claimRecord{lost: now}
		l.renew(port)
		return
	}
	l.records[port] = r
	if r.claims < 0 {
		l.withdraw(port)
	}
}

func (l *Listeners) withdraw(port uint16) {
	l.count -= len(l.ports[port])
	delete(l.ports, port)
	delete(l.looked, port)
	delete(l.records, port)
	if l.linked(port) {
		os.Remove(l.Link(port))
	}
}

// Close withdraws everything.
func (l *Listeners) Close() {
	for port := range l.ports {
		l.withdraw(port)
	}
}
