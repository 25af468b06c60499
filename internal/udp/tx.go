package udp

import (
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// A Sealer finishes datagrams just before they go out, such as with a checksum.
type Sealer interface {
	// Seal is called by [Socket.Send] for every datagram: tag is the argument of To, id the IPv4
	// identification that the datagram will carry (0 and without meaning for IPv6). It may write to
	// the datagram, and must not keep it.
	//
	// It is called again, with another id, for a datagram of a super-packet that the kernel has
	// refused. Bytes that an earlier call has written must not matter.
	Seal(tag int, id uint16, datagram []byte)
}

// A TxBatch collects datagrams to be sent together. They lie in one contiguous buffer, in the order
// of their sending.
//
//	b.Reset()
//	b.To(peer, 0)
//	for room := b.Next(n); room != nil; room = b.Next(n) {
//		b.Commit(fill(room))
//	}
//	err := s.Send(b, sealer)
//
// Datagrams that follow each other to one destination form messages. A message has datagrams of one
// size; only its last may be shorter; it has at most [MaxSegments] of them and [MaxPayload4] or
// [MaxPayload6] bytes. Commit extends the message if that holds then, and else begins a new one. The
// kernel segments messages if it can; otherwise each datagram is sent by itself.
//
// A TxBatch is for one goroutine at a time.
type TxBatch struct {
	buf       []byte
	used      int // bytes of buf that are committed
	datagrams int
	messages  []txMessage
	dests     []txDest
	joinable  bool // the next datagram may extend the last message
	limit     int  // bytes that a message to the present destination may have

	// The following fields belong to Send and TrySend.
	at       txCursor // where they go on
	headers  [txChunk]mmsghdr
	iovecs   [txChunk]unix.Iovec
	controls [txChunk]control
	units    [txChunk]txUnit

	// One system call: its messages, and its result.
	pending []mmsghdr
	sent    int
	errno   unix.Errno

	// Made once, since a function made for a call is an allocation. try does not wait for room.
	try  func(fd uintptr)
	wait func(fd uintptr) bool
}

// A txMessage is some datagrams of one size, the last of which may be shorter.
type txMessage struct {
	off, bytes int // in buf
	segment    int // bytes of a datagram
	count      int // of datagrams
	dest       int // in dests
}

// datagram is the k-th datagram of m in buf.
func (m *txMessage) datagram(buf []byte, k int) []byte {
	start := m.off + k*m.segment
	end := min(start+m.segment, m.off+m.bytes)
	return buf[start:end:end]
}

// A txDest is a destination.
type txDest struct {
	addr netip.AddrPort
	tag  int
	sa   sockaddr
	len  uint32 // of sa; 0 if nothing can be sent to it
}

// A txUnit is one of the messages of a system call: count datagrams of a txMessage.
type txUnit struct {
	message, first, count int
	bytes                 int
}

// NewTxBatch makes a batch with a buffer of size bytes, [DefaultTxBytes] if size is not positive.
func NewTxBatch(size int) *TxBatch {
	if size <= 0 {
		size = DefaultTxBytes
	}
	b := &TxBatch{buf: make([]byte, size)}
	b.try = func(fd uintptr) { b.sent, b.errno = sendmmsg(fd, b.pending) }
	b.wait = func(fd uintptr) bool {
		b.sent, b.errno = sendmmsg(fd, b.pending)
		return b.errno != unix.EAGAIN
	}
	return b
}

// Reset empties the batch. The destination has to be set again.
func (b *TxBatch) Reset() {
	b.used, b.datagrams = 0, 0
	b.messages = b.messages[:0]
	b.dests = b.dests[:0]
	b.joinable = false
	b.at = txCursor{}
}

// To sets the destination of the datagrams that follow, and the tag that the [Sealer] is given for
// them. They begin a new message, unless both are unchanged. The address must be of the socket's
// family; a zone counts for link-local addresses only.
func (b *TxBatch) To(dst netip.AddrPort, tag int) {
	if n := len(b.dests); n > 0 {
		last := &b.dests[n-1]
		if last.addr == dst && last.tag == tag {
			return
		}
		if len(b.messages) == 0 || b.messages[len(b.messages)-1].dest != n-1 {
			b.dests = b.dests[:n-1] // nothing was sent to it
		}
	}
	b.joinable = false
	b.limit = MaxPayload6
	if dst.Addr().Is4() || dst.Addr().Is4In6() {
		b.limit = MaxPayload4
	}
	b.dests = append(b.dests, txDest{addr: dst, tag: tag})
}

// Break has the next datagram begin a new message, though it may go where the last one goes.
func (b *TxBatch) Break() { b.joinable = false }

// Next returns room for a datagram of up to n bytes, nil if the batch is full and has to be sent
// first. It is nil in any case if n is more than the batch, or a datagram, can hold, and before To.
// The room is valid until the next call of Next, Send or Reset.
func (b *TxBatch) Next(n int) []byte {
	if n < 0 || n > len(b.buf)-b.used || n > b.limit || len(b.dests) == 0 ||
		b.datagrams == maxTxDatagrams || len(b.messages) == maxTxMessages {
		return nil
	}
	return b.buf[b.used : b.used+n : b.used+n]
}

// Commit makes the first n bytes of the room that Next has returned the next datagram. It panics if
// there was not so much room.
func (b *TxBatch) Commit(n int) {
	if n < 0 || n > len(b.buf)-b.used || n > b.limit || len(b.dests) == 0 ||
		len(b.messages) == maxTxMessages {
		panic("udp: Commit without the room")
	}
	off := b.used
	b.used += n
	b.datagrams++
	if b.joinable {
		m := &b.messages[len(b.messages)-1]
		if n > 0 && n <= m.segment && m.bytes+n <= b.limit {
			m.bytes += n
			m.count++
			b.joinable = n == m.segment && m.count < MaxSegments
			return
		}
	}
	b.messages = append(b.messages,
		txMessage{off: off, bytes: n, segment: n, count: 1, dest: len(b.dests) - 1})
	b.joinable = n > 0
}

// Len is the number of datagrams in the batch.
func (b *TxBatch) Len() int { return b.datagrams }

// Bytes is the number of bytes in the batch, of all datagrams together.
func (b *TxBatch) Bytes() int { return b.used }

// A txCount counts the work of one Send, added to the counters of the socket at its end.
type txCount struct {
	datagrams, superPackets, bytes, calls uint64
}

// Send seals and sends the datagrams of b, in order. seal may be nil. The batch is unchanged but
// for the bytes that seal has written: Reset it, or send it again.
//
// Send does not report the fate of a datagram: like the network it loses some, and the protocol
// above repairs that. A message that cannot be sent (no route, not permitted, larger than the
// path's MTU, a destination of the wrong family) is dropped and counted in [Stats]; the others are
// sent. While the socket is full Send waits, for 100 ms at most in all; then it drops and counts
// the rest. The error is [net.ErrClosed] after Close, and nil otherwise.
//
// If the kernel refuses a super-packet its datagrams are sealed again and sent one by one, and once
// that has succeeded no more super-packets are made on this socket.
func (s *Socket) Send(b *TxBatch, seal Sealer) error {
	_, err := s.send(b, seal, true)
	return err
}

// TrySend is Send without waiting. It reports whether it is done with all datagrams; if not, because
// the socket is full, the next call of Send or TrySend goes on where this one has ended.
func (s *Socket) TrySend(b *TxBatch, seal Sealer) (all bool, err error) {
	return s.send(b, seal, false)
}

// send sends the datagrams of b that have not been sent, and reports whether it is done with all of
// it.
func (s *Socket) send(b *TxBatch, seal Sealer, patient bool) (all bool, err error) {
	s.resolve(b)
	var (
		count    txCount
		deadline time.Time // for waiting; set when that begins
		at       = b.at
		split    = -1 // the message that the kernel would not segment
	)
	all, b.at = true, txCursor{}
chunks:
	for at.message < len(b.messages) {
		n, next := s.fill(b, at, split, seal)
		for i := 0; i < n; {
			b.pending = b.headers[i:n]
			if err = s.transmit(b, patient, &deadline); err != nil {
				break chunks
			}
			count.calls++
			switch b.errno {
			case 0:
				for _, unit := range b.units[i : i+b.sent] {
					count.datagrams += uint64(unit.count)
					count.bytes += uint64(unit.bytes)
					if unit.count > 1 {
						count.superPackets++
					}
					if unit.message == split && unit.first == 0 {
						// a full one; the last may be small enough for any path
						s.whole.Store(false)
					}
				}
				i += b.sent
			case unix.EINTR:
			case unix.EAGAIN:
				if !patient {
					all, b.at = false, txCursor{b.units[i].message, b.units[i].first}
					break chunks
				}
				// Waited long enough.
				s.stats.overdue.Add(uint64(b.remaining(b.units[i])))
				break chunks
			case unix.EIO, unix.EINVAL:
				// EIO: the route cannot (IPsec, no checksum offload). EINVAL: a driver or filter
				// cannot, or the destination is invalid, or, in older kernels, a segment is larger
				// than the MTU. Sending one by one tells which (Linux net/ipv4/udp.c, udp_send_skb).
				if unit := &b.units[i]; unit.count > 1 {
					s.stats.refused.Add(1)
					split, next = unit.message, txCursor{message: unit.message}
					n = i
					continue
				}
				fallthrough
			default:
				s.failed(&b.units[i], b)
				i++
			}
		}
		at = next
	}
	b.pending = nil
	s.stats.tx.add(&count)
	return all, err
}

// A txCursor is a datagram of a batch.
type txCursor struct{ message, first int }

// remaining is the number of datagrams from unit on.
func (b *TxBatch) remaining(from txUnit) int {
	n := -from.first
	for i := from.message; i < len(b.messages); i++ {
		n += b.messages[i].count
	}
	return n
}

// resolve writes the destinations of b as the kernel wants them.
func (s *Socket) resolve(b *TxBatch) {
	for i := range b.dests {
		d := &b.dests[i]
		d.len = 0
		addr := netip.AddrPortFrom(d.addr.Addr().Unmap(), d.addr.Port())
		if !addr.IsValid() || addr.Addr().Is4() != s.local.Addr().Is4() {
			continue
		}
		scope, err := s.zones.index(addr.Addr().Zone())
		if err != nil {
			continue
		}
		d.len = d.sa.setInet(addr, scope)
	}
}

// fill prepares one system call with the messages from at on, as many as it takes, and seals them.
// The message split goes datagram by datagram, as all do if the kernel does not segment. It returns
// how many messages the call has and where the next begins.
func (s *Socket) fill(b *TxBatch, at txCursor, split int, seal Sealer) (n int, next txCursor) {
	whole := s.whole.Load()
	for n < txChunk && at.message < len(b.messages) {
		m := &b.messages[at.message]
		d := &b.dests[m.dest]
		if d.len == 0 {
			s.stats.sendErrors[badDestination].Add(uint64(m.count))
			at = txCursor{message: at.message + 1}
			continue
		}
		unit := txUnit{message: at.message, first: at.first, count: 1}
		if whole && at.message != split {
			unit.count = m.count
		}
		start := m.off + at.first*m.segment
		unit.bytes = min(unit.count*m.segment, m.off+m.bytes-start)
		if seal != nil {
			for k := range unit.count {
				// Segment k of a super-packet has identification k; a plain datagram has 0.
				seal.Seal(d.tag, uint16(k), m.datagram(b.buf, unit.first+k))
			}
		}

		h := &b.headers[n].Msghdr
		h.Name = &d.sa[0]
		h.Namelen = d.len
		iov := &b.iovecs[n]
		iov.Base = nil
		if unit.bytes > 0 {
			iov.Base = &b.buf[start]
		}
		iov.SetLen(unit.bytes)
		h.Iov = iov
		h.SetIovlen(1)
		h.Control = nil
		h.SetControllen(0)
		if unit.count > 1 {
			c := &b.controls[n]
			h.SetControllen(c.setSegment(m.segment))
			h.Control = &c.bytes()[0]
		}
		b.units[n] = unit
		n++
		if at.first += unit.count; at.first == m.count {
			at = txCursor{message: at.message + 1}
		}
	}
	return n, at
}

// transmit makes one system call with b.pending. If there is no room a patient one waits for it
// until deadline, which it sets when it begins to wait. b.sent and b.errno have the result: EAGAIN
// means that there was no room in time. The error is net.ErrClosed.
func (s *Socket) transmit(b *TxBatch, patient bool, deadline *time.Time) error {
	if err := s.writer.Control(b.try); err != nil || b.errno != unix.EAGAIN {
		return err
	}
	s.stats.full.Add(1)
	if !patient {
		return nil
	}
	if deadline.IsZero() {
		*deadline = time.Now().Add(sendPatience)
	}
	// The socket has one deadline for all, so one sender at a time waits. Another, by the time
	// that it may, has its own deadline behind it or little before it.
	s.waiting.Lock()
	defer s.waiting.Unlock()
	if s.writer.setDeadline(&s.writer.write, *deadline) != nil {
		return net.ErrClosed
	}
	err := s.writer.Write(b.wait)
	if err == net.ErrClosed {
		return err
	}
	if err != nil {
		b.errno = unix.EAGAIN
	}
	return nil
}

// failed notes that the kernel would not send unit, for the reason in b.errno.
func (s *Socket) failed(unit *txUnit, b *TxBatch) {
	reason := sendErrorOf(b.errno)
	s.stats.sendErrors[reason].Add(uint64(unit.count))
	if s.refused != nil && reason != noMemory {
		s.refused(b.errno, unit.count)
	}
	if b.errno == unix.ENODEV || b.errno == unix.EINVAL || b.errno == unix.EADDRNOTAVAIL {
		if d := &b.dests[b.messages[unit.message].dest]; d.addr.Addr().Zone() != "" {
			s.zones.forget(s.local.Addr()) // the interface may have come back with another index
		}
	}
}
