package provider

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/uverbs"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// ErrNoGID is the error for an address that no device has as a GID of RoCEv2.
var ErrNoGID = errors.New("no device has the address as a GID of RoCEv2")

// context is the part of [uverbs.Context] that a device needs.
type context interface {
	NewCQ(depth int) (*uverbs.CQ, error)
	NewPD() (*uverbs.PD, error)
	GIDs() ([]uverbs.GIDEntry, error)
	QueryPort(port uint8) (uverbs.PortAttr, error)
	NextEvent(deadline time.Time) (uverbs.Event, error)
	Close() error
}

// device is one GID of a port of a kernel device.
type device struct {
	c       context
	name    string
	addr    netip.Addr
	iface   string
	ifindex uint32 // number of iface; 0 if it has none
	mac     wire.MAC
	port    uint8
	index   atomic.Uint32 // place of the GID
	path    atomic.Uint32 // the newest known wire.MTU

	news chan struct{}
	all  sync.WaitGroup // goroutines

	mu          sync.Mutex
	state, told state
}

// state is what events are about.
type state struct{ down, gone, removed bool }

// Open opens the first of the named kernel devices that has an address as a GID of RoCEv2. The error
// is [ErrNoGID] if none has. Otherwise it wraps [verbs.ErrUnusable] and the reason.
func Open(names []string, addr netip.Addr) (verbs.Device, error) {
	list, err := uverbs.Devices()
	if err != nil {
		return nil, err
	}
	found, gid, ok := find(list, names, addr)
	if !ok {
		return nil, ErrNoGID
	}
	if why := found.Unused(); why != "" {
		return nil, fmt.Errorf("%w: %s: %s", verbs.ErrUnusable, found.Name, why)
	}
	c, err := uverbs.Open(found)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", verbs.ErrUnusable, found.Name, err)
	}
	d := &device{
		c: c, name: found.Name, addr: addr, iface: gid.Interface, port: gid.Port,
		news: make(chan struct{}, 1),
	}
	d.index.Store(uint32(gid.Index))
	d.path.Store(uint32(wire.MTU256))
	if iface, err := net.InterfaceByName(gid.Interface); err == nil {
		d.ifindex = uint32(iface.Index)
		if len(iface.HardwareAddr) == len(d.mac) {
			copy(d.mac[:], iface.HardwareAddr)
		}
	}
	// The context was opened after sysfs was read, and tells nothing of changes in between.
	d.lookAtPort()
	d.lookForGID()
	d.all.Go(d.watch)
	return d, nil
}

// find returns the first of the named devices that has an address as a GID of RoCEv2.
func find(list []uverbs.Device, names []string, addr netip.Addr) (
	d uverbs.Device, gid uverbs.GIDEntry, ok bool,
) {
	want := wire.GIDFromAddr(addr.WithZone(""))
	for _, name := range names {
		for _, d := range list {
			if d.Name != name {
				continue
			}
			for _, p := range d.Ports {
				for _, e := range p.GIDs {
					zoned := addr.Zone() == "" || addr.Zone() == e.Interface // rule: TestFind: addr.Zone() == e.Interface -> true
					if e.GID == want && e.Type == uverbs.GIDTypeRoCEv2 && zoned && e.Index < 1<<8 {
						return d, e, true
					}
				}
			}
		}
	}
	return uverbs.Device{}, uverbs.GIDEntry{}, false
}

func (d *device) Addr() netip.Addr  { return d.addr }
func (d *device) GID() wire.GID     { return wire.GIDFromAddr(d.addr.WithZone("")) }
func (d *device) MAC() wire.MAC     { return d.mac }
func (d *device) Interface() string { return d.iface }
func (d *device) Type() string      { return d.name }
func (d *device) WholePages() bool  { return true }

// MTU implements [verbs.Device]. It asks the kernel.
func (d *device) MTU() wire.MTU {
	if a, err := d.c.QueryPort(d.port); err == nil {
		d.path.Store(uint32(a.ActiveMTU))
	}
	return wire.MTU(d.path.Load())
}

