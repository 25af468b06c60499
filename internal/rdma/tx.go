package rdma

import (
	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire/roce"
)

const (
	// idleSenders is how many batch buffers a device keeps for those who post.
	idleSenders = 4
	// batchBytes holds the packets of one system call.
	batchBytes = 192 << 10
	// burstBytes is after how much a batch ends where a long message begins. Its first packet is
	// the longest, and so begins a super-packet anyway.
	burstBytes = 96 << 10
	// lossyBurst is how many packets of a queue pair go into a batch while packets get lost: what is
	// sent before we hear of it may be for nothing.
	lossyBurst = 48
)

// A sender is what one goroutine needs to send packets: a batch, and the queue pairs in it.
type sender struct {
	batch   *udp.TxBatch
	queue   []*QP // that want to send
	claimed []*QP // whose packets are in the batch
	flows   []*roce.Flow
	sent    uint64 // packets, in all
}

func newSender() *sender { return &sender{batch: udp.NewTxBatch(batchBytes)} }

// Seal writes the ICRC of a packet in the batch, now that its IPv4 identification is known.
func (t *sender) Seal(tag int, id uint16, datagram []byte) { t.flows[tag].Seal(id, datagram) }

// send sends what q has, as far as its window allows, on the calling goroutine. While the device is
// in handlers it does so afterwards, all at once.
func (d *Device) send(q *QP) {
	if d.inHandlers.Load() {
		d.posted.Lock()
		if d.inHandlers.Load() {
			d.posted.qps = append(d.posted.qps, q)
			d.posted.Unlock()
			return
		}
		d.posted.Unlock()
	}
	var t *sender
	select {
	case t = <-d.idle:
	default:
		t = newSender()
	}
	t.queue = append(t.queue[:0], q)
	for len(t.queue) > 0 {
		d.round(t)
	}
	select {
	case d.idle <- t:
	default:
	}
}

// round sends one batch of packets of the queue pairs in t.queue, and leaves those there that have
// more.
//
// A queue pair whose packets are in somebody's batch is marked as sending until the batch is out, so
// that its packets leave in order. Whoever finds the mark has nothing to do: the one who set it looks
// for more when it takes it off.
func (d *Device) round(t *sender) {
	t.batch.Reset()
	t.claimed, t.flows = t.claimed[:0], t.flows[:0]
	now := d.now()
	rest := 0
	for i, q := range t.queue {
		q.mu.Lock()
		if q.sending || q.closed {
			q.mu.Unlock()
			continue
		}
		t.batch.To(q.remote, len(t.flows))
		n, full := 0, false
		for !q.c.recovering || n < lossyBurst {
			if t.batch.Bytes() >= burstBytes && q.c.beginsLong() {
				full = n == 0 // others have filled it
				break
			}
			room := t.batch.Next(q.c.maxPacketLen() + roce.ICRCLen)
			if room == nil {
				full = true
				break
			}
			size := q.c.transmit(now, room)
			if size == 0 {
				break
			}
			t.batch.Commit(size + roce.ICRCLen)
			n++
		}
		q.arm(now)
		if len(q.c.done) > 0 { // it failed: its memory is gone
			send, recv := q.deliver()
			go q.tell(send, recv)
		}
		if n > 0 {
			q.sending = true
			t.claimed = append(t.claimed, q)
			t.flows = append(t.flows, q.txFlow)
		}
		q.mu.Unlock()
		if full {
			rest = copy(t.queue, t.queue[i+min(n, 1):]) // without q, if it is claimed
			break
		}
	}
	t.queue = t.queue[:rest]
	if len(t.claimed) == 0 {
		return
	}
	t.sent += uint64(t.batch.Len())
	if err := d.sock.Send(t.batch, t); err != nil {
		d.stats.sendErrors.Add(1) // the packets are lost; retries and the retry count decide
	}
	now = d.now()
	for _, q := range t.claimed {
		q.mu.Lock()
		q.sending = false
		more := !q.closed && q.c.wantsToTransmit(now)
		q.mu.Unlock()
		if more {
			t.queue = append(t.queue, q)
		}
	}
}
