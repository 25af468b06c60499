package rdma

import (
	"math"
	"time"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

const (
	// idleSenders is how many batch buffers a device keeps for goroutines that post.
	idleSenders = 4
	// batchBytes holds the packets of one system call.
	batchBytes = 192 << 10
	// burstBytes is after how much a batch ends where a long message begins. Its first packet is
	// the longest, and so begins a super-packet anyway.
	burstBytes = 96 << 10
	// lossyBurst is how many packets of a queue pair go into a batch while packets get lost:
	// packets that are sent before we hear of a loss may be for nothing.
	lossyBurst = 48
)

// A sender holds one goroutine's state for sending packets: a batch, and the queue pairs in it.
type sender struct {
	batch   *udp.TxBatch
	claimed []*QP   // whose packets are in the batch
	paths   []*path // by the tag of their packets
	// the slot of the last packet to a peer whose port may be shared, and one more; 0 for none
	sharer wire.QPN
}

func newSender() *sender { return &sender{batch: udp.NewTxBatch(batchBytes)} }

// Seal writes the ICRC of a packet in the batch, now that its IPv4 identification is known.
func (t *sender) Seal(tag int, id uint16, datagram []byte) { t.paths[tag].flow.Seal(id, datagram) }

// begin empties the batch.
func (t *sender) begin() {
	t.batch.Reset()
	t.claimed, t.paths = t.claimed[:0], t.paths[:0]
	t.sharer = 0
}

// to makes p the destination of the packets that follow. Packets of several queue pairs to one peer
// go into one super-packet: nothing in its headers, nor in the part of them that the ICRC covers,
// is a queue pair's own.
func (t *sender) to(p *path) {
	if n := len(t.paths); n == 0 || t.paths[n-1] != p {
		t.paths = append(t.paths, p)
	}
	t.batch.To(p.remote, len(t.paths)-1)
}

// apart ends the super-packet if q's packets may be for another process than those before them.
// Where the peer's port is shared a super-packet goes as a whole to one of the processes that share
// it. Stacks like this one that do not share their port send from it. The caller holds q.mu.
func (t *sender) apart(q *QP) {
	sharer := wire.QPN(0)
	if q.rxPort != q.remote.Port() {
		sharer = q.c.remoteQPN>>shareBits + 1
	}
	if sharer != t.sharer {
		t.batch.Break()
	}
	t.sharer = sharer
}

// getSender returns a sender that nobody uses.
func (d *Device) getSender() *sender {
	select {
	case t := <-d.idle:
		return t
	default:
		return newSender()
	}
}

func (d *Device) putSender(t *sender) {
	select {
	case d.idle <- t:
	default:
	}
}

// send sends packets of q on the calling goroutine, as far as its window and the path allow. It
// leaves packets beyond limit, and packets that have to wait for others, to the device's goroutine:
// nobody sends for others. While the device is in handlers it does so afterwards, all at once.
func (d *Device) send(q *QP, limit int) {
	if d.inHandlers.Load() {
		q.mu.Lock()
		q.requeue(d.now())
		q.mu.Unlock()
		d.kick() // the handlers may just have ended
		return
	}
	t := d.getSender()
	for again := true; again; {
		n := d.sched.claim(&q.share)
		t.begin()
		made, _ := d.fill(t, q, d.now(), n, limit)
		if made == 0 {
			break // it waits for its turn, or for an answer, or somebody else is sending for it
		}
		limit -= made
		if !d.transmit(t) {
			return
		}
		now := d.now()
		q.mu.Lock()
		q.sending = false
		if again = limit > 0 && !q.closed && q.c.wantsToTransmit(now); !again {
			q.requeue(now)
		}
		q.mu.Unlock()
	}
	d.putSender(t)
	d.kick()
}

// round sends one batch of packets of the queue pairs that have the turn. It returns how many
// packets those were, and the sender for the next batch.
func (d *Device) round(t *sender) (*sender, int) {
	if !d.collect(t, false) {
		return t, 0
	}
	made := t.batch.Len()
	if !d.transmit(t) {
		return d.getSender(), made
	}
	d.unclaim(t)
	return t, made
}

// collect fills the batch of t with packets of the queue pairs that have the turn, and reports
// whether there were any. mine is as in [scheduler.next].
func (d *Device) collect(t *sender, mine bool) bool {
	t.begin()
	now := d.now()
	for full := false; !full; {
		sh, n := d.sched.next(mine)
		if sh == nil {
			break
		}
		_, full = d.fill(t, sh.qp, now, n, math.MaxInt)
	}
	return len(t.claimed) > 0
}

// fill puts packets of q into the batch of t: up to n packets that count for the path, and some
// limit in all. It returns how many, and whether the batch is full.
//
// A queue pair whose packets are in somebody's batch is marked as sending until the batch is out,
// so that its packets leave in order. A goroutine that finds the mark has nothing to do: the
// goroutine that set it looks for more when it takes it off.
func (d *Device) fill(t *sender, q *QP, now time.Duration, n, limit int) (made int, full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sending || q.closed || q.path == nil {
		d.sched.settle(now, &q.share, q.c, n)
		return 0, false
	}
	t.to(q.path)
	t.apart(q)
	q.c.quota = n
	for made < limit && (!q.c.recovering || made < lossyBurst) {
		if t.batch.Bytes() >= burstBytes && q.c.beginsLong() {
			full = made == 0 // others have filled it
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
		made++
	}
	q.c.quota = 0
	q.arm(now)
	if len(q.c.done) > 0 { // it failed: its memory is gone
		send, recv := q.deliver()
		go q.tell(send, recv)
	}
	switch {
	case made > 0:
		q.sending = true
		t.claimed = append(t.claimed, q)
		d.sched.settle(now, &q.share, q.c, n)
	case full:
		d.sched.giveBack(&q.share, n, q.c.urgent(now))
	default:
		d.sched.settle(now, &q.share, q.c, n)
		q.requeue(now)
	}
	return made, full
}

// transmit sends the batch of t. If the socket is full another goroutine takes t over, and false is
// returned: neither a goroutine that posts nor the receiving one waits for room.
func (d *Device) transmit(t *sender) bool {
	all, err := d.sock.TrySend(t.batch, t)
	if err != nil {
		d.stats.sendErrors.Add(1) // the packets are lost; retries and the retry count decide
		return true
	}
	if all || !d.sched.stall() {
		return true
	}
	go d.drain(t)
	return false
}

// drain waits until the batch of t is out, and then sends for all until there is nothing to send.
func (d *Device) drain(t *sender) {
	for more := true; more; {
		err := d.sock.Send(t.batch, t)
		if err != nil {
			d.stats.sendErrors.Add(1)
		}
		d.unclaim(t)
		more = err == nil && d.collect(t, true)
	}
	d.putSender(t)
	d.sched.resume()
	d.kick()
	d.sched.drains.Done()
}

// unclaim takes the mark off the queue pairs whose packets have been sent, and requeues them if
// they want to send more.
func (d *Device) unclaim(t *sender) {
	now := d.now()
	for _, q := range t.claimed {
		q.mu.Lock()
		q.sending = false
		q.requeue(now)
		q.mu.Unlock()
	}
}

// requeue gives q the place in the scheduler that its pending packets ask for. The caller holds mu.
func (q *QP) requeue(now time.Duration) {
	switch {
	case q.sending || q.closed:
	case q.c.urgent(now): // the sooner the peer knows of a gap, the less it sends for nothing
		q.dev.sched.hurry(&q.share, q.c.answer == answerNak)
	case q.c.wantsToTransmit(now):
		q.dev.sched.wait(&q.share, q.c.short())
	}
}

// settle tells the path how q's packets fared. The caller holds mu.
func (q *QP) settle(now time.Duration) { q.dev.sched.settle(now, &q.share, q.c, 0) }

// kick wakes the device's goroutine if it is somebody's turn to send.
func (d *Device) kick() {
	if d.asleep.Load() && d.sched.hasWork() && d.asleep.Swap(false) {
		_ = d.sock.SetReadDeadline(time.Unix(0, 1)) // the error is that it is closed
	}
}
