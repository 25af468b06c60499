package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// An rnic is a device of SMC-R: a software RNIC on an address of this machine. It is opened when a
// connection first wants it, and closed when no link group and no handshake has used it for a while.
type rnic struct {
	all  *rnics
	dev  *rdma.Device
	nets []netip.Prefix // that its interface is on
	stop chan struct{}  // ends watch
	done chan struct{}  // closed when watch has ended

	mu     sync.Mutex
	users  int                 // link groups, and handshakes under way
	unused time.Time           // since when there are none
	links  map[rnicUser]bool   // who is told of its end
	groups map[*smcrGroup]bool // that are told when it can or cannot be used
	down   string              // why it cannot be used now, as an rdma.Event says it; "" if it can

	noInterface, noAddress bool          // what down is for
	outages                atomic.Uint64 // how often it went down; changed with mu
}

// An rnicUser has links on an rnic.
type rnicUser interface {
	// rnicEvent tells that links must end that do not do with less than mtu, for a reason; with mtu 0 all, since the RNIC is
	// down. It does not block.
	rnicEvent(mtu wire.MTU, reason error)
}

var (
	errNoRNIC   = errors.New("no address of this machine may be used for RDMA with the peer")
	errRNICDown = errors.New("the RoCE device cannot be used")
)

// ends is how peers address it.
func (n *rnic) ends() *core.RNIC { return &core.RNIC{GID: n.dev.GID(), MAC: n.dev.MAC()} }

// add and remove say who is to be told of its end. add fails if that has come.
func (n *rnic) add(u rnicUser) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down != "" {
		return fmt.Errorf("%w: %s", errRNICDown, n.down)
	}
	n.links[u] = true
	return nil
}

func (n *rnic) remove(u rnicUser) {
	n.mu.Lock()
	delete(n.links, u)
	n.mu.Unlock()
}

// watch takes the events of the device until that is closed.
func (n *rnic) watch() {
	defer close(n.done)
	var events [16]rdma.Event
	for {
		select {
		case <-n.dev.Events():
		case <-n.stop:
			return
		}
		for {
			k := n.dev.PollEvents(events[:])
			for i := range events[:k] {
				n.event(&events[i])
			}
			if k < len(events) {
				break
			}
		}
	}
}

// isDown reports whether it cannot be used now.
func (n *rnic) isDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down != ""
}

// downSince reports whether it has been down since outages was what it was told.
func (n *rnic) downSince(outage uint64) bool {
	return n.isDown() && n.outages.Load() == outage // rule: TestRNICFlaps: n.outages.Load() == outage -> true
}

// goesDown and comesBack take what an event says. An interface that is up again may lack the address still: with the interface the kernel takes IPv6
// addresses away. comesBack reports whether it can be used.
func (n *rnic) goesDown(kind rdma.EventKind) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down == "" {
		n.outages.Add(1)
	}
	n.noInterface = n.noInterface || kind == rdma.EventInterfaceDown
	n.noAddress = n.noAddress || kind == rdma.EventAddressGone
	n.down = kind.String()
}

func (n *rnic) comesBack(kind rdma.EventKind) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noInterface = n.noInterface && kind != rdma.EventInterfaceUp
	n.noAddress = n.noAddress && kind != rdma.EventAddressBack
	switch {
	case n.noInterface:
		n.down = rdma.EventInterfaceDown.String()
	case n.noAddress: // rule: TestRNICDownTwice: n.noAddress -> false
		n.down = rdma.EventAddressGone.String()
	default:
		n.down = ""
	}
	return n.down == ""
}

