package rdma

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// An endpoint is one side of the simulation: a queue pair, or a [modelPeer].
type endpoint interface {
	connect(now time.Duration, r RTR, s RTS, qpn wire.QPN)
	postSend(*SendWR) error
	postRecv(*RecvWR) error
	receive(time.Duration, *roce.Packet)
	transmit(time.Duration, []byte) int
	wantsToTransmit(time.Duration) bool
	deadline() time.Duration
	advance(time.Duration)

	expectedPSN() wire.PSN // of the next packet to carry out
	messages() uint32      // carried out, modulo 1<<24
	completions() []Completion
	busy() bool // work of the send queue is not complete
}

// qpcEnd makes an endpoint of a queue pair.
type qpcEnd struct{ *qpc }

func (e qpcEnd) connect(_ time.Duration, r RTR, s RTS, qpn wire.QPN) {
	e.qpn = qpn
	for _, err := range []error{e.init(LocalWrite | RemoteWrite), e.readyToReceive(r), e.readyToSend(s)} {
		if err != nil {
			panic(err)
		}
	}
}

func (e qpcEnd) expectedPSN() wire.PSN { return e.expected }
func (e qpcEnd) messages() uint32      { return e.msn }
func (e qpcEnd) busy() bool            { return e.head != e.tail }

func (e qpcEnd) completions() []Completion {
	c := e.qpc.done
	e.qpc.done = e.qpc.done[:0]
	return c
}

const (
	simGuard  = 256
	simTarget = 512 << 10 // bytes that the peer writes to
	simSlot   = 40 << 10  // bytes of a receive
	simSlots  = 8
	simMem    = simGuard + simTarget + simGuard + simSlots*simSlot + simGuard

	targetAt  = simGuard
	receiveAt = simGuard + simTarget + simGuard
)

// simSource is the memory that all sends read. Nobody writes to it.
var simSource = randomBytes(768<<10, 7)

func randomBytes(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, seed))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// A simSide is one end of the connection, its posted work, and the expected results.
type simSide struct {
	s    *sim
	i    int
	peer *simSide
	end  endpoint
	q    *qpc // if end is one, else nil
	qpn  wire.QPN
	psn  wire.PSN // of the first packet
	flow roce.Flow
	life int // number of resets

	source, target, receive *MR

	// mem has guard, target, guard, receive, guard; model is its expected content.
	mem, model []byte

	toPost    int
	posted    wire.PSN // of the next message
	ids       uint64
	msgs      []simMsg
	completed int // of msgs
	executed  int // of msgs, by the peer
	packet    int // of the message that comes next, packets that the peer has carried out
	errors    int // completions that were neither good nor flushed
	flushed   bool

	recvs   []simRecv    // posted, not complete
	slots   []int        // of receive that are free
	started int          // of recvs, that the packets of this step have filled
	written [][2]int     // parts of mem, by the packets of this step
	wants   []Completion // of receives, that the last packet has to give

	pumping     bool
	timerAt     time.Duration
	lastArrival time.Duration
	losing      int // packets of its that get lost, after the last one did
	faults      map[uint32]int
	ackBits     [4 * maxWindow]bool // by PSN: whether it was asked for an acknowledgement
	owed        int                 // packets sent since an answer is due; -1: none is
}

// A simMsg is a message that was posted.
type simMsg struct {
	wr      SendWR
	first   wire.PSN
	packets int
	length  int
	at      [2]int // of its pieces in simSource
}

type simRecv struct {
	wr   RecvWR
	slot int
	at   [2]int // of its pieces in mem
}

func (m *simMsg) takesRecv() bool { return m.wr.Op != OpWrite }

