package rdma

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A modelPeer is a peer as Linux rdma_rxe is one, for the simulation. It has nothing in common with
// [qpc], so that an error there does not meet the same error here:
//
//   - it builds all packets of a message when it is posted, and keeps the bytes until they are
//     acknowledged
//   - it asks for an acknowledgement with the last packet of a message, and after 64 without
//   - it acknowledges each packet that asks for it, with one packet, at once, and no other
//   - for a gap it sends one NAK and is silent until the packet comes; after an RNR NAK it sends
//     another one for the packets that were behind
//   - it keeps 128 packets unacknowledged, and sends all of them again after a NAK or a timeout,
//     as often as it takes
type modelPeer struct {
	mem             []byte
	target, forRecv *MR // for their keys and addresses
	qpn, remote     wire.QPN
	mtu             int
	minRNR          uint8
	done            []Completion

	// The sending half.
	queue   []modelPacket // not acknowledged
	sent    int           // of queue, to be counted from the start after going back
	highest int           // of queue, that were sent at some time
	nextPSN wire.PSN      // of the next packet to build
	sinceA  int           // packets without the ack bit
	timer   time.Duration // when to go back; 0: not running
	wait    time.Duration // after an RNR NAK

	// The receiving half.
	epsn    wire.PSN
	msn     uint32
	nakSent bool
	recvs   []RecvWR
	open    roce.Opcode // of the first packet of the message that has begun
	inMsg   bool
	va      uint64 // of the next bytes of the WRITE
	rest    uint32
	filled  int // bytes of the SEND, or of the WRITE
	replies [][]byte
}

type modelPacket struct {
	psn  wire.PSN
	data []byte
	wr   *SendWR // of the message whose last packet it is, else nil
}

func newModelPeer(mem []byte, target, receive *MR) *modelPeer {
	return &modelPeer{mem: mem, target: target, forRecv: receive}
}

const (
	modelWindow  = 128
	modelSends   = 32
	modelTimeout = 20 * time.Millisecond
)

func (m *modelPeer) connect(_ time.Duration, r RTR, s RTS, qpn wire.QPN) {
	m.qpn, m.remote, m.mtu, m.minRNR = qpn, r.RemoteQPN, r.PathMTU.Bytes(), r.MinRNRTimer
	m.epsn, m.nextPSN = r.RecvPSN, s.SendPSN
}

func (m *modelPeer) expectedPSN() wire.PSN { return m.epsn }
func (m *modelPeer) messages() uint32      { return m.msn }
func (m *modelPeer) busy() bool            { return len(m.queue) > 0 }

func (m *modelPeer) completions() []Completion {
	c := m.done
	m.done = nil
	return c
}

func (m *modelPeer) postSend(wr *SendWR) error {
	pending := 0
	for i := range m.queue {
		if m.queue[i].wr != nil {
			pending++
		}
	}
	if pending >= modelSends {
		return ErrQueueFull
	}
	var all []byte
	for _, s := range wr.Local {
		if s.Len > 0 {
			b, ok := s.MR.(*MR).slice(s.Addr, uint64(s.Len))
			if !ok {
				return errors.New("no such memory")
			}
			all = append(all, b...)
		}
	}
	kept := *wr
	total := len(all)
	for first := true; first || len(all) > 0; first = false {
		n := min(len(all), m.mtu)
		last := n == len(all)
		// Opcodes as numbers, from the table of IBTA 9.2: SEND is 0 to 5, WRITE is 6 to 11.
		var op byte
		switch {
		case first && last:
			op = 4
		case last:
			op = 2
		case !first:
			op = 1
		}
		if last && (wr.Op == OpSendImm || wr.Op == OpWriteImm) {
			op++
		}
		write := wr.Op == OpWrite || wr.Op == OpWriteImm
		if write {
			op += 6
		}
		pad := (4 - n%4) % 4
		flags := byte(pad << 4)
		if last && wr.Solicited {
			flags |= 0x80
		}
		psn := uint32(m.nextPSN)
		if last {
			psn |= 1 << 31
		}
		b := []byte{op, flags, 0xff, 0xff}
		b = binary.BigEndian.AppendUint32(b, uint32(m.remote))
		b = binary.BigEndian.AppendUint32(b, psn)
		if write && first {
			b = binary.BigEndian.AppendUint64(b, wr.Remote)
			b = binary.BigEndian.AppendUint32(b, uint32(wr.RKey))
			b = binary.BigEndian.AppendUint32(b, uint32(total))
		}
		if op == 3 || op == 5 || op == 9 || op == 11 {
			b = binary.BigEndian.AppendUint32(b, wr.Imm)
		}
		b = append(b, all[:n]...)
		b = append(b, make([]byte, pad)...)
		p := modelPacket{psn: m.nextPSN, data: b}
		if last {
			p.wr = &kept
		}
		m.queue = append(m.queue, p)
		m.nextPSN = (m.nextPSN + 1) % (1 << 24)
		all = all[n:]
	}
	return nil
}

