package rdma

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/rdma/netdev"
	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// Config says how a [Device] uses its socket. The zero value is good.
type Config struct {
	Port uint16 // UDP port of all devices that are to reach each other; 0 for 4791

	// As in [udp.Config].
	NoSegmentation, NoCoalescing bool
	ReadBuffer, WriteBuffer      int
	Headers                      udp.HeaderMode
	Drop                         func(datagram []byte) bool // losses, for tests and benchmarks

	// Share, if not nil, is a socket on a port that other processes share.
	Share *Share

	// Spin is how long the device looks for packets before it goes to sleep, where that has been
	// found to pay. 0 means 50 microseconds, less than 0 never. With one processor it never does.
	Spin time.Duration
}

const defaultSpin = 50 * time.Microsecond

// A Device is a software RNIC: a local IP address on UDP port 4791. It sends on the interface that has the
// address, and on no other. Its methods may be called by several goroutines.
type Device struct {
	addr  netip.AddrPort // with the zone of a link-local address
	iface net.Interface
	sock  *udp.Socket
	share *Share    // nil if the port is not shared
	epoch time.Time // times in queue pairs are counted from here
	spin  time.Duration
	idle  chan *sender
	stats deviceStats

	keepers keeperPool

	events    events
	port      *netdev.Watch // nil if the interface is not watched
	unwatched error         // why not

	sched scheduler

	inHandlers atomic.Bool // the receiving goroutine sends for all when the handlers are done
	asleep     atomic.Bool // the receiving goroutine is, and looks at sched before that
	lead       lead

	mu     sync.RWMutex
	qps    map[wire.QPN]*QP
	closed bool

	stopped chan struct{} // closed when the receiving goroutine has ended
}

// Open makes a device of a local address. nil stands for the zero Config.
//
// Only one owner of an address's port can be in a network namespace: the error for a port in use
// wraps EADDRINUSE and names the other owners that it may have.
func Open(local netip.Addr, cfg *Config) (*Device, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	share, err := c.Share.take()
	if err != nil {
		return nil, err
	}
	defer share.release()
	if c.Port == 0 {
		c.Port = roce.Port
	}
	local = local.Unmap()
	if !local.IsValid() || local.IsUnspecified() || local.IsMulticast() {
		return nil, argError("%v is not an address that a device can have", local)
	}
	iface, err := netdev.Of(local)
	if err != nil {
		return nil, err
	}
	if local.Is6() && local.IsLinkLocalUnicast() && local.Zone() == "" {
		local = local.WithZone(iface.Name)
	}
	addr := netip.AddrPortFrom(local, c.Port)
	var refused func(error, int) // set before anything is sent
	sock, err := udp.Listen(udp.Config{
		Local: addr, Interface: netdev.SendIndex(iface), NoSegmentation: c.NoSegmentation, NoCoalescing: c.NoCoalescing,
		ReadBuffer: c.ReadBuffer, WriteBuffer: c.WriteBuffer, Headers: c.Headers, Drop: c.Drop,
		Refused: func(reason error, datagrams int) { refused(reason, datagrams) },
		Socket:  share.socket(),
	})
	if err != nil {
		return nil, fmt.Errorf("rdma: device %v: %w", local, err)
	}
	switch {
	case c.Spin < 0, runtime.GOMAXPROCS(0) == 1:
		c.Spin = 0
	case c.Spin == 0:
		c.Spin = defaultSpin
	}
	d := &Device{
		spin: c.Spin, addr: addr, iface: iface, sock: sock, share: share, epoch: time.Now(),
		idle: make(chan *sender, idleSenders), qps: make(map[wire.QPN]*QP), stopped: make(chan struct{}),
	}
	d.events.init(netdev.State{
		Up: true, Address: true, MTU: netdev.MTU(local, iface.MTU, iface.Flags&net.FlagLoopback != 0),
	})
	refused = d.events.sendsRefused
	if d.port, d.unwatched = netdev.NewWatch(iface.Index, local); d.port != nil {
		if s, err := d.port.State(); err == nil { // something may be wrong from the beginning
			d.events.setPort(s)
		}
		go d.port.Run(d.events.setPort, d.events.othersChanged)
	}
	d.lead.init(d)
	go d.receiveLoop()
	return d, nil
}

// Addr returns the device's address.
func (d *Device) Addr() netip.Addr { return d.addr.Addr() }

// GID returns the device's address as a GID.
func (d *Device) GID() wire.GID { return wire.GIDFromAddr(d.addr.Addr().WithZone("")) }