// event takes one. While the interface is down nothing gets through: links end soon and not after their
// retries, as an adapter reports it.
func (n *rnic) event(e *rdma.Event) {
	log := n.all.host.cfg.Logger
	switch e.Kind {
	case rdma.EventInterfaceDown, rdma.EventAddressGone:
		log.Warn("RoCE device is down", "addr", n.dev.Addr(), "event", e.Kind)
		n.goesDown(e.Kind)
		n.tell(0, fmt.Errorf("%w: %v", errRNICDown, e.Kind))
		n.tellGroups()
	case rdma.EventInterfaceUp, rdma.EventAddressBack:
		if n.comesBack(e.Kind) {
			log.Info("RoCE device is up", "addr", n.dev.Addr(), "event", e.Kind)
			n.tellGroups()
		}
	case rdma.EventMTUChanged:
		log.Info("RoCE device has another MTU", "addr", n.dev.Addr(), "mtu", e.MTU)
		n.tell(e.MTU, fmt.Errorf("%w: the path MTU is now %v", errRNICDown, e.MTU))
	case rdma.EventSendsRefused:
		log.Warn("the kernel refuses packets of a RoCE device", "addr", n.dev.Addr(), "packets", e.Count, "err", e.Err)
	case rdma.EventOthersChanged:
		n.all.othersChanged()
	case rdma.EventQPFailed: // its link knows
	}
}

// tell ends links that need a larger path MTU.
func (n *rnic) tell(mtu wire.MTU, reason error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for u := range n.links {
		u.rnicEvent(mtu, reason)
	}
}

// retain begins one more use.
func (n *rnic) retain() {
	n.mu.Lock()
	n.users++
	n.mu.Unlock()
}

// release ends one use.
func (n *rnic) release() {
	n.mu.Lock()
	n.users--
	last := n.users == 0
	n.unused = time.Now()
	n.mu.Unlock()
	if last {
		n.all.armClose()
	}
}

// rnics are all that a host has open.
type rnics struct {
	host     *Host
	patience func(func())            // calls it when an RNIC was down for rnicPatience, but in tests
	resets   time.Duration           // before a reset of TCP counts: resetPatience, but in tests
	allowed  []netip.Prefix          // empty: the address of the TCP connection
	vlan     func(netip.Addr) uint16 // vlanOf, but in tests

	// look has a lock of its own: devices tell of changes with it, and mu is held while they are closed.
	look struct {
		sync.Mutex
		timer  *time.Timer // runs lookAtOthers; nil before it was needed
		armed  bool        // it is to run
		closed bool
	}

	mu     sync.Mutex
	open   map[netip.Addr]*rnic
	failed map[netip.Addr]rnicFailure
	timer  *time.Timer       // runs closeUnused
	tcp    *tcpwatch.Watcher // of the TCP sockets of connections; nil before it was needed
	closed bool
}

// watch returns what looks after the TCP sockets of connections.
func (r *rnics) watch() (*tcpwatch.Watcher, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errHostClosed
	}
	if r.tcp == nil {
		w, err := tcpwatch.New()
		if err != nil {
			return nil, err
		}
		r.tcp = w
	}
	return r.tcp, nil
}

// A rnicFailure is remembered for a while, so that not every connection tries again.
type rnicFailure struct {
	at  time.Time
	err error
}

// linkLocal returns the link-local address of an interface, with its zone; zero if it has none.
func (r *rnics) linkLocal(name string) (addr netip.Addr) {
	r.host.cfg.Namespace(func() {
		if iface, err := net.InterfaceByName(name); err == nil {
			addr = linkLocalOf(iface)
		}
	})
	return addr
}

// linkLocalOf is that without looking for the interface.
func linkLocalOf(iface *net.Interface) netip.Addr {
	addrs, _ := iface.Addrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			return p.Addr().WithZone(iface.Name)
		}
	}
	return netip.Addr{}
}

// zoned returns the address of a GID of ours with its zone, if it is link-local: it is on an interface in the VLAN of the device first.
func (r *rnics) zoned(addr netip.Addr, first *rnic) netip.Addr {
	if !addr.Is6() || !addr.IsLinkLocalUnicast() {
		return addr
	}
	vlan := r.vlan(first.dev.Addr())
	found := addr
	r.host.cfg.Namespace(func() {
		ifaces, _ := net.Interfaces()
		for i := range ifaces {
			if local := linkLocalOf(&ifaces[i]); local.WithZone("") == addr && r.vlan(local) == vlan { // rule: TestSMCRv1LinkLocal: local.WithZone("") == addr -> false
				found = local
			}
		}
	})
	return found
}

