package host

import (
	"context"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// newPoint returns the host's part in the rendezvous.
func (h *Host) newPoint() *rendezvous.Point {
	return rendezvous.New(rendezvous.Config{
		Dir:      h.cfg.Dir,
		Disabled: h.cfg.Disabled,
		AnyUser:  h.cfg.AnyUser,
		Reason:   resourceReason,
		Open: func() (rendezvous.Device, clc.Diagnosis, error) {
			f, reason, err := h.open()
			if err != nil {
				return nil, reason, err
			}
			return meetingDevice{h, f.device}, clc.DiagNone, nil
		},
		Opened: func() rendezvous.Device {
			if f := h.openFabricOrNil(); f != nil {
				return meetingDevice{h, f.device}
			}
			return nil
		},
		DirFailed: func() bool { return h.runDirFailed.Load() && rundir.Prepare(h.cfg.Dir) != nil },
		Trace:     h.traceRendezvous,
		Logger:    h.cfg.Logger,
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
	if !d.host.addEnd(p) {
		return nil, ism.ErrPeerGone
	}
	return p, nil
}

// traceRendezvous traces a message to or from a peer.
func (h *Host) traceRendezvous(p rendezvous.Peer, m *rendezvous.Message, sent bool) {
	r := traceRecord{kind: control.TraceRendezvous, message: *m, pid: p.Cred().PID, sent: sent}
	// Expect and Cancel go to the server, the others to the client.
	r.client = sent == (m.Kind == rendezvous.Expect || m.Kind == rendezvous.Cancel)
	if r.client {
		r.peer = m.Dest
	} else {
		r.local = m.Dest
	}
	h.trace.Add(&r, nil)
}
