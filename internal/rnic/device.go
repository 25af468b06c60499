package rnic

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/roce"
)

// A Device is an RNIC on an address of this machine, in software or of the kernel. The methods may be
// called by several goroutines.
type Device struct {
	all  *Set
	dev  verbs.Device
	nets []netip.Prefix // IP networks of its interface
	stop chan struct{}  // ends watch
	done chan struct{}  // closed when watch has ended

	mu     sync.Mutex
	users  int            // link groups and handshakes that use it
	unused time.Time      // when users became 0
	links  map[User]bool  // links on it
	groups map[Group]bool // link groups that learn when it goes down or comes back
	down   string         // why it cannot be used now, as a verbs.Event says it; "" if it can

	noInterface, noAddress bool          // the reasons for down
	removed                bool          // another one, which stays
	outages                atomic.Uint64 // how often it went down; changes with mu
}

// A User is a link on a device.
type User interface {
	// RNICEvent reports that links that need more than mtu must end, for a reason; with mtu 0 all
	// links, since the device is down. It does not block.
	RNICEvent(mtu wire.MTU, reason error)

	// Critical reports whether the link group would end with this link. It does not block.
	Critical() bool
}

// A Group is a link group that may put links on several devices.
type Group interface {
	// First returns the device of the first link, and the version of SMC-R. Neither changes.
	First() (*Device, clc.Version)

	// RNICsChanged has the group look at [Set.Alternatives] again. It runs on a goroutine of its own.
	RNICsChanged()

	// SetRNICs tells the group the present result of Set.Alternatives.
	SetRNICs([]core.RNIC)
}

// Verbs returns the device of a provider, which the Device owns.
func (n *Device) Verbs() verbs.Device { return n.dev }

// Addr returns the address of the device.
func (n *Device) Addr() netip.Addr { return n.dev.Addr() }

// RNIC returns how peers address the device.
func (n *Device) RNIC() *core.RNIC { return &core.RNIC{GID: n.dev.GID(), MAC: n.dev.MAC()} }

// AddUser registers a link on the device. It fails with [ErrDown] if the device cannot be used.
func (n *Device) AddUser(u User) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down != "" {
		return fmt.Errorf("%w: %s", ErrDown, n.down)
	}
	n.links[u] = true
	return nil
}

// RemoveUser undoes AddUser.
func (n *Device) RemoveUser(u User) {
	n.mu.Lock()
	delete(n.links, u)
	n.mu.Unlock()
}

// TellGroup sets whether g learns when the device goes down or comes back.
func (n *Device) TellGroup(g Group, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if on {
		n.groups[g] = true
	} else {
		delete(n.groups, g)
	}
}

// tellGroups has groups look at which devices there are.
func (n *Device) tellGroups() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for g := range n.groups {
		go g.RNICsChanged() // takes the group's lock, which ranks before n.mu
	}
}

// watch handles the events of the device until the device is closed.
func (n *Device) watch() {
	defer close(n.done)
	var events [16]verbs.Event
	for {
		select {
		case <-n.dev.Events():
		case <-n.stop:
			return
		}
		for {
			k := n.dev.PollEvents(events[:])
			for i := range events[:k] {
				n.HandleEvent(&events[i])
			}
			if k < len(events) {
				break
			}
		}
	}
}

// IsDown reports whether the device cannot be used now.
func (n *Device) IsDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down != ""
}

// Outages returns how often the device has gone down.
func (n *Device) Outages() uint64 { return n.outages.Load() }

// DownSince reports whether the device is down, and has been since [Device.Outages] returned outage.
func (n *Device) DownSince(outage uint64) bool {
	return n.IsDown() && n.outages.Load() == outage // rule: internal/smcr TestFlaps: n.outages.Load() == outage -> true
}

// goesDown and comesBack record an event. An interface that is up again may still lack the address:
// the kernel removes IPv6 addresses with the interface. comesBack reports whether the device can be
// used.
func (n *Device) goesDown(kind verbs.EventKind) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down == "" {
		n.outages.Add(1)
	}
	n.noInterface = n.noInterface || kind == verbs.EventInterfaceDown
	n.noAddress = n.noAddress || kind == verbs.EventAddressGone
	n.removed = n.removed || kind == verbs.EventDeviceRemoved
	n.down = kind.String()
}