func newSimSide(s *sim, i int) *simSide {
	d := &simSide{s: s, i: i, mem: make([]byte, simMem), toPost: s.cfg.messages, owed: -1}
	for i := range d.mem {
		d.mem[i] = 0xa5
	}
	d.model = slices.Clone(d.mem)
	d.flow = roce.NewFlow(simAddrs[i], simAddrs[1-i])
	pd := newPD(nil)
	d.source = s.region(pd, simSource, 0)
	d.target = s.region(pd, d.mem[targetAt:][:simTarget:simTarget], LocalWrite|RemoteWrite)
	d.receive = s.region(pd, d.mem[receiveAt:][:simSlots*simSlot:simSlots*simSlot], LocalWrite)
	if s.cfg.model && i == 1 {
		d.end = newModelPeer(d.mem, d.target, d.receive)
	} else {
		d.q = newQPC(0, pd, s.cfg.keepers(), s.cfg.maxSend, simSlots)
		d.end = qpcEnd{d.q}
	}
	d.forget()
	return d
}

// region registers memory with a key and an address that come from the seed.
func (s *sim) region(pd *PD, mem []byte, access Access) *MR {
	m, err := pd.RegisterMR(mem, access)
	if err != nil {
		panic(err)
	}
	delete(pd.regions, m.rkey)
	m.rkey, m.addr = wire.RKey(s.r.Uint32()), s.r.Uint64()>>1
	if s.r.IntN(8) == 0 {
		m.addr = -uint64(len(mem)) // up to the last address that there is
	}
	pd.regions[m.rkey] = m
	return m
}

// forget begins anew, as after a reset.
func (d *simSide) forget() {
	d.msgs, d.completed, d.executed, d.packet, d.errors, d.flushed = nil, 0, 0, 0, 0, false
	d.recvs, d.wants, d.owed, d.life = nil, d.wants[:0], -1, d.life+1
	d.faults = make(map[uint32]int)
	d.slots = d.slots[:0]
	for i := range simSlots {
		d.slots = append(d.slots, i)
	}
}

func (d *simSide) reset() {
	d.q.reset()
	d.forget()
}

func (d *simSide) String() string {
	if d.q != nil {
		q := d.q
		return fmt.Sprintf("%v una %v next %v max %v posted %v, window %+v, expected %v, %d of %d messages complete, %d executed, %d receives, %+v",
			q.state, q.una, q.next, q.max, q.posted, q.window, q.expected, d.completed, len(d.msgs), d.executed, len(d.recvs), q.stats)
	}
	m := d.end.(*modelPeer)
	return fmt.Sprintf("model peer: %d packets in the queue, %d sent, next %v, timer %v, wait %v, expected %v; %d of %d messages complete, %d executed, %d receives",
		len(m.queue), m.sent, m.nextPSN, m.timer, m.wait, m.epsn, d.completed, len(d.msgs), d.executed, len(d.recvs))
}

// post posts a few messages and sees that it is called again.
func (d *simSide) post() {
	s := d.s
	wait := 2*s.cfg.delay + s.cfg.idle
	for range 1 + s.r.IntN(8) {
		if d.toPost == 0 {
			return
		}
		m := d.randomMsg()
		switch err := d.end.postSend(&m.wr); {
		case err == nil:
			d.msgs = append(d.msgs, m)
			d.posted = d.posted.Add(m.packets)
			d.toPost--
			continue
		case err == ErrQueueFull:
			wait += 300 * time.Microsecond
		case s.broken && d.source.dead.Load() && m.length > 0:
			d.toPost--
		default:
			s.failf("side %d: postSend(%+v) = %v", d.i, m.wr, err)
		}
		break
	}
	if s.cfg.idle > 0 {
		wait += time.Duration(s.r.Int64N(int64(s.cfg.idle)))
	}
	s.at(s.now+wait, event{kind: eventPost, side: d})
}

