package agent

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/big"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/wire"
)

// An endpoint is a port that is shared: in one network namespace, of one address.
type endpoint struct {
	netns uint64
	addr  netip.AddrPort // with the zone of a link-local address
}

// pin is the name under which an endpoint is pinned. The names of such a file system have no dots.
//
//	port-<cookie of the namespace>-<address, 32 hexadecimal digits>-<port>-<zone, in hexadecimal digits>
func (e endpoint) pin() string {
	addr := e.addr.Addr().As16()
	return fmt.Sprintf("port-%d-%x-%d-%x", e.netns, addr, e.addr.Port(), e.addr.Addr().Zone())
}

// parsePin is the other way round.
func parsePin(name string) (e endpoint, ok bool) {
	fields := strings.Split(name, "-")
	if len(fields) != 5 || fields[0] != "port" {
		return e, false
	}
	netns, err1 := strconv.ParseUint(fields[1], 10, 64)
	addr, err2 := hex.DecodeString(fields[2])
	udp, err3 := strconv.ParseUint(fields[3], 10, 16)
	zone, err4 := hex.DecodeString(fields[4])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || len(addr) != 16 {
		return e, false
	}
	ip := netip.AddrFrom16([16]byte(addr)).Unmap().WithZone(string(zone))
	return endpoint{netns, netip.AddrPortFrom(ip, uint16(udp))}, true
}

// ports are the ports that are shared. All facts about them are in the kernel, so that an agent
// that is started again goes on where the last one has ended.
type ports struct {
	pins    string
	netns   uint64 // cookie of the agent's network namespace
	log     *slog.Logger
	period  time.Duration // between two looks whether ports have processes
	vacancy time.Duration // how long a vacancy lasts

	mu       sync.Mutex
	open     map[endpoint]*bpf.Port
	given    map[endpoint]bool    // those of which a process had a socket
	accounts map[endpoint]account // who was given a socket last, as far as this agent knows
	vacant   map[endpoint]*vacancy
	timer    *time.Timer // of tick; nil before there was a port
	closed   bool
}

// newPorts finds the ports that are pinned, and takes care of those that nobody has any more.
func newPorts(cfg *Config, netns uint64, log *slog.Logger) (*ports, error) {
	p := &ports{
		pins: cfg.Pins, netns: netns, log: log,
		period: cmp.Or(cfg.lookPeriod, lookPeriod), vacancy: cmp.Or(cfg.vacancyTime, vacancyTime),
		open: make(map[endpoint]*bpf.Port), given: make(map[endpoint]bool),
		accounts: make(map[endpoint]account), vacant: make(map[endpoint]*vacancy),
	}
	entries, err := os.ReadDir(p.pins)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		e, ok := parsePin(entry.Name())
		if !ok {
			continue
		}
		bp, err := bpf.OpenPort(p.pins, entry.Name(), randomKey())
		if err != nil { // of another version, or half removed: it is made again when somebody asks
			_ = bpf.RemovePort(p.pins, entry.Name())
			continue
		}
		p.open[e] = bp
		p.given[e] = true
	}
	p.prune()
	p.watch()
	return p, nil
}

func randomKey() (key [16]byte) {
	rand.Read(key[:]) // never fails
	return key
}

// sweep forgets the ports that nobody has any more, and returns the owners of the others. The
// caller holds mu, or is alone.
func (p *ports) sweep() map[endpoint]map[uint32]bpf.Owner {
	p.prune()
	all := make(map[endpoint]map[uint32]bpf.Owner, len(p.open))
	for e, sp := range p.open {
		all[e], _ = sp.Owners() // none if they cannot be read
	}
	return all
}

