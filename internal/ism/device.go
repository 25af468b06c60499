// Package ism is an ISM fabric in shared memory: devices with Extended GIDs, one for each
// process, whose DMBs are memory that another process of the same machine maps and writes.
//
// It knows nothing of SMC: the layer above decides on the contents of a DMB, and on when its sleep
// words are set. docs/shared-memory.md describes byte by byte the memory that two processes share.
//
// A [Device] finds others by GID in a directory, and makes a [Peer] of each: a Unix socket, by
// which the kernel names the process at the other end and tells of its death, and one bell in each
// direction. Over a Peer, one side makes a [DMB], the other attaches it by its token as a [Window].
// A DMB and a Window cost memory and no descriptor.
//
// The peer is not trusted: its messages are checked, and memory that it may write at any time is
// never relied on. It can spoil its own connections, and use as much memory as the limits allow.
package ism

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/ism/sockets"
	"github.com/gosmc/smc/wire"
)

// A Config says how a device is to be.
type Config struct {
	// Dir is an existing directory, the same for all processes that are to talk. The sockets
	// are in its subdirectory "ism", which is made if it is missing. Empty: nobody finds the device, and
	// it has the peerings of introductions only.
	Dir string

	// Budget is how many bytes all DMBs of the device may have together, counted at full size,
	// those kept for reuse included; and how many all memory of peers may have that is mapped here,
	// counted by itself. The process that writes a page first pays for it, so the memory of peers
	// is ours to bound as well. Zero means [DefaultBudget]; negative means no limit.
	Budget int64

	// AnyUser admits processes of other users as peers, in both directions, and Admit chooses among
	// these users. A nil Admit admits all. It may be called by several goroutines.
	AnyUser bool
	Admit   func(uid int) bool

	// Handler is told of events on peerings. Nil means that nobody is.
	Handler Handler

	// Logger gets the events an operator may want to see. Nil means none.
	Logger *slog.Logger
}

// A Handler is told of events on the peerings of a device. Its functions are called from the
// goroutines of the fabric: they must return soon, and must not call [Peer.Attach], [Device.Poll]
// or [Device.Close]. For one peer they are called one at a time: PeerUp, then Signal any number of
// times, then PeerGone.
type Handler interface {
	// PeerUp says that another device has made a peering. It is not called for those that
	// [Device.Peer] returns.
	PeerUp(p *Peer)

	// Signal has bytes that the other side gave to [Peer.Send]. They are valid until it returns.
	// It may be called by [Device.Poll].
	Signal(p *Peer, payload []byte)

	// PeerGone says that a peering has ended, and why: see [Peer.Err]. It is called once for
	// each Peer, after everything that had arrived was delivered.
	PeerGone(p *Peer, err error)
}

type noHandler struct{}

func (noHandler) PeerUp(*Peer)          {}
func (noHandler) Signal(*Peer, []byte)  {}
func (noHandler) PeerGone(*Peer, error) {}

// A Device is an Emulated-ISM device with CHID 0xffff. Its methods may be called from any goroutine.
type Device struct {
	gid     wire.ISMGID
	anyUser bool
	admit   func(uid int) bool // of other users; nil: all
	handler Handler
	log     *slog.Logger
	maximum int64 // budget
	lim     cacheLimits
	opened  time.Time
	dir     *sockets.Dir    // nil without a directory
	ctx     context.Context // ends with the device
	cancel  context.CancelFunc
	wg      sync.WaitGroup // every goroutine of the device and its peers
	stats   stats
	budget  atomic.Int64 // bytes of all DMBs
	mapped  atomic.Int64 // bytes of all memory of peers
	spares  spares

	// polled has the accepted peers, a new slice for each change.
	polled atomic.Pointer[[]*Peer]

	mu       sync.Mutex
	closed   bool
	socket   *os.File // listens; Renew replaces it. nil without a directory
	helloing int      // accepted, Hello not finished
	dialed   map[wire.ISMGID]*dialing
	accepted map[*Peer]struct{}
	closing  sync.Once
}

// cacheLimits are the limits of the caches, from limits.go, which tests make smaller.
type cacheLimits struct {
	idleDMBs  int
	idleBytes int
	idleTime  time.Duration
}

// A dialing is a peering that we have asked for, of which many callers may want to know.
type dialing struct {
	done chan struct{}
	peer *Peer // nil if err is not; both are set before done is closed
	err  error
}