func (d *simSide) randomMsg() simMsg {
	s, r, mtu := d.s, d.s.r, d.s.cfg.mtu.Bytes()
	d.ids++
	m := simMsg{wr: SendWR{ID: d.ids, Op: Op(1 + r.IntN(4)), Signaled: s.cfg.allSignals || r.IntN(3) == 0, Solicited: r.IntN(2) == 0, Imm: r.Uint32()}}
	switch {
	case s.cfg.onlyWrites:
		m.wr.Op = OpWrite
	case s.cfg.onlySends:
		m.wr.Op = OpSend
	case r.IntN(2) == 0:
		m.wr.Op = OpWrite
	}
	switch n := r.IntN(20); {
	case n == 0:
	case n < 8:
		m.length = 1 + r.IntN(64)
	case n < 14:
		m.length = mtu + r.IntN(9) - 4
	case n < 18 || !s.cfg.bigMessages:
		m.length = mtu*r.IntN(12) + r.IntN(3)
	default:
		m.length = r.IntN(400 << 10)
	}
	if m.wr.Op == OpSend || m.wr.Op == OpSendImm {
		m.length = min(m.length, simSlot)
	}
	m.packets = max(1, (m.length+mtu-1)/mtu)
	m.first = d.posted
	lens := [2]int{m.length, 0}
	if r.IntN(2) == 0 && m.length > 0 {
		lens[0] = r.IntN(m.length + 1)
		lens[1] = m.length - lens[0]
	}
	for i, n := range lens {
		m.at[i] = r.IntN(len(simSource) - n + 1)
		if n > 0 {
			m.wr.Local[i] = SGE{MR: d.source, Addr: d.source.addr + uint64(m.at[i]), Len: uint32(n)}
		}
	}
	if m.wr.Op.IsWrite() {
		m.wr.RKey, m.wr.Remote = d.peer.target.rkey, d.peer.target.addr+uint64(r.IntN(simTarget-m.length+1))
		if m.length == 0 { // which needs no key
			m.wr.RKey, m.wr.Remote = 0xbad, r.Uint64()
		}
	}
	return m
}

// content appends the bytes of a message from offset on.
func (m *simMsg) content(dst []byte, offset, n int) []byte {
	for i, at := range m.at {
		size := int(m.wr.Local[i].Len)
		from, to := min(offset, size), min(offset+n, size)
		dst = append(dst, simSource[at+from:at+to]...)
		offset = max(0, offset-size)
		n -= to - from
	}
	return dst
}

func (d *simSide) postRecv() {
	r := d.s.r
	k := r.IntN(len(d.slots))
	slot := d.slots[k]
	d.slots = slices.Delete(d.slots, k, k+1)
	d.ids++
	v := simRecv{wr: RecvWR{ID: d.ids}, slot: slot}
	size := simSlot
	if d.s.cfg.shortReceives && r.IntN(10) == 0 {
		size = r.IntN(64)
		d.s.broken = true
	}
	lens := [2]int{size, 0}
	if r.IntN(2) == 0 {
		lens[0] = r.IntN(size + 1)
		lens[1] = size - lens[0]
	}
	// The pieces lie the other way round than they are filled.
	v.at = [2]int{receiveAt + slot*simSlot + lens[1], receiveAt + slot*simSlot}
	for i, n := range lens {
		v.wr.Local[i] = SGE{MR: d.receive, Addr: d.receive.addr + uint64(v.at[i]-receiveAt), Len: uint32(n)}
	}
	switch err := d.end.postRecv(&v.wr); {
	case err == nil:
		d.recvs = append(d.recvs, v)
	case d.s.broken && d.receive.dead.Load():
	default:
		d.s.failf("side %d: postRecv = %v", d.i, err)
	}
}