func (m *modelPeer) postRecv(wr *RecvWR) error {
	m.recvs = append(m.recvs, *wr)
	return nil
}

func (m *modelPeer) wantsToTransmit(now time.Duration) bool {
	return len(m.replies) > 0 || m.wait <= now && m.sent < min(len(m.queue), modelWindow)
}

func (m *modelPeer) transmit(now time.Duration, b []byte) int {
	if len(m.replies) > 0 {
		n := copy(b, m.replies[0])
		m.replies = m.replies[1:]
		return n
	}
	if !m.wantsToTransmit(now) {
		return 0
	}
	m.wait = 0
	p := &m.queue[m.sent]
	n := copy(b, p.data)
	if m.sinceA++; m.sinceA > 64 {
		b[8] |= 0x80
	}
	if b[8]&0x80 != 0 {
		m.sinceA = 0
	}
	m.sent++
	m.highest = max(m.highest, m.sent)
	m.timer = now + modelTimeout
	return n
}

func (m *modelPeer) deadline() time.Duration {
	if m.wait > 0 {
		return m.wait
	}
	return m.timer
}

func (m *modelPeer) advance(now time.Duration) {
	if m.wait > 0 {
		if now >= m.wait {
			m.wait = 0
		}
		return
	}
	if m.timer > 0 && now >= m.timer {
		m.sent, m.timer = 0, 0
	}
}

func (m *modelPeer) receive(now time.Duration, p *roce.Packet) {
	if p.Opcode == roce.Acknowledge {
		m.receiveReply(now, p)
		return
	}
	ahead := (uint32(p.PSN) - uint32(m.epsn)) % (1 << 24)
	switch {
	case ahead >= 1<<23: // seen before
		m.reply(roce.AckUnlimited, m.epsn-1)
	case ahead > 0:
		if !m.nakSent {
			m.nakSent = true
			m.reply(roce.NakSequence, m.epsn)
		}
	default:
		m.nakSent = false
		m.carryOut(p)
	}
}

func (m *modelPeer) reply(s roce.Syndrome, psn wire.PSN) {
	b := []byte{0x11, 0, 0xff, 0xff}
	b = binary.BigEndian.AppendUint32(b, uint32(m.remote))
	b = binary.BigEndian.AppendUint32(b, uint32(psn)%(1<<24))
	b = binary.BigEndian.AppendUint32(b, uint32(s)<<24|m.msn)
	m.replies = append(m.replies, b)
}