// Open makes a device with a new, random GID, that other devices can find. The caller closes it.
//
// Errors match ErrDir (the directory is not safe), ErrDenied or ErrMappings (no peering could be
// made), or are the kernel's: EMFILE also where too few descriptors are left for a peering.
func Open(config Config) (*Device, error) {
	d := &Device{
		gid:      newGID(),
		anyUser:  config.AnyUser,
		admit:    config.Admit,
		handler:  config.Handler,
		log:      config.Logger,
		maximum:  config.Budget,
		lim:      cacheLimits{idleDMBs: maxIdleDMBs, idleBytes: maxIdleBytes, idleTime: maxIdleTime},
		opened:   time.Now(),
		dialed:   make(map[wire.ISMGID]*dialing),
		accepted: make(map[*Peer]struct{}),
	}
	if d.handler == nil {
		d.handler = noHandler{}
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.maximum == 0 {
		d.maximum = DefaultBudget
	}
	d.polled.Store(new([]*Peer))
	err := probe()
	if err == nil {
		err = d.spares.ensure()
	}
	if err != nil {
		return nil, fmt.Errorf("ism: %w", err)
	}
	defer func() {
		if d.ctx == nil { // did not come about
			d.spares.close()
		}
	}()
	if config.Dir == "" {
		d.ctx, d.cancel = context.WithCancel(context.Background())
		return d, nil
	}
	if d.dir, err = sockets.Open(config.Dir, config.AnyUser); err != nil {
		return nil, fmt.Errorf("ism: %w", err)
	}
	fd, err := d.dir.Listen(d.gid, config.AnyUser)
	if err != nil {
		d.dir.Close()
		return nil, fmt.Errorf("ism: %w", err)
	}
	d.socket = os.NewFile(uintptr(fd), "ism listener")
	raw, err := d.socket.SyscallConn()
	if err == nil && fewDescriptors(fd) {
		// The device would refuse everybody, and the program may need the descriptors that it takes
		// for plain TCP.
		err = fmt.Errorf("fewer than %d descriptors are left (ulimit -n): %w", minFreeFDs, unix.EMFILE)
	}
	if err != nil {
		d.dir.Remove(d.gid)
		d.socket.Close()
		d.dir.Close()
		return nil, fmt.Errorf("ism: %w", err)
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.wg.Go(func() { d.listen(raw) })
	return d, nil
}

// Renew makes the device's socket again if that was removed from its directory, with or without that.
// Peerings go on; and others find the device as before, by its GID.
func (d *Device) Renew() error {
	if d.IsThere() {
		return nil
	}
	if err := d.dir.Reopen(); err != nil {
		return fmt.Errorf("ism: %w", err)
	}
	fd, err := d.dir.Listen(d.gid, d.anyUser)
	if err != nil {
		return fmt.Errorf("ism: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "ism listener")
	raw, err := socket.SyscallConn()
	if err != nil {
		socket.Close()
		return fmt.Errorf("ism: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		d.dir.Remove(d.gid)
		socket.Close()
		return net.ErrClosed
	}
	old := d.socket
	d.socket = socket
	d.wg.Go(func() { d.listen(raw) })
	old.Close() // nobody can reach it, and its goroutine ends
	return nil
}

// IsThere reports whether the device's socket is where others look for it. It costs a system call. A device
// that nobody looks for is always there.
func (d *Device) IsThere() bool { return d.dir == nil || d.dir.Has(d.gid) }

// GID returns the device's Extended GID.
func (d *Device) GID() wire.ISMGID { return d.gid }

// now returns the time since the device was opened.
func (d *Device) now() time.Duration { return time.Since(d.opened) }

// Close ends all peerings, removes the device's socket and waits until Handler.PeerGone was
// called for every peer. DMBs and Windows in use stay mapped until they are released. Calls after
// the first wait, too, and return nil.
func (d *Device) Close() error {
	d.closing.Do(func() {
		d.mu.Lock()
		d.closed = true
		socket := d.socket
		d.mu.Unlock()
		d.cancel()
		if d.dir != nil {
			d.dir.Remove(d.gid)
			socket.Close()
		}
		for _, p := range d.peers() {
			p.Close()
		}
		d.wg.Wait()
		d.spares.close()
		if d.dir != nil {
			d.dir.Close()
		}
	})
	return nil
}

// peers returns all peers that run.
func (d *Device) peers() []*Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	var peers []*Peer
	for p := range d.accepted {
		peers = append(peers, p)
	}
	for _, dl := range d.dialed {
		if dl.peer != nil {
			peers = append(peers, dl.peer)
		}
	}
	return peers
}

// Peer returns the peering with the device that has the GID, and makes it if there is none. Callers
// that come at the same time share one attempt. The GID may be the device's own.
//
// ctx bounds the wait, not the peering. Errors match ErrDead, ErrOtherUser, ErrWrongGID,
// ErrVersion, ErrLimit, ErrProtocol, ErrPeerGone (it hangs up without a word), net.ErrClosed or
// the error of ctx, or are the kernel's.
func (d *Device) Peer(ctx context.Context, gid wire.ISMGID) (*Peer, error) {
	return d.peer(ctx, gid, nil)
}

// peer is Peer, and makes the peering by an introduction unless that is nil. key is the GID or the
// introduction's. If it uses the introduction it takes the socket out.
func (d *Device) peer(ctx context.Context, key wire.ISMGID, in *Introduction) (*Peer, error) {
	d.mu.Lock()
	dl := d.dialed[key]
	if dl != nil && dl.peer != nil && dl.peer.closing() {
		dl = nil // its goroutine has not come to remove it yet
	}
	switch {
	case d.closed:
		d.mu.Unlock()
		return nil, net.ErrClosed
	case dl == nil && len(d.dialed)+len(d.accepted) >= MaxPeers:
		d.mu.Unlock()
		return nil, fmt.Errorf("%w: %d peers", ErrLimit, MaxPeers)
	case dl == nil && closing.Load() >= maxClosing:
		d.mu.Unlock()
		return nil, fmt.Errorf("%w: %d descriptors of peers do not close", ErrLimit, maxClosing)
	case dl == nil:
		dl = &dialing{done: make(chan struct{})}
		d.dialed[key] = dl
		var taken *Introduction
		if in != nil {
			taken = new(Introduction)
			*taken = *in
			in.Socket = -1
		}
		d.wg.Go(func() { d.runDial(key, dl, taken) })
	}
	d.mu.Unlock()
	select { // first without ctx, which may have to start its timer
	case <-dl.done:
		return dl.peer, dl.err
	default:
	}
	select {
	case <-dl.done:
		return dl.peer, dl.err
	case <-ctx.Done():
		return nil, fmt.Errorf("ism: peering with %v: %w", key, ctx.Err())
	}
}

// runDial carries out a dialing and then runs the peer.
func (d *Device) runDial(key wire.ISMGID, dl *dialing, in *Introduction) {
	ctx, cancel := context.WithTimeout(d.ctx, dialTimeout)
	var p *Peer
	var err error
	switch {
	case in != nil:
		p, err = dialIntroduced(ctx, d, in)
	case d.dir == nil:
		err = fmt.Errorf("%w: %v: this device has no directory", ErrDead, key)
	default:
		p, err = d.dial(ctx, key)
	}
	cancel()
	d.mu.Lock()
	if err == nil {
		dl.peer = p
	} else {
		dl.err = err
		if d.closed {
			dl.err = net.ErrClosed
		}
		if d.dialed[key] == dl {
			delete(d.dialed, key)
		}
	}
	closed := d.closed
	d.mu.Unlock()
	close(dl.done)
	if err != nil {
		return
	}
	if closed { // Close may not have seen it
		p.Close()
	}
	d.start(p)
}

// start runs the two goroutines of a peer, the receiver on this one.
func (d *Device) start(p *Peer) {
	d.wg.Go(func() {
		p.bell.run()
		p.unref()
	})
	p.run()
}

// enter adds an accepted peer to the table and reports whether there is room.
func (d *Device) enter(p *Peer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.dialed)+len(d.accepted) >= MaxPeers || crowdedLocked(d, p) {
		return false
	}
	d.accepted[p] = struct{}{}
	return true
}

// poll adds an accepted peer to those that Poll looks at.
func (d *Device) poll(p *Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	polled := append(slices.Clone(*d.polled.Load()), p)
	d.polled.Store(&polled)
}

// remove takes a peer out of the tables.
func (d *Device) remove(p *Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !p.accepted {
		if dl := d.dialed[p.key]; dl != nil && dl.peer == p {
			delete(d.dialed, p.key)
		}
		return
	}
	delete(d.accepted, p)
	polled := slices.DeleteFunc(slices.Clone(*d.polled.Load()), func(q *Peer) bool { return q == p })
	d.polled.Store(&polled)
}

// Poll handles, on the calling goroutine, every message that has arrived on the accepted peerings, so
// that all signals that were sent before the call have been delivered when it returns. It does not
// wait for messages to arrive, only for handler functions that are running. It costs a look into
// memory for each accepted peering, and a system call where a signal did not fit there.
func (d *Device) Poll() {
	for _, p := range *d.polled.Load() {
		p.poll()
	}
}

// reserve takes size bytes from the budget, if need be from the memory that the caches hold.
func (d *Device) reserve(size int64) bool {
	for {
		if used := d.budget.Add(size); d.maximum < 0 || used <= d.maximum {
			return true
		}
		d.budget.Add(-size)
		if size > d.maximum {
			return false
		}
		var freed int64
		for _, p := range d.peers() {
			if freed += p.evictFor(size - freed); freed >= size {
				break
			}
		}
		if freed == 0 {
			return false
		}
	}
}

// reserveMapped counts size bytes of a peer's memory that is about to be mapped, if need be after
// memory was unmapped that peers might use again. Memory that is needed for a connection which has
// been agreed on already is late, and may take a quarter more than the budget.
func (d *Device) reserveMapped(size int64, late bool) bool {
	maximum := d.maximum
	if late {
		maximum += maximum / 4
	}
	for {
		if used := d.mapped.Add(size); d.maximum < 0 || used <= maximum {
			return true
		}
		d.mapped.Add(-size)
		if size > maximum {
			return false
		}
		var freed int64
		for _, p := range d.peers() {
			if freed += p.dropIdle(size - freed); freed >= size {
				break
			}
		}
		if freed == 0 {
			return false
		}
	}
}

// room checks, before a connection is agreed on, that the buffer of the peer which will come with it
// can be taken: as large as ours, most likely.
func (d *Device) room(size int) error {
	if err := d.spares.ensure(); err != nil {
		return err
	}
	if err := mappings.room(2, mappingShare); err != nil {
		return err
	}
	if !d.reserveMapped(int64(size), false) {
		return fmt.Errorf("%w: %d bytes more of peers", ErrBudget, size)
	}
	d.mapped.Add(-int64(size))
	return nil
}

// listen is the goroutine that accepts connections.
func (d *Device) listen(raw syscall.RawConn) {
	pause := 5 * time.Millisecond
	for {
		var fd int
		var err error
		if raw.Read(func(s uintptr) bool {
			for {
				fd, _, err = unix.Accept4(int(s), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
				if err != unix.EINTR && err != unix.ECONNABORTED {
					return err != unix.EAGAIN
				}
			}
		}) != nil {
			return // closed
		}
		if err != nil {
			// Out of descriptors or memory. A process that connects waits in the backlog meanwhile.
			d.log.Warn("ism accept", "err", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-d.ctx.Done():
				return
			}
			pause = min(2*pause, acceptBackoff)
			continue
		}
		pause = 5 * time.Millisecond
		if fewDescriptors(fd) || !d.beginHello() {
			d.turnAway(fd)
			continue
		}
		d.wg.Go(func() { d.accept(fd, nil) })
	}
}

func (d *Device) beginHello() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.helloing >= maxHelloing || closing.Load() >= maxClosing {
		return false
	}
	d.helloing++
	return true
}

func (d *Device) endHello() {
	d.mu.Lock()
	d.helloing--
	d.mu.Unlock()
}

// fewDescriptors reports whether the process has hardly any descriptors left, of which fd is the
// newest: the kernel hands out the lowest number that is free.
func fewDescriptors(fd int) bool {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return err == nil && limit.Cur < 1<<30 && fd+minFreeFDs >= int(limit.Cur)
}

// turnAway refuses a connection because too many others are in their Hello, or too few descriptors
// are left for it.
func (d *Device) turnAway(fd int) {
	m := message{kind: kindRefuse, reason: refuseLimit}
	sendNow(fd, m.append(nil))
	empty(fd)
	unix.Close(fd)
	d.stats.refused.Add(1)
}
