package rendezvous

import (
	"context"
	"errors"
	"time"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire/clc"
)

// The socket buffer between two devices holds some 280 messages. A burst of connections is
// larger than that, and a message that is lost would leave the other side waiting.

// send sends a message, or has it sent when there is room again. It does not wait.
// If it returns false the peering is of no more use. It must not be called with p.mu held.
func (p *Point) send(peer Peer, m Message) bool {
	var buf [expectLen]byte
	p.cfg.Trace(peer, &m, true) // before the answer can be there
	err := peer.Send(m.Append(buf[:0]))
	if errors.Is(err, ism.ErrCongested) && p.queue(peer, m) {
		return true
	}
	if err != nil {
		p.cfg.Logger.Debug("rendezvous message not sent", "peer", peer.GID(), "err", err)
	}
	return err == nil
}

// sendExpect sends an Expect, which has to be on its way before the socket connects. It waits
// until there is room, or ctx ends, and returns why it could not be sent.
func (p *Point) sendExpect(ctx context.Context, peer Peer, m Message) clc.Diagnosis {
	var buf [expectLen]byte
	b := m.Append(buf[:0])
	p.cfg.Trace(peer, &m, true)
	for pause := outboxPause; ; pause = min(2*pause, maxOutboxPause) {
		switch err := peer.Leave(b); {
		case err == nil:
			return clc.DiagNone
		case !errors.Is(err, ism.ErrCongested):
			return clc.DiagStale
		}
		select {
		case <-time.After(pause):
		case <-peer.Done():
			return clc.DiagStale
		case <-ctx.Done():
			return clc.DiagBusy
		}
	}
}

// queue keeps a message until the peer has read some. It reports false if the peer
// has not read for so long that there are too many.
func (p *Point) queue(peer Peer, m Message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.stateLocked(peer)
	if state == nil || len(state.outbox) >= maxOutbox {
		return false
	}
	state.outbox = append(state.outbox, m)
	if len(state.outbox) == 1 {
		go p.flush(peer, state)
	}
	return true
}

// flush sends the messages that are queued for a peer, until there are no more or the peering has
// ended. The order does not matter: at most one of these messages is about a given connection.
func (p *Point) flush(peer Peer, state *peerState) {
	pause := outboxPause
	for {
		p.mu.Lock()
		if len(state.outbox) == 0 {
			state.outbox = nil
			p.mu.Unlock()
			return
		}
		m := state.outbox[0]
		p.mu.Unlock()
		var buf [expectLen]byte
		if err := peer.Send(m.Append(buf[:0])); errors.Is(err, ism.ErrCongested) {
			select {
			case <-time.After(pause):
				pause = min(2*pause, maxOutboxPause)
				continue
			case <-peer.Done():
			}
		}
		pause = outboxPause
		p.mu.Lock()
		state.outbox = state.outbox[1:]
		p.mu.Unlock()
	}
}