// Stats implements [verbs.Device]. The kernel has counters of the whole device alone.
func (d *device) Stats() verbs.DeviceStats { return verbs.DeviceStats{} }

func (d *device) Events() <-chan struct{} { return d.news }

// PollEvents implements [verbs.Device]. It tells the present state, where that differs from the state
// that was told last.
func (d *device) PollEvents(dst []verbs.Event) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change := func(now bool, told *bool, on, off verbs.EventKind) {
		if now == *told || n == len(dst) {
			return
		}
		*told = now
		dst[n] = verbs.Event{Kind: off}
		if now {
			dst[n].Kind = on
		}
		n++
	}
	change(d.state.removed, &d.told.removed, verbs.EventDeviceRemoved, 0)
	change(d.state.down, &d.told.down, verbs.EventInterfaceDown, verbs.EventInterfaceUp)
	change(d.state.gone, &d.told.gone, verbs.EventAddressGone, verbs.EventAddressBack)
	return n
}

// set changes the state, and tells the owner.
func (d *device) set(f func(*state)) {
	d.mu.Lock()
	f(&d.state)
	d.mu.Unlock()
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// broken takes that the device is of no more use. The kernel waits with the removal of a device until
// its file is closed.
func (d *device) broken() {
	d.set(func(s *state) { s.removed = true })
	d.c.Close() // the error is of objects that the kernel has no more
}

// watch reads the asynchronous events.
func (d *device) watch() {
	for {
		e, err := d.c.NextEvent(time.Time{})
		switch {
		case errors.Is(err, uverbs.ErrClosed):
			return
		case err != nil, e.Kind == uverbs.EventRemoved, e.Kind == uverbs.EventDeviceFatal,
			e.Kind == uverbs.EventCQError: // Completions are lost, so links would wait for ever.
			d.broken()
			return
		case e.Kind == uverbs.EventPortDown && e.Port == d.port:
			d.set(func(s *state) { s.down = true })
		case e.Kind == uverbs.EventPortActive && e.Port == d.port:
			d.set(func(s *state) { s.down = false })
		case e.Kind == uverbs.EventGIDChange && e.Port == d.port:
			d.lookForGID()
		}
	}
}

// lookAtPort notes whether the port can send and receive.
func (d *device) lookAtPort() {
	if a, err := d.c.QueryPort(d.port); err == nil {
		d.set(func(s *state) { s.down = a.State != uverbs.PortActive }) // rule: TestLook
	}
}

// lookForGID finds the place of the GID again, after the table has changed. Interfaces of several VLANs
// may have the same address.
func (d *device) lookForGID() {
	list, err := d.c.GIDs()
	if err != nil {
		return
	}
	gone := true
	for _, e := range list {
		here := e.Ifindex == 0 || d.ifindex == 0 || e.Ifindex == d.ifindex // rule: TestLook: e.Ifindex == d.ifindex -> true
		if e.Port == d.port && e.GID == d.GID() && e.Type == uverbs.GIDTypeRoCEv2 && here && e.Index < 1<<8 {
			d.index.Store(uint32(e.Index))
			gone = false
			break
		}
	}
	d.set(func(s *state) { s.gone = gone })
}

// Close implements [verbs.Device].
func (d *device) Close() error {
	err := d.c.Close()
	d.all.Wait()
	return err
}

// NewPD implements [verbs.Device].
func (d *device) NewPD() (verbs.PD, error) {
	p, err := d.c.NewPD()
	if err != nil {
		return nil, d.failure(err)
	}
	return &domain{p, d}, nil
}

// domain is a protection domain.
type domain struct {
	*uverbs.PD
	d *device
}

// RegisterMR implements [verbs.PD]. Regions come from package uverbs.
func (p *domain) RegisterMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	var a uverbs.Access
	if access&verbs.LocalWrite != 0 {
		a |= uverbs.LocalWrite
	}
	if access&verbs.RemoteWrite != 0 {
		a |= uverbs.RemoteWrite
	}
	m, err := p.PD.RegisterMR(mem, a)
	if err != nil {
		return nil, p.d.failure(err)
	}
	return m, nil
}
