package rnic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/uverbs/provider"
	"github.com/gosmc/smc/internal/verbs"
)

// A DeviceConfig says how devices are made.
type DeviceConfig = rdma.Config

// Config is the configuration of a [Set]. All fields are fixed when the Set is made.
type Config struct {
	Dir string // the run directory, where an agent that shares UDP port 4791 is found
	// addresses that may have a device; empty: the address of the TCP connection, and others on its
	// LAN
	Allowed []netip.Prefix
	Kernel  []string          // RDMA devices of the kernel that may be used, in order of preference
	PNET    map[string]string // PNETIDs by the name of the interface
	// symmetric links of a link group, at most; with 1 no alternatives are looked for
	Links int
	// of the devices; Port 0 is UDP port 4791, shared through the agent if there is one
	RDMA      DeviceConfig
	NoSpin    bool         // devices never poll without sleeping
	Namespace func(func()) // calls a function on a thread in the network namespace of the devices
	Logger    *slog.Logger

	// Diagnose returns the sentence for the error of a device that could not be opened.
	Diagnose func(error) string
}

// A Set holds the RNICs of one host. It opens a device when a connection first wants its address,
// and closes the device when no link group and no handshake has used it for a second. Goroutines
// may share a Set.
type Set struct {
	cfg Config

	// VLAN returns the VLAN ID of the interface that has an address, 0 if it is in none. New sets
	// it to ask the kernel; tests replace it before the Set is used.
	VLAN func(netip.Addr) uint16

	// look has a lock of its own: devices report changes with it, and mu is held while they are closed.
	look struct {
		sync.Mutex
		timer  *time.Timer // runs lookAtOthers; nil before the first change
		armed  bool        // timer will fire
		closed bool
	}

	mu     sync.Mutex
	open   map[netip.Addr]*Device
	failed map[netip.Addr]failure
	timer  *time.Timer // runs closeUnused
	closed bool
}

// New returns a Set without open devices.
func New(cfg Config) *Set {
	s := &Set{cfg: cfg}
	s.VLAN = s.vlanOf
	return s
}

// Find returns the open device of an address, nil if there is none.
func (s *Set) Find(addr netip.Addr) *Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[addr]
}

// Hold keeps devices from being opened and closed until the caller calls resume. It is for tests.
func (s *Set) Hold() (resume func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// A failure is an error of opening a device. It is remembered for retryAfter, so that not every
// connection tries again.
type failure struct {
	at  time.Time
	err error
}

// LinkLocal returns the link-local address of an interface, with its zone; zero if the interface has none.
func (s *Set) LinkLocal(name string) (addr netip.Addr) {
	s.cfg.Namespace(func() {
		if iface, err := net.InterfaceByName(name); err == nil {
			addr = LinkLocalOf(iface)
		}
	})
	return addr
}

// LinkLocalOf returns the link-local address of an interface, with its zone; zero if the interface has none.
func LinkLocalOf(iface *net.Interface) netip.Addr {
	addrs, _ := iface.Addrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() &&
			p.Addr().IsLinkLocalUnicast() {
			return p.Addr().WithZone(iface.Name)
		}
	}
	return netip.Addr{}
}

// Zoned returns the address of one of our GIDs, with its zone if it is link-local: the zone is an
// interface's in the VLAN of first.
func (s *Set) Zoned(addr netip.Addr, first *Device) netip.Addr {
	if !addr.Is6() || !addr.IsLinkLocalUnicast() {
		return addr
	}
	vlan := s.VLAN(first.dev.Addr())
	found := addr
	s.cfg.Namespace(func() {
		ifaces, _ := net.Interfaces()
		for i := range ifaces {
			local := LinkLocalOf(&ifaces[i])
			// rule: TestZoned: s.VLAN(local) == vlan -> s.VLAN(local) == vlan || true
			if local.WithZone("") == addr && s.VLAN(local) == vlan { // rule: TestZoned: local.WithZone("") == addr -> false
				found = local
			}
		}
	})
	return found
}

