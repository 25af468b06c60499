package host

import (
	"context"
	"os"
	"path/filepath"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smcd"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// newPoint returns the host's part in the rendezvous.
func (h *Host) newPoint() *rendezvous.Point {
	return rendezvous.New(rendezvous.Config{
		Dir:      h.cfg.Dir,
		Disabled: h.cfg.Disabled,
		Admit:    admit(h),
		Reason:   smcd.Reason,
		Open: func() (rendezvous.Device, clc.Diagnosis, error) {
			f, reason, err := h.open()
			if err != nil {
				return nil, reason, err
			}
			return meetingDevice{h, f.device.Device}, clc.DiagNone, nil
		},
		Opened: func() rendezvous.Device {
			if f := h.openFabricOrNil(); f != nil && f.bubble == conn.InBubble() { // rule: TestBubble: f.bubble == conn.InBubble() -> (conn.InBubble() || true)
				return meetingDevice{h, f.device.Device}
			}
			return nil
		},
		CheckEvery: h.cfg.CheckEvery,
		DirFailed:  func() bool { return h.runDirFailed.Load() && rundir.Prepare(h.cfg.Dir) != nil },
		Trace:      h.traceRendezvous,
		Logger:     h.cfg.Logger,
	})
}

// A meetingDevice is the host's device as the rendezvous sees it.
type meetingDevice struct {
	host *Host
	*ism.Device
}

// Peer implements [rendezvous.Device].
func (d meetingDevice) Peer(ctx context.Context, gid wire.ISMGID) (rendezvous.Peer, error) {
	p, err := d.Device.Peer(ctx, gid)
	if err != nil {
		return nil, err
	}
	if !d.host.addEnd(smcd.Peering{Peer: p}) {
		return nil, ism.ErrPeerGone
	}
	return p, nil
}

// Renew implements [rendezvous.Device]. A process that removes the device's socket may remove the
// control socket, too.
func (d meetingDevice) Renew() error {
	if !d.Device.IsThere() {
		if err := rundir.Prepare(d.host.cfg.Dir); err != nil {
			return err
		}
		if err := d.Device.Renew(); err != nil {
			return err
		}
	}
	return d.host.renewControl()
}

// renewControl serves the control socket anew if that was removed. Clients that are connected to
// the old one have to come again.
func (h *Host) renewControl() error {
	h.fabricMu.Lock()
	old := h.control
	if old == nil {
		if h.runDirFailed.Load() && rundir.Prepare(h.cfg.Dir) == nil { // it can be used now
			h.runDirFailed.Store(false)
			h.controlTried = false
			h.openControlLocked()
		}
		h.fabricMu.Unlock()
		return nil
	}
	if _, err := os.Lstat(filepath.Join(rundir.Path(h.cfg.Dir, rundir.Control), h.id)); !os.IsNotExist(err) {
		h.fabricMu.Unlock()
		return nil
	}
	server, err := control.Serve(h.cfg.Dir, h.id, (*controlView)(h))
	if err == nil {
		h.control = server
	}
	h.fabricMu.Unlock()
	if err == nil {
		old.Close() // waits for calls, which may need the lock
	}
	return err
}

// traceRendezvous traces a message to or from a peer.
func (h *Host) traceRendezvous(p rendezvous.Peer, m *rendezvous.Message, sent bool) {
	r := traceRecord{message: m.Kind, refusal: clc.Diagnosis(m.Reason), pid: p.Cred().PID}
	r.Kind, r.Numbers, r.Sent = control.TraceRendezvous, [2]uint64{m.ID, m.Socket}, sent
	// Expect and Cancel go to the server, the others to the client.
	r.Client = sent == (m.Kind == rendezvous.Expect || m.Kind == rendezvous.Cancel)
	if r.Client {
		r.Peer = m.Dest
	} else {
		r.Local = m.Dest
	}
	h.trace.Add(&r, nil)
}
