package host

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/counters"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/paired"
	"github.com/gosmc/smc/internal/pnet"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smcd"
	"github.com/gosmc/smc/internal/smcr"
	"github.com/gosmc/smc/internal/sysinfo"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A Host is one SMC instance. It is made without touching the system; the run directory is
// prepared, the device opened and the control socket served when the first connection or
// listener needs them.
type Host struct {
	cfg     Config
	id      string // of the host on all machines; names its control socket
	name    string // as sent to peers
	ueids   []wire.EID
	peerID  wire.PeerID
	peers   config.Peers // that speak CLC, as configured
	seid    wire.EID
	started time.Time

	meeting   *rendezvous.Point
	pairing   *paired.Point
	admission *admission.Client
	rules     rulebook
	counters  counters.Counters
	sweeper   *conn.Sweeper
	connEnv   conn.Env // of all connections
	rnics     *rnic.Set
	smcd      *smcd.Groups
	networks  []transport.Network // fabrics for peers on other machines
	groupIDs  atomic.Uint32       // of link groups so far

	localPatience time.Duration // with a silent process of this machine: localPatience, but in tests
	shake         *handshake.Driver
	option        optionAsker
	trace         control.Trace[traceRecord]
	connIDs       atomic.Uint64 // of connections so far

	releaseMu    sync.Mutex // held while the fabric and the control socket are closed
	fabricMu     sync.Mutex
	fabric       *fabric     // nil until it could be opened
	machineDir   atomic.Bool // the run directory was the machine's when the fabric was opened
	opened       fabricResult
	control      *control.Server
	controlTried bool

	runDirFailed atomic.Bool // the run directory could not be used when the control socket was to be served

	mu        sync.Mutex
	closing   bool
	conns     map[conn.Conn]bool // true until the application has closed it
	inUse     int                // of conns, those that the application has not closed
	listeners map[*Listener]struct{}
	ends      map[transport.Association]map[conn.Conn]struct{} // the connections that end with something

	holders   int    // users of the host, besides connections and listeners
	holds     uint64 // calls of hold so far
	lingering bool   // linger runs

	idle chan struct{} // closed and replaced when the last connection in use goes; nil if nobody waits
}

var errHostClosed = transport.ErrClosed

// New returns a host. It fails only if the configuration is invalid.
func New(cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("smc: %w", err)
	}
	ueids, err := pnet.ParseUEIDs(cfg.UEIDs)
	if err != nil {
		return nil, fmt.Errorf("smc: %w", err)
	}
	peers, err := config.ParsePeers(cfg.SMCRPeers)
	if err != nil {
		return nil, fmt.Errorf("smc: SMCRPeers: %w", err)
	}
	devices, kernel, err := config.ParseDevices(cfg.SMCRDevices)
	if err != nil {
		return nil, fmt.Errorf("smc: SMCRDevices: %w", err)
	}
	if err := pnet.CheckTable(cfg.PNET); err != nil {
		return nil, fmt.Errorf("smc: PNET: %w", err)
	}
	h := &Host{
		cfg:       cfg,
		id:        newHostID(),
		ueids:     ueids,
		peers:     peers,
		started:   time.Now(),
		conns:     make(map[conn.Conn]bool),
		listeners: make(map[*Listener]struct{}),
		ends:      make(map[transport.Association]map[conn.Conn]struct{}),
	}
	h.name, _ = os.Hostname()
	h.peerID = newPeerID()
	if !cfg.NoSEID {
		if h.seid, err = sysinfo.SEID(); err != nil {
			cfg.Logger.Warn("no system EID", "err", err)
		}
	}
	h.sweeper = conn.NewSweeper(cfg.SweepEvery, h.smcConns)
	h.connEnv = conn.Env{
		Owner: (*connOwner)(h), Logger: cfg.Logger, Stats: &h.counters.Data, Dirty: h.sweeper.Wake,
		ResetPatience: conn.ResetPatience, WordTime: conn.WordTime,
	}
	h.option.source = cfg.Option
	h.localPatience = localPatience
	h.rnics = rnic.New(rnic.Config{
		Dir: cfg.Dir, Allowed: devices, Kernel: kernel, PNET: cfg.PNET, Links: cfg.SMCRLinks, RDMA: cfg.RDMA, NoSpin: cfg.Spin == 0,
		Namespace: cfg.Namespace, Logger: cfg.Logger,
		Diagnose: func(err error) string { return clc.Lookup(smcr.Reason(err), clc.OSUnspecified).Sentence },
	})
	h.networks = []transport.Network{smcr.New(smcr.Config{
		RNICs: h.rnics, PeerID: h.peerID, HaveUEID: len(ueids) > 0, V1: cfg.SMCRv1,
		MaxConns: cfg.SMCRConns, MaxLinks: cfg.SMCRLinks, ReadBuffer: cfg.ReadBuffer, MemoryBudget: cfg.MemoryBudget,
		KeepAlive: cfg.SMCRKeepAlive, Spread: cfg.SMCRSpread,
		Namespace: cfg.Namespace, Logger: cfg.Logger, NewID: h.nextGroupID, Owner: (*groupOwner)(h),
	})}
	h.smcd = smcd.NewGroups(h.nextGroupID, handshake.MaxConnsPerGroup)
	release := clc.Release1
	if cfg.Release0 {
		release = clc.Release0
	}
	h.shake = handshake.New(handshake.Config{
		// normalized
		HostName: h.name, SEID: h.seid, UEIDs: ueids, Release: release, MaxLinks: uint8(cfg.SMCRLinks),
		MaxConns: uint8(cfg.SMCRConns),
		Owner:    (*handshakeOwner)(h), Logger: cfg.Logger,
	})
	h.meeting = h.newPoint()
	h.pairing = h.newPairing()
	h.admission = admission.NewClient(h.cfg.Dir, 0)
	h.rules.cfg, h.rules.admission = &h.cfg, h.admission
	h.rules.apply(&cfg.first)
	return h, nil
}