// acquire returns the device of an address, which the caller releases.
func (r *rnics) acquire(addr netip.Addr) (*rnic, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errHostClosed
	}
	n := r.open[addr]
	if n == nil {
		if f, ok := r.failed[addr]; ok && time.Since(f.at) < fabricRetry {
			return nil, f.err
		}
		var err error
		if n, err = r.openRNIC(addr); err != nil {
			if r.failed == nil || len(r.failed) >= maxRNICs {
				r.failed = make(map[netip.Addr]rnicFailure)
			}
			r.failed[addr] = rnicFailure{time.Now(), err}
			r.host.cfg.Logger.Warn("no RoCE device", "addr", addr, "err", err)
			return nil, err
		}
		delete(r.failed, addr)
		if r.open == nil {
			r.open = make(map[netip.Addr]*rnic)
		}
		r.open[addr] = n
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down != "" {
		return nil, fmt.Errorf("%w: %s", errRNICDown, n.down)
	}
	n.users++
	return n, nil
}

func (r *rnics) openRNIC(addr netip.Addr) (n *rnic, err error) {
	if len(r.open) >= maxRNICs {
		return nil, fmt.Errorf("%d RoCE devices are open: %w", len(r.open), errNoRNIC)
	}
	cfg := r.host.cfg.RDMA
	if cfg.Spin == 0 && r.host.cfg.Spin == 0 {
		cfg.Spin = -1 // nobody is to look without sleeping
	}
	r.host.cfg.Namespace(func() {
		if cfg.Port == 0 { // that of RoCEv2, which others want too
			if cfg.Share, err = claimPort(r.host.cfg.Dir, addr); err != nil {
				return
			}
		}
		var dev *rdma.Device
		if dev, err = rdma.Open(addr, &cfg); err != nil {
			return
		}
		n = &rnic{
			all: r, dev: dev, nets: networksFor(dev.Interface(), addr), links: make(map[rnicUser]bool), groups: make(map[*smcrGroup]bool),
			stop: make(chan struct{}), done: make(chan struct{}),
		}
	})
	if err == nil {
		go n.watch()
	}
	return n, err
}

// claimPort gets our part of UDP port 4791 of an address from the agent, nil if there is none: then the port belongs to who
// opens it first.
func claimPort(dir string, addr netip.Addr) (*rdma.Share, error) {
	grant, err := port.Claim(context.Background(), dir, addr, 0)
	switch {
	case err == nil:
		return &rdma.Share{Socket: grant.Socket, First: grant.First, Count: grant.Count, Key: grant.Key}, nil
	case errors.Is(err, port.ErrNoAgent):
		return nil, nil
	}
	return nil, err
}

// networksOf returns those of the interface that has an address.
func networksOf(addr netip.Addr) []netip.Prefix {
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, iface := range ifaces {
		addrs, _ := iface.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && (p.Addr().Unmap() == addr || addr.IsLoopback() && p.Addr().IsLoopback() && p.Contains(addr)) {
				return networks(iface.Name, addr.Is4())
			}
		}
	}
	return nil
}

// networks returns those of an interface, in one version of IP.
func networks(name string, is4 bool) (list []netip.Prefix) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	addrs, err := iface.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap().Is4() == is4 {
			list = append(list, p.Masked())
		}
	}
	return list
}