func (n *Device) comesBack(kind verbs.EventKind) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noInterface = n.noInterface && kind != verbs.EventInterfaceUp
	n.noAddress = n.noAddress && kind != verbs.EventAddressBack
	switch {
	case n.removed: // rule: TestRNICRemoved: n.removed -> false
		n.down = verbs.EventDeviceRemoved.String()
	case n.noInterface:
		n.down = verbs.EventInterfaceDown.String()
	case n.noAddress: // rule: TestRNICDownTwice: n.noAddress -> false
		n.down = verbs.EventAddressGone.String()
	default:
		n.down = ""
	}
	return n.down == ""
}

// HandleEvent handles an event of the device. While the interface is down nothing gets through, so
// links end at once and not after their retries, as with an adapter that reports it. Tests call it
// as well.
func (n *Device) HandleEvent(e *verbs.Event) {
	log := n.all.cfg.Logger
	switch e.Kind {
	case verbs.EventInterfaceDown, verbs.EventAddressGone, verbs.EventDeviceRemoved:
		log.Warn("RoCE device is down", "addr", n.dev.Addr(), "event", e.Kind)
		n.goesDown(e.Kind)
		n.tell(0, fmt.Errorf("%w: %v", ErrDown, e.Kind))
		n.tellGroups()
	case verbs.EventInterfaceUp, verbs.EventAddressBack:
		if n.comesBack(e.Kind) {
			log.Info("RoCE device is up", "addr", n.dev.Addr(), "event", e.Kind)
			n.tellGroups()
		}
	case verbs.EventMTUChanged:
		log.Info("RoCE device has another MTU", "addr", n.dev.Addr(), "mtu", e.MTU)
		n.tell(e.MTU, fmt.Errorf("%w: the path MTU is now %v", ErrDown, e.MTU))
	case verbs.EventSendsRefused:
		log.Warn("the kernel refuses packets of a RoCE device", "addr", n.dev.Addr(), "packets", e.Count,
			"err", e.Err)
	case verbs.EventOthersChanged:
		n.all.othersChanged()
	case verbs.EventQPFailed: // its link knows
	}
}

// tell ends links that need a larger path MTU.
func (n *Device) tell(mtu wire.MTU, reason error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for u := range n.links {
		u.RNICEvent(mtu, reason)
	}
}

// Retain begins one more use.
func (n *Device) Retain() {
	n.mu.Lock()
	n.users++
	n.mu.Unlock()
}

// Users returns how many uses have begun and not ended.
func (n *Device) Users() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.users
}

// Release ends one use. The device is closed if a second passes without another.
func (n *Device) Release() {
	n.mu.Lock()
	n.users--
	last := n.users == 0
	n.unused = time.Now()
	n.mu.Unlock()
	if last {
		n.all.armClose()
	}
}

// Refuses asks the kernel of a peer whether no process has the UDP port of its RNIC or, if the port
// is shared, whether no process has this queue pair number. It returns false if the kernel does not
// answer.
func (n *Device) Refuses(peer netip.Addr, qpn wire.QPN) (refused bool) {
	n.all.cfg.Namespace(func() {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.dev.Addr(), 0)),
			Timeout: probeTimeout}
		if peer.Is6() && peer.IsLinkLocalUnicast() {
			peer = peer.WithZone(n.dev.Interface())
		}
		c, err := d.Dial("udp", netip.AddrPortFrom(peer, cmp.Or(n.all.cfg.RDMA.Port, roce.Port)).String())
		if err != nil {
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(probeTimeout))
		if _, err = c.Write(probeDatagram(qpn)); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		refused = errors.Is(err, unix.ECONNREFUSED)
	})
	return refused
}

// probeDatagram is the datagram that asks: the beginning of a base transport header, up to the
// queue pair number that steers packets of a shared port (IBTA 9.2). It is too short for a packet,
// so RNICs drop it.
func probeDatagram(qpn wire.QPN) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 8), 0)
	return binary.BigEndian.AppendUint32(b, uint32(qpn)) // rule: internal/host TestSMCRKnockShared: uint32(qpn) -> 0
}