// arrive takes a datagram from the network, as a device does.
func (d *simSide) arrive(b []byte, damaged bool) {
	s := d.s
	p := &s.packet
	if err := p.Parse(b); err != nil {
		if !damaged {
			s.failf("side %d: Parse(%x) = %v", d.i, b, err)
		}
		return
	}
	if _, v := d.peer.flow.Verify(0, b); v != roce.Exact {
		if !damaged {
			s.failf("side %d: the ICRC of %v is %v", d.i, p, v)
		}
		return
	}
	if p.DestQPN != d.qpn { // of before a reset
		return
	}
	if s.trace {
		s.t.Logf("%12v side %d gets %v, expects %v", s.now-simStart, d.i, p, d.end.expectedPSN())
	}
	before, dead := d.end.expectedPSN(), d.q != nil && d.q.state == StateError
	answer := mustAnswer(d.q, p)
	d.end.receive(s.now, p)
	after := d.end.expectedPSN()
	if after != before {
		if dead || !p.Opcode.IsRequest() || p.PSN != before {
			s.failf("side %d: expected went from %v to %v with %v", d.i, before, after, p)
		}
		d.ran(before, after)
	} else if p.Opcode.HasRETH() && p.RETH.VA-d.target.addr < simTarget {
		// Not carried out, so it wrote nothing.
		at := targetAt + int(p.RETH.VA-d.target.addr)
		d.compare(at, at+len(p.Payload))
	}
	if answer && d.q.state == StateRTS && d.q.answer == answerNone {
		s.failf("side %d: nothing is to be answered to %v", d.i, p)
	}
	d.collect()
	at := s.r.IntN(simMem - 512)
	d.compare(at, at+512)
}

// mustAnswer reports whether q, which is about to take p, has to answer it.
func mustAnswer(q *qpc, p *roce.Packet) bool {
	return q != nil && q.state == StateRTS && p.AckReq && (p.PSN.Sub(q.expected) <= 0 || !q.naked) // one NAK is enough
}

// compare compares bytes of memory with the model.
func (d *simSide) compare(from, to int) {
	if !bytes.Equal(d.mem[from:to], d.model[from:to]) {
		for i := from; i < to; i++ {
			if d.mem[i] != d.model[i] {
				d.s.failf("side %d: byte %d of memory is %#x, want %#x", d.i, i, d.mem[i], d.model[i])
			}
		}
	}
}

// ran takes that the peer's packets from before to after were carried out: one, or with it those that
// had come before their turn and were kept.
func (d *simSide) ran(before, after wire.PSN) {
	d.started = 0
	for psn := before; psn != after; psn = psn.Add(1) {
		if after.Sub(psn) < 0 || after.Sub(psn) > maxWindow {
			d.s.failf("side %d expected %v and expects %v", d.i, before, after)
		}
		d.ranOne(psn)
	}
	for _, w := range d.written {
		d.compare(w[0], w[1])
	}
	d.written = d.written[:0]
	if got := d.end.messages(); got != uint32(d.peer.executed)&0xffffff {
		d.s.failf("side %d: MSN %d after %d messages", d.i, got, d.peer.executed)
	}
}

