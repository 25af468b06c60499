package host

import (
	"context"
	"errors"
	"time"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire/clc"
)

// The socket buffer between two devices holds some 280 messages. A burst of connections is
// larger than that, and a message that is lost would leave the other side waiting.

// sendRendezvous sends a message, or has it sent when there is room again. It does not wait.
// If it returns false the peering is of no more use. It must not be called with h.mu held.
func (h *Host) sendRendezvous(p *ism.Peer, m rendezvous) bool {
	var buf [rvExpectLen]byte
	h.traceRendezvous(p.Cred().PID, &m, true) // before the answer can be there
	err := p.Send(m.append(buf[:0]))
	if errors.Is(err, ism.ErrCongested) && h.queueRendezvous(p, m) {
		return true
	}
	if err != nil {
		h.cfg.Logger.Debug("rendezvous message not sent", "peer", p.GID(), "err", err)
	}
	return err == nil
}

// sendExpect sends an Expect, which has to be on its way before the socket connects. It waits
// until there is room, or ctx ends, and returns why it could not be sent.
func (h *Host) sendExpect(ctx context.Context, p *ism.Peer, m rendezvous) clc.Diagnosis {
	var buf [rvExpectLen]byte
	b := m.append(buf[:0])
	h.traceRendezvous(p.Cred().PID, &m, true)
	for pause := outboxPause; ; pause = min(2*pause, maxOutboxPause) {
		switch err := p.Send(b); {
		case err == nil:
			return clc.DiagNone
		case !errors.Is(err, ism.ErrCongested):
			return clc.DiagStale
		}
		select {
		case <-time.After(pause):
		case <-p.Done():
			return clc.DiagStale
		case <-ctx.Done():
			return clc.DiagBusy
		}
	}
}

// queueRendezvous keeps a message until the peer has read some. It reports false if the peer
// has not read for so long that there are too many.
func (h *Host) queueRendezvous(p *ism.Peer, m rendezvous) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	state := h.peers[p]
	if state == nil || len(state.outbox) >= maxOutbox {
		return false
	}
	state.outbox = append(state.outbox, m)
	if len(state.outbox) == 1 {
		go h.flush(p, state)
	}
	return true
}

// flush sends what is queued for a peer, until there is no more or the peering has ended. The
// order does not matter: at most one of these messages is about a given connection.
func (h *Host) flush(p *ism.Peer, state *peerState) {
	pause := outboxPause
	for {
		h.mu.Lock()
		if len(state.outbox) == 0 {
			state.outbox = nil
			h.mu.Unlock()
			return
		}
		m := state.outbox[0]
		h.mu.Unlock()
		var buf [rvExpectLen]byte
		if err := p.Send(m.append(buf[:0])); errors.Is(err, ism.ErrCongested) {
			select {
			case <-time.After(pause):
				pause = min(2*pause, maxOutboxPause)
				continue
			case <-p.Done():
			}
		}
		pause = outboxPause
		h.mu.Lock()
		state.outbox = state.outbox[1:]
		h.mu.Unlock()
	}
}