// networksFor returns those that tell whether other interfaces are on the LAN of a device: of its version of IP, and where its address is
// link-local of both, without the one on which every interface is.
func networksFor(name string, addr netip.Addr) []netip.Prefix {
	if !addr.Is6() || !addr.IsLinkLocalUnicast() {
		return networks(name, addr.Is4())
	}
	list := append(networks(name, true), networks(name, false)...)
	return slices.DeleteFunc(list, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
}

// choose returns the address to use for a TCP connection from local: that of its end, unless the
// configuration has others. remote is the peer's RNIC, as far as that is known already.
func (r *rnics) choose(local, remote netip.Addr) (addr netip.Addr, err error) {
	local = local.Unmap()
	if len(r.allowed) == 0 {
		return local, nil
	}
	r.host.cfg.Namespace(func() { addr, err = r.chooseAllowed(local, remote.Unmap()) })
	return addr, err
}

func (r *rnics) chooseAllowed(local, remote netip.Addr) (netip.Addr, error) {
	if remote.IsValid() && remote != local {
		if source := sourceTo(remote); source.IsValid() && source != local && r.allows(source) && r.connected(source, local) && !sameInterface(source, local) {
			return source, nil
		}
	}
	if r.allows(local) {
		return local, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			if addr := p.Addr().Unmap(); addr.Is4() == local.Is4() && !addr.IsLinkLocalUnicast() && r.allows(addr) && r.connected(addr, local) {
				return addr, nil
			}
		}
	}
	return netip.Addr{}, errNoRNIC
}

func (r *rnics) allows(a netip.Addr) bool {
	for _, p := range r.allowed {
		if p.Contains(a.WithZone("")) {
			return true
		}
	}
	return false
}

// sourceTo returns the address from which this machine would send to another, zero if it has no route.
func sourceTo(remote netip.Addr) netip.Addr {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, 9))) // sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
}

// sameInterface reports whether one interface has both addresses.
func sameInterface(a, b netip.Addr) bool {
	ifaces, err := net.Interfaces()
	if err != nil {
		return false
	}
	for _, iface := range ifaces {
		found := 0
		addrs, _ := iface.Addrs()
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil && (p.Addr().Unmap() == a || p.Addr().Unmap() == b) {
				found++
			}
		}
		if found > 0 {
			return found > 1
		}
	}
	return false
}

// armClose makes sure that unused devices are closed.
func (r *rnics) armClose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
	case r.timer == nil:
		r.timer = time.AfterFunc(rnicLinger, r.closeUnused)
	default:
		r.timer.Reset(rnicLinger)
	}
}

// closeUnused closes the devices that nobody has used for rnicLinger.
func (r *rnics) closeUnused() {
	r.mu.Lock()
	var unused []*rnic
	again := false
	for addr, n := range r.open {
		n.mu.Lock()
		if n.users == 0 {
			if time.Since(n.unused) >= rnicLinger {
				delete(r.open, addr)
				unused = append(unused, n)
			} else {
				again = true
			}
		}
		n.mu.Unlock()
	}
	if again && !r.closed {
		r.timer.Reset(rnicLinger)
	}
	for _, n := range unused { // with the lock: who opens the address again finds its port free
		n.close()
	}
	r.mu.Unlock()
}

func (n *rnic) close() {
	close(n.stop)
	<-n.done
	n.dev.Close()
}

// close closes all devices: their links fail. With forGood no others are opened.
func (r *rnics) close(forGood bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = r.closed || forGood
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	r.look.Lock()
	r.look.closed = r.closed
	if r.look.timer != nil {
		r.look.timer.Stop()
		r.look.armed = false
	}
	r.look.Unlock()
	for addr, n := range r.open {
		delete(r.open, addr)
		n.close()
	}
	r.failed = nil
	if r.tcp != nil {
		r.tcp.Close()
		r.tcp = nil
	}
}

// rnicReason is why there is no device.
func rnicReason(err error) clc.Diagnosis {
	var refused *port.RefusedError
	switch {
	case errors.As(err, &refused): // the log has its words
		return clc.DiagPortInUse
	case errors.Is(err, unix.EADDRINUSE):
		return clc.DiagPortInUse
	case errors.Is(err, errRNICDown):
		return clc.DiagRNICDown
	case errors.Is(err, errNoRNIC), errors.Is(err, rdma.ErrArgument): // no interface has the address
		return clc.DiagNoSMCRDevice
	case errors.Is(err, errHostClosed):
		return clc.DiagClosing
	case errors.Is(err, rdma.ErrExhausted):
		return clc.DiagLimit
	}
	return resourceReason(err)
}