func (d *simSide) ranOne(psn wire.PSN) {
	s, from := d.s, d.peer
	if from.executed >= len(from.msgs) {
		s.failf("side %d carried out %v, but nothing is posted", d.i, psn)
	}
	m := &from.msgs[from.executed]
	if psn != m.first.Add(from.packet) {
		s.failf("side %d carried out %v, but packet %d of message %d from %v is next", d.i, psn, from.packet, from.executed, m.first)
	}
	mtu := s.cfg.mtu.Bytes()
	offset := from.packet * mtu
	n := min(m.length-offset, mtu)
	var scratch [4096]byte
	b := m.content(scratch[:0], offset, n)
	if m.wr.Op.IsWrite() {
		at := targetAt
		if n > 0 {
			at += int(m.wr.Remote-d.target.addr) + offset
		}
		copy(d.model[at:], b)
		d.written = append(d.written, [2]int{at, at + n})
	} else {
		if len(d.recvs) <= d.started {
			s.failf("side %d carried out %v without a receive", d.i, psn)
		}
		v := &d.recvs[d.started]
		for i := range v.at {
			size := int(v.wr.Local[i].Len)
			k := min(max(size-offset, 0), len(b))
			at := v.at[i] + min(offset, size)
			copy(d.model[at:], b[:k])
			d.written = append(d.written, [2]int{at, at + k})
			b, offset = b[k:], max(offset-size, 0)
		}
		if len(b) > 0 {
			s.failf("side %d carried out %v, which has more than the receive has room for", d.i, psn)
		}
	}
	from.packet++
	if from.packet < m.packets {
		return
	}
	from.packet = 0
	from.executed++
	if m.takesRecv() {
		if len(d.recvs) <= d.started {
			s.failf("side %d carried out %v without a receive", d.i, psn)
		}
		want := Completion{ID: d.recvs[d.started].wr.ID, Op: Received, Len: uint32(m.length), Solicited: m.wr.Solicited}
		if m.wr.Op == OpWriteImm {
			want.Op = ReceivedWriteImm
		}
		if m.wr.Op.HasImm() {
			want.HasImm, want.Imm = true, m.wr.Imm
		}
		d.wants = append(d.wants, want)
		d.started++
	}
}

// collect takes the completions.
func (d *simSide) collect() {
	for _, c := range d.end.completions() {
		if d.s.trace {
			d.s.t.Logf("%12v side %d completes %+v", d.s.now-simStart, d.i, c)
		}
		if c.Op.IsRecv() {
			d.recvDone(c)
		} else {
			d.sendDone(c)
		}
	}
	if len(d.wants) > 0 {
		d.s.failf("side %d: no completion %+v", d.i, d.wants[0])
	}
}

func (d *simSide) recvDone(c Completion) {
	s := d.s
	if len(d.recvs) == 0 || d.recvs[0].wr.ID != c.ID {
		s.failf("side %d: %+v is not of the oldest receive", d.i, c)
	}
	slot := d.recvs[0].slot
	d.recvs = slices.Delete(d.recvs, 0, 1)
	d.slots = append(d.slots, slot)
	if c.Status == StatusOK {
		if len(d.wants) == 0 || c != d.wants[0] {
			s.failf("side %d: receive %+v, want the first of %+v", d.i, c, d.wants)
		}
		d.wants = slices.Delete(d.wants, 0, 1)
	} else if d.end.(qpcEnd).state != StateError || !s.broken {
		s.failf("side %d: receive %+v", d.i, c)
	}
	if d.q == nil || d.q.state == StateRTS {
		s.postRecvLater(d)
	}
}

func (d *simSide) sendDone(c Completion) {
	s := d.s
	var m *simMsg
	for {
		if d.completed == len(d.msgs) {
			s.failf("side %d: %+v is of nothing that was posted, or not in order", d.i, c)
		}
		m = &d.msgs[d.completed]
		d.completed++
		if m.wr.ID == c.ID {
			break
		}
		if m.wr.Signaled || d.flushed || d.completed > d.executed {
			s.failf("side %d: %+v, but message %d has not completed", d.i, c, m.wr.ID)
		}
	}
	op := CompletedSend
	if m.wr.Op.IsWrite() {
		op = CompletedWrite
	}
	if want := (Completion{ID: c.ID, Op: op, Status: c.Status}); c != want {
		s.failf("side %d: send %+v, want %+v", d.i, c, want)
	}
	if c.Status == StatusOK {
		if d.flushed || !m.wr.Signaled || d.completed > d.executed {
			s.failf("side %d: send %+v; signaled %v, executed %v, after an error %v", d.i, c, m.wr.Signaled, d.completed <= d.executed, d.flushed)
		}
		return
	}
	d.flushed = true
	if c.Status != StatusFlushed {
		d.errors++
	}
	if !s.broken || d.q.state != StateError || d.errors > 1 {
		s.failf("side %d: send %+v, %d errors", d.i, c, d.errors)
	}
}