// carryOut executes a packet. It panics at a packet that a queue pair must never send.
func (m *modelPeer) carryOut(p *roce.Packet) {
	op := byte(p.Opcode)
	if op > 11 {
		panic("modelPeer: " + p.String())
	}
	kind := op % 6 // 0 first, 1 middle, 2 last, 3 last with immediate, 4 only, 5 only with immediate
	begins, ends := kind == 0 || kind > 3, kind > 1
	if begins == m.inMsg || !begins && op/6 != byte(m.open)/6 {
		panic("modelPeer: out of turn: " + p.String())
	}
	if n := len(p.Payload); n > m.mtu || !ends && n != m.mtu || !begins && n == 0 {
		panic("modelPeer: length: " + p.String())
	}
	write := op >= 6
	takes := !write || kind == 3 || kind == 5
	if takes && len(m.recvs) == 0 {
		m.reply(0x20|roce.Syndrome(m.minRNR), p.PSN)
		return
	}
	if begins {
		m.inMsg, m.open, m.filled = true, p.Opcode, 0
		if write {
			m.va, m.rest = p.RETH.VA, p.RETH.Length
			if m.rest > 0 && p.RETH.RKey != m.target.rkey {
				panic("modelPeer: key: " + p.String())
			}
		}
	}
	if write {
		n := uint32(len(p.Payload))
		if n > m.rest || ends && n != m.rest {
			panic("modelPeer: DMA length: " + p.String())
		}
		copy(m.mem[targetAt:][:simTarget][m.at(n):], p.Payload)
		m.va += uint64(n)
		m.rest -= n
	} else {
		for _, c := range p.Payload {
			m.place(c)
		}
	}
	if write {
		m.filled += len(p.Payload)
	}
	m.epsn = (m.epsn + 1) % (1 << 24)
	if ends {
		m.inMsg = false
		m.msn = (m.msn + 1) % (1 << 24)
		if takes {
			c := Completion{ID: m.recvs[0].ID, Op: Received, Len: uint32(m.filled), Solicited: p.Solicited}
			if write {
				c.Op = ReceivedWriteImm
			}
			if kind == 3 || kind == 5 {
				c.Imm, c.HasImm = p.Imm, true
			}
			m.recvs = slices.Delete(m.recvs, 0, 1)
			m.done = append(m.done, c)
		}
	}
	if p.AckReq {
		m.reply(roce.AckUnlimited, p.PSN)
	}
}

// at returns where n bytes at va are in the target.
func (m *modelPeer) at(n uint32) uint64 {
	if n == 0 {
		return 0
	}
	return m.va - m.target.addr
}

// place puts one byte of a SEND.
func (m *modelPeer) place(c byte) {
	at := uint32(m.filled)
	for _, s := range m.recvs[0].Local {
		if at < s.Len {
			m.mem[receiveAt+int(s.Addr-m.forRecv.addr)+int(at)] = c
			m.filled++
			return
		}
		at -= s.Len
	}
	panic("modelPeer: no room in a receive")
}

// receiveReply takes an acknowledgement.
func (m *modelPeer) receiveReply(now time.Duration, p *roce.Packet) {
	if len(m.queue) == 0 {
		return
	}
	n := int((uint32(p.PSN) - uint32(m.queue[0].psn)) % (1 << 24))
	if n >= m.highest {
		return
	}
	kind := p.AETH.Syndrome >> 5
	if kind == 0 {
		n++
	}
	for i := range n {
		if wr := m.queue[i].wr; wr != nil && wr.Signaled {
			c := Completion{ID: wr.ID, Op: CompletedSend}
			if wr.Op == OpWrite || wr.Op == OpWriteImm {
				c.Op = CompletedWrite
			}
			m.done = append(m.done, c)
		}
	}
	m.queue = m.queue[n:]
	m.sent, m.highest = max(0, m.sent-n), m.highest-n
	switch {
	case kind == 0:
		m.timer = now + modelTimeout
		if n > 0 && m.wait > 0 {
			m.wait = 0
		}
	case kind == 1:
		m.sent, m.wait = 0, now+time.Duration(roce.RNRTimer(uint8(p.AETH.Syndrome)&31))*time.Microsecond
	case p.AETH.Syndrome == roce.NakSequence:
		m.sent = 0
	default:
		panic("modelPeer: " + p.String())
	}
	if len(m.queue) == 0 {
		m.timer, m.wait = 0, 0
	}
}