// MAC returns the Ethernet address of the device's interface, zero if it has none.
func (d *Device) MAC() wire.MAC {
	var m wire.MAC
	if len(d.iface.HardwareAddr) == len(m) {
		copy(m[:], d.iface.HardwareAddr)
	}
	return m
}

// Interface returns the name of the device's interface.
func (d *Device) Interface() string { return d.iface.Name }

// MTU returns the largest path MTU that the device's interface has room for, as rxe chooses it:
// 1024 on Ethernet and at an address of the loopback interface that others reach, 4096 with jumbo
// frames. It uses the interface's present MTU, or the MTU at the time of [Open] if the interface is
// not watched.
func (d *Device) MTU() wire.MTU { return d.events.mtu() }

// Unwatched returns why there are no events about the interface, such as that the process may not have an
// AF_NETLINK socket; nil if there are.
func (d *Device) Unwatched() error { return d.unwatched }

// NewPD makes a protection domain.
func (d *Device) NewPD() (*PD, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return nil, fmt.Errorf("rdma: device: %w", ErrClosed)
	}
	return newPD(d), nil
}

// Capabilities reports the abilities of the device's socket.
func (d *Device) Capabilities() udp.Capabilities { return d.sock.Capabilities() }

// SocketStats returns the counters of the device's socket: super-packets, system calls, refusals.
func (d *Device) SocketStats() udp.Stats { return d.sock.Stats() }

// Close takes the device away: its queue pairs fail, posted work is flushed, and the port is free.
// Memory regions stay until they are deregistered. Closing twice is no error. A handler must not
// close its device: Close waits for it to return.
func (d *Device) Close() error {
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	qps := make([]*QP, 0, len(d.qps))
	for _, q := range d.qps {
		qps = append(qps, q)
	}
	d.mu.Unlock()
	if closed {
		<-d.stopped
		return nil
	}
	for _, q := range qps {
		q.Fail() // the error is that it had failed already
	}
	if d.port != nil {
		d.port.Close()
	}
	err := d.sock.Close()
	d.sched.close()
	<-d.stopped
	return err
}

// now returns the time as queue pairs count it. It is never zero.
func (d *Device) now() time.Duration { return time.Since(d.epoch) + 1 }

// lookup returns the queue pair with a number, nil if there is none.
func (d *Device) lookup(n wire.QPN) *QP {
	d.mu.RLock()
	q := d.qps[n]
	d.mu.RUnlock()
	return q
}

// add gives q a number, which nobody can guess, and makes it known.
func (d *Device) add(q *QP) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("rdma: device: %w", ErrClosed)
	}
	first, count := d.share.numbers()
	if len(d.qps) >= min(maxQPs, count/2) { // of half of them a free one is soon found
		return fmt.Errorf("rdma: %d queue pairs: %w", len(d.qps), ErrExhausted)
	}
	for {
		n := first + wire.QPN(rand.Uint32N(uint32(count)))
		if d.qps[n] == nil {
			q.qpn, q.c.qpn = n, n
			d.qps[n] = q
			return nil
		}
	}
}

func (d *Device) remove(q *QP) {
	d.mu.Lock()
	delete(d.qps, q.qpn)
	d.mu.Unlock()
}

// deviceStats is [DeviceStats] while it is counted.
type deviceStats struct {
	packets, truncated, malformed, unknownQP, wrongPeer, wrongPKey atomic.Uint64
	badICRC, solvedICRC, sendErrors, receiveErrors, congestion     atomic.Uint64
	handedOn, handedOver, handOnErrors                             atomic.Uint64
}

// Stats returns the device's counters.
func (d *Device) Stats() DeviceStats {
	s := &d.stats
	return DeviceStats{
		RcvdPackets:    s.packets.Load(),
		Truncated:      s.truncated.Load(),
		Malformed:      s.malformed.Load(),
		UnknownQP:      s.unknownQP.Load(),
		WrongPeer:      s.wrongPeer.Load(),
		WrongPKey:      s.wrongPKey.Load(),
		BadICRC:        s.badICRC.Load(),
		SolvedICRC:     s.solvedICRC.Load(),
		SendErrors:     s.sendErrors.Load(),
		ReceiveErrors:  s.receiveErrors.Load(),
		CongestionNote: s.congestion.Load(),
		HandedOn:       s.handedOn.Load(),
		HandedOver:     s.handedOver.Load(),
		HandOnErrors:   s.handOnErrors.Load(),
	}
}