// newHostID returns a random UUID of version 4. A process number would not do: processes in different PID
// namespaces may share a run directory.
func newHostID() string {
	var u [16]byte
	rand.Read(u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// newPeerID returns a peer ID that no other host has. Its second part is to be the MAC of an RNIC,
// for the sake of that: "the MAC address portion ... insures uniqueness" (RFC 7609 p.93). But
// several processes may share our RNICs, and each is an instance of its own beside the others, not
// one that takes the place of another; so it is a random, locally administered one.
func newPeerID() (id wire.PeerID) {
	rand.Read(id[:])
	id[2] = id[2]&^1 | 2
	return id
}

// nextGroupID returns the number of another link group, which no other one of the host has.
func (h *Host) nextGroupID() wire.LinkID { return wire.LinkID(h.groupIDs.Add(1)) }

// Dir returns the run directory.
func (h *Host) Dir() string { return h.cfg.Dir }

// isClosing reports whether Shutdown or Close was called.
func (h *Host) isClosing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closing
}

// add puts a new connection into the table. It fails when the host is closing. endGone will not
// find a connection if its peer is gone already.
func (h *Host) add(c conn.Conn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return errHostClosed
	}
	if conns := h.ends[c.Association()]; conns != nil {
		conns[c] = struct{}{}
	}
	h.conns[c] = true
	h.inUse++
	h.counters.Added(c.Mode(), c.Client())
	return nil
}

// forget takes a connection out of the table and adds up the bytes that it moved.
func (h *Host) forget(c conn.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.conns[c]; !ok {
		return
	}
	h.unusedLocked(c)
	delete(h.conns, c)
	delete(h.ends[c.Association()], c)
	in, out := c.Totals()
	h.counters.Forgotten(c.Mode(), in, out)
	c.TraceClosed(in, out)
	h.checkIdleLocked()
}

// smcConns returns the SMC connections.
func (h *Host) smcConns() []conn.Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	conns := make([]conn.Conn, 0, len(h.conns))
	for c := range h.conns {
		if c.Association() != nil {
			conns = append(conns, c)
		}
	}
	return conns
}

// unused says that the application has closed a connection, which may still wait for its peer.
func (h *Host) unused(c conn.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unusedLocked(c)
}

func (h *Host) unusedLocked(c conn.Conn) {
	if !h.conns[c] {
		return
	}
	h.conns[c] = false
	h.inUse--
	if h.inUse == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// Shutdown closes all listeners, waits until the application has closed all connections, and
// releases everything. When ctx ends first, it resets the remaining connections and returns
// ctx.Err().
func (h *Host) Shutdown(ctx context.Context) error {
	h.mu.Lock()
	listeners := slices.Collect(maps.Keys(h.listeners))
	h.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	for _, l := range listeners {
		select {
		case <-l.finished: // its accepted connections are the application's
		case <-ctx.Done():
		}
	}
	for _, l := range h.stop() {
		l.closeNow()
	}
	var err error
	for {
		h.mu.Lock()
		if h.inUse == 0 {
			h.mu.Unlock()
			break
		}
		if h.idle == nil {
			h.idle = make(chan struct{})
		}
		idle := h.idle
		h.mu.Unlock()
		select {
		case <-idle:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		}
		break
	}
	h.release()
	return err
}

// Close closes all listeners, resets all connections and releases everything.
func (h *Host) Close() error {
	for _, l := range h.stop() {
		l.closeNow()
	}
	h.release()
	return nil
}

// stop lets nothing new begin and returns the listeners there were.
func (h *Host) stop() []*Listener {
	h.meeting.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closing = true
	return slices.Collect(maps.Keys(h.listeners))
}

// release resets the connections that are left, and closes the fabric. Bytes that were written to
// connections that the application has closed reach their peers first.
func (h *Host) release() {
	h.mu.Lock()
	var left []conn.Conn
	for c := range h.conns {
		left = append(left, c)
	}
	h.mu.Unlock()
	var last sync.WaitGroup
	for _, c := range left {
		if c.IsClosed() { // rule: TestSMCRCloseAll: c.IsClosed() -> false
			last.Go(c.Flush) // DELETE LINK would overtake it
		} else {
			c.Abort()
		}
	}
	last.Wait()
	for _, c := range left {
		c.Abort()
	}
	h.sweeper.Stop()
	h.meeting.Close()
	h.pairing.Close()
	h.admission.Close()
	for _, n := range h.networks {
		n.Close(true)
	}
	h.releaseMu.Lock()
	defer h.releaseMu.Unlock()
	h.fabricMu.Lock()
	f, server := h.fabric, h.control
	h.fabric, h.control = nil, nil
	h.opened = fabricResult{closed: true, err: errHostClosed, reason: clc.DiagClosing}
	h.fabricMu.Unlock()
	if server != nil {
		server.Close()
	}
	if f != nil {
		f.close()
	}
}