// grant makes a socket for a client. One of its threads has asked.
func (p *ports) grant(who *client, addr netip.AddrPort, thread int) (answer port.Answer, fd int, err error) {
	ip := addr.Addr()
	if !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() || ip.Is4In6() || addr.Port() == 0 ||
		len(ip.Zone()) >= unix.IFNAMSIZ || (ip.Zone() != "" && !ip.IsLinkLocalUnicast()) {
		return answer, -1, fmt.Errorf("%v is not an address and port of a device", addr)
	}
	e := endpoint{who.netns, addr}
	p.mu.Lock()
	defer p.mu.Unlock()
	sp, err := p.find(e, who)
	if err != nil {
		return answer, -1, err
	}
	defer func() {
		if err != nil {
			p.sweep() // it may have been made for nothing
		}
	}()
	slot, err := choose(sp, who)
	if err != nil {
		return answer, -1, err
	}
	p.endVacancy(e) // from now on its next process answers
	if fd, err = bindShared(addr, who, thread); err != nil {
		return answer, -1, err
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err == nil {
		err = sp.Put(slot, fd, bpf.Owner{Cookie: cookie, User: who.user, Process: uint32(who.pid)})
	}
	if err != nil {
		unix.Close(fd)
		return answer, -1, err
	}
	p.given[e] = true
	p.accounts[e], _ = accountOf(who.user, who.netns, p.netns)
	p.watch()
	key := sp.Secret()
	return port.Answer{First: wire.QPN(slot) << slotBits, Count: 1 << slotBits,
		Key: hex.EncodeToString(key[:])}, fd, nil
}

// find returns the port, which it makes if need be. An account that has a socket of too many ports
// gets no more ports. So a port counts for the accounts that keep it alive, no matter which asked
// for it first, and also after the agent was started again.
func (p *ports) find(e endpoint, who *client) (*bpf.Port, error) {
	if sp := p.open[e]; sp != nil && p.vacant[e] == nil {
		return sp, nil
	}
	all := p.sweep()
	if n := len(p.open) - len(p.vacant); n >= maxPorts {
		return nil, fmt.Errorf("%d addresses have a shared port", n)
	}
	whose, limited := accountOf(who.user, who.netns, p.netns)
	own := 0
	for e, owners := range all {
		for _, o := range owners {
			if other, _ := accountOf(o.User, e.netns, p.netns); other == whose {
				own++
				break
			}
		}
	}
	if limited && own >= maxAccountPorts {
		return nil, fmt.Errorf("user %d has sockets of %d shared ports", who.user, own)
	}
	if sp := p.open[e]; sp != nil { // vacant
		return sp, nil
	}
	sp, err := bpf.OpenPort(p.pins, e.pin(), randomKey())
	if err != nil {
		return nil, err
	}
	p.open[e] = sp
	return sp, nil
}

// choose returns a free slot, any of them: a peer that knows an old number should not find its next
// owner.
func choose(sp *bpf.Port, who *client) (uint32, error) {
	owners, err := sp.Owners()
	if err != nil {
		return 0, err
	}
	// all of them are of one namespace, of which root may have the whole
	whose, _ := accountOf(who.user, 0, 0)
	own := 0
	for _, o := range owners {
		if other, _ := accountOf(o.User, 0, 0); other == whose {
			own++
		}
	}
	if who.user != 0 && own >= maxAccountSlots {
		return 0, fmt.Errorf("user %d has %d sockets on this port", who.user, own)
	}
	var free []uint32
	for slot := uint32(firstSlot); slot <= lastSlot; slot++ {
		if _, taken := owners[slot]; !taken {
			free = append(free, slot)
		}
	}
	if len(free) == 0 {
		return 0, fmt.Errorf("%d processes share this port", len(owners))
	}
	n, err := rand.Int(rand.Reader, big.NewInt(int64(len(free))))
	if err != nil {
		return 0, err
	}
	return free[n.Int64()], nil
}

// status lists the ports, and the owners of their sockets, and the ports without.
func (p *ports) status() (list []PortStatus, vacant []VacantStatus, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, vacant = []PortStatus{}, []VacantStatus{}
	for e, v := range p.vacant {
		vacant = append(vacant, VacantStatus{
			Address: e.addr.String(), Namespace: e.netns, Until: v.began.Add(p.vacancy), Answers: v.orphans.Refused(),
		})
	}
	slices.SortFunc(vacant, func(a, b VacantStatus) int { return strings.Compare(a.Address, b.Address) })
	for e, sp := range p.open {
		owners, err := sp.Owners()
		if err != nil {
			return nil, nil, err
		}
		if len(owners) == 0 {
			continue
		}
		s := PortStatus{Address: e.addr.String(), Namespace: e.netns, Sockets: []SocketStatus{}}
		for slot, o := range owners {
			s.Sockets = append(s.Sockets, SocketStatus{FirstQPN: slot << slotBits, QPNs: 1 << slotBits,
				Process: o.Process, User: o.User})
		}
		slices.SortFunc(s.Sockets, func(a, b SocketStatus) int { return int(a.FirstQPN) - int(b.FirstQPN) })
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b PortStatus) int { return strings.Compare(a.Address, b.Address) })
	return list, vacant, nil
}

// close ends the vacancies, which the next agent begins anew: their pins stay.
func (p *ports) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	for e := range p.vacant {
		p.endVacancy(e)
	}
	for _, sp := range p.open {
		sp.Close()
	}
	clear(p.open)
}
