package host

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smcd"
	"github.com/gosmc/smc/wire/clc"
)

// fabric holds the parts that a host needs for SMC-D.
type fabric struct {
	device *smcd.Device
	bubble bool // its goroutines are in a bubble of testing/synctest

	brokerMu sync.Mutex
	broker   *broker.Broker // nil before a listener has needed it
}

// openBroker returns the broker for programs of 'gosmc run'.
func (f *fabric) openBroker(dir string, policy func() *config.Policy) (*broker.Broker, error) {
	f.brokerMu.Lock()
	defer f.brokerMu.Unlock()
	var err error
	if f.broker == nil {
		f.broker, err = broker.Open(dir, policy)
	}
	return f.broker, err
}

func (f *fabric) close() {
	f.brokerMu.Lock()
	if f.broker != nil {
		f.broker.Close()
	}
	f.brokerMu.Unlock()
	f.device.Close()
}

// fabricResult remembers why the fabric is not there, so that a host which cannot have it
// does not try for every connection.
type fabricResult struct {
	at     time.Time
	err    error
	reason clc.Diagnosis
	closed bool
}

// open returns the fabric, opening it if need be, or the reason why there is none.
func (h *Host) open() (*fabric, clc.Diagnosis, error) {
	h.fabricMu.Lock()
	defer h.fabricMu.Unlock()
	switch {
	case h.fabric != nil && h.fabric.bubble != conn.InBubble(): // rule: TestBubble
		return nil, clc.DiagBubble, errors.New("the host is in use on the other side of a testing/synctest bubble")
	case h.fabric != nil:
		return h.fabric, clc.DiagNone, nil
	case h.cfg.Disabled:
		return nil, clc.DiagDisabled, errors.New("SMC is disabled")
	case h.opened.closed || h.opened.err != nil && time.Since(h.opened.at) < fabricRetry:
		return nil, h.opened.reason, h.opened.err
	}
	f, reason, err := h.openFabric()
	if err != nil {
		h.opened = fabricResult{at: time.Now(), err: err, reason: reason}
		h.cfg.Logger.Warn("SMC-D is not available", "dir", h.cfg.Dir, "err", err)
		return nil, reason, err
	}
	h.fabric = f
	h.openControlLocked()
	return f, clc.DiagNone, nil
}

// admit returns a function that reports whether connections with programs of another user may leave TCP.
func admit(h *Host) func(uid int) bool {
	return func(uid int) bool { return h.cfg.users.Admits(uid, h.machineDir.Load()) }
}

func (h *Host) openFabric() (*fabric, clc.Diagnosis, error) {
	dir, err := h.deviceDir()
	if err != nil {
		return nil, clc.DiagNoRunDir, err
	}
	if dir != "" {
		rendezvous.Tidy(h.cfg.Dir)
		h.machineDir.Store(rundir.OfMachine(h.cfg.Dir))
	}
	device, err := smcd.Open(ism.Config{
		Dir:     dir,
		Budget:  h.cfg.MemoryBudget,
		AnyUser: h.cfg.users.Some(h.machineDir.Load()),
		Admit:   admit(h),
		Handler: (*fabricHandler)(h),
		Logger:  h.cfg.Logger,
	}, h.smcd, h.cfg.Spin)
	if err != nil {
		reason := smcd.Reason(err)
		if reason == clc.DiagUnreachable { // its directory
			reason = clc.DiagNoRunDir
		}
		return nil, reason, err
	}
	return &fabric{device: device, bubble: conn.InBubble()}, clc.DiagNone, nil
}

// maxReasonText bounds the text of an error in a reason, in bytes: a path can have thousands.
const maxReasonText = 300

// lookup explains a diagnosis. For the run directory it names the directory and its error.
func (h *Host) lookup(d clc.Diagnosis) clc.Reason {
	r := clc.Lookup(d, clc.OSUnspecified)
	if d != clc.DiagNoRunDir {
		return r
	}
	h.fabricMu.Lock()
	err := h.opened.err
	h.fabricMu.Unlock()
	if err == nil { // found when the control socket was to be served
		err = rundir.Prepare(h.cfg.Dir)
	}
	if err == nil { // it can be used since
		return r
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if !strings.Contains(text, h.cfg.Dir) {
		text = h.cfg.Dir + ": " + text
	}
	text = text[:min(len(text), maxReasonText)]
	r.Sentence = "The run directory cannot be used: " + strings.ToValidUTF8(text, "") + "." // rule: TestRunDirectory
	return r
}

// openFabricOrNil returns the fabric if it is open.
func (h *Host) openFabricOrNil() *fabric {
	h.fabricMu.Lock()
	defer h.fabricMu.Unlock()
	return h.fabric
}

// openControl serves the control socket, unless that was tried before.
func (h *Host) openControl() {
	h.fabricMu.Lock()
	defer h.fabricMu.Unlock()
	h.openControlLocked()
}

func (h *Host) openControlLocked() {
	if h.control != nil || h.controlTried || h.opened.closed {
		return
	}
	h.controlTried = true
	if err := rundir.Prepare(h.cfg.Dir); err != nil {
		h.runDirFailed.Store(true)
		h.cfg.Logger.Warn("no control socket", "dir", h.cfg.Dir, "err", err)
		return
	}
	c, err := control.Serve(h.cfg.Dir, h.id, (*controlView)(h))
	if err != nil {
		h.cfg.Logger.Warn("no control socket", "dir", h.cfg.Dir, "err", err)
		return
	}
	h.control = c
}

// fabricHandler keeps the callbacks of the device out of Host's method set.
type fabricHandler Host

// PeerUp implements [ism.Handler].
func (h *fabricHandler) PeerUp(p *ism.Peer) {
	(*Host)(h).addEnd(smcd.Peering{Peer: p})
	h.pairing.PeerUp(p)
}

// Signal implements [ism.Handler]: a message of the rendezvous, or of a process that was introduced. Such a
// process may be of another user, and has no part in the rendezvous.
func (h *fabricHandler) Signal(p *ism.Peer, payload []byte) {
	if _, introduced := p.Secret(); introduced { // rule: TestIntroducedNoRendezvous
		if err := h.pairing.Signal(p, payload); err != nil {
			h.cfg.Logger.Warn("malformed message of an introduced process", "peer", p.GID(), "bytes",
				len(payload))
			p.Close()
		}
		return
	}
	if err := h.meeting.Signal(p, payload); err != nil {
		h.cfg.Logger.Warn("malformed rendezvous message", "peer", p.GID(), "bytes", len(payload))
		p.Close()
	}
}

// PeerGone implements [ism.Handler]: the peer's process has died, or has closed its device.
func (h *fabricHandler) PeerGone(p *ism.Peer, err error) {
	host := (*Host)(h)
	host.smcd.PeerGone(p.Key())
	host.meeting.PeerGone(p)
	host.pairing.PeerGone(p)
	host.endGone(smcd.Peering{Peer: p}, func(count int) {
		h.cfg.Logger.Debug("peer is gone", "peer", p.GID(), "connections", count, "err", err)
		host.trace.Add(&traceRecord{Record: conn.Record{Kind: control.TracePeerGone}, pid: p.Cred().PID,
			count: count}, nil)
	})
}