// Acquire returns the device of an address and opens it if necessary. The caller calls
// [Device.Release]. The error wraps [ErrNone], [ErrDown], [ErrClosed], or an error of the agent or
// of the system.
func (s *Set) Acquire(addr netip.Addr) (*Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	n := s.open[addr]
	if n == nil {
		if f, ok := s.failed[addr]; ok && time.Since(f.at) < retryAfter {
			return nil, f.err
		}
		var err error
		if n, err = s.openRNIC(addr); err != nil {
			if s.failed == nil || len(s.failed) >= maxDevices {
				s.failed = make(map[netip.Addr]failure)
			}
			s.failed[addr] = failure{time.Now(), err}
			s.cfg.Logger.Warn("no RoCE device", "addr", addr, "err", err)
			return nil, err
		}
		delete(s.failed, addr)
		if s.open == nil {
			s.open = make(map[netip.Addr]*Device)
		}
		s.open[addr] = n
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down != "" {
		return nil, fmt.Errorf("%w: %s", ErrDown, n.down)
	}
	n.users++
	return n, nil
}

func (s *Set) openRNIC(addr netip.Addr) (n *Device, err error) {
	if len(s.open) >= maxDevices {
		return nil, fmt.Errorf("%d RoCE devices are open: %w", len(s.open), ErrNone)
	}
	cfg := s.cfg.RDMA
	if cfg.Spin == 0 && s.cfg.NoSpin {
		cfg.Spin = -1
	}
	s.cfg.Namespace(func() {
		var dev verbs.Device
		if dev, err = open(&s.cfg, addr, cfg); err != nil {
			return
		}
		n = &Device{
			all: s, dev: dev, nets: networksFor(dev.Interface(),
				addr), links: make(map[User]bool), groups: make(map[Group]bool),
			stop: make(chan struct{}), done: make(chan struct{}),
		}
	})
	if err == nil {
		go n.watch()
	}
	return n, err
}

// open opens the device of an address: a device of the kernel if one that the configuration names
// has the address, else one in software. A kernel device that cannot be used is an error, as its
// driver may have taken UDP port 4791 of the address.
func open(set *Config, addr netip.Addr, cfg DeviceConfig) (verbs.Device, error) {
	if len(set.Kernel) > 0 {
		dev, err := provider.Open(set.Kernel, addr)
		if !errors.Is(err, provider.ErrNoGID) {
			return dev, err
		}
	}
	return openSoftware(set.Dir, addr, cfg)
}

// openSoftware opens the software device of an address.
func openSoftware(dir string, addr netip.Addr, cfg DeviceConfig) (verbs.Device, error) {
	if cfg.Port == 0 { // RoCEv2's port, which others want too
		var err error
		if cfg.Share, err = claimPort(dir, addr); err != nil {
			return nil, err
		}
	}
	dev, err := rdma.Open(addr, &cfg)
	if err != nil {
		return nil, err
	}
	return rdma.Verbs(dev), nil
}

// claimPort gets our part of UDP port 4791 of an address from the agent, nil if there is no agent:
// then the port belongs to the process that opens it first.
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

// armClose has closeUnused run after linger.
func (s *Set) armClose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
	case s.timer == nil:
		s.timer = time.AfterFunc(linger, s.closeUnused)
	default:
		s.timer.Reset(linger)
	}
}

// closeUnused closes the devices that nobody has used for linger.
func (s *Set) closeUnused() {
	s.mu.Lock()
	var unused []*Device
	again := false
	for addr, n := range s.open {
		n.mu.Lock()
		if n.users == 0 {
			if time.Since(n.unused) >= linger {
				delete(s.open, addr)
				unused = append(unused, n)
			} else {
				again = true
			}
		}
		n.mu.Unlock()
	}
	if again && !s.closed {
		s.timer.Reset(linger)
	}
	for _, n := range unused { // with the lock: a caller that opens the address again finds its port free
		n.close()
	}
	s.mu.Unlock()
}

func (n *Device) close() {
	close(n.stop)
	<-n.done
	n.dev.Close()
}

// Close closes all devices: their links fail. With forGood no others are opened.
func (s *Set) Close(forGood bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || forGood
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.look.Lock()
	s.look.closed = s.closed
	if s.look.timer != nil {
		s.look.timer.Stop()
		s.look.armed = false
	}
	s.look.Unlock()
	for addr, n := range s.open {
		delete(s.open, addr)
		n.close()
	}
	s.failed = nil
}
