package udp

import (
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Message is one datagram, or several of one sender that the kernel has joined.
//
//	for i := range m.Segments() {
//		datagram, id := m.Segment(i)
//	}
type Message struct {
	// Data is the payload of all datagrams, one after the other. It is valid until the batch is
	// received into again, and belongs to the receiver until then, which may write to it.
	Data []byte

	// SegmentSize is the size of the datagrams; the last may be shorter. It is len(Data) if there
	// is only one, and 1 if that is empty, so that it is always positive.
	SegmentSize int

	// From is the sender, an IPv4 address as such, a link-local address with its zone. Equal
	// senders compare equal.
	From netip.AddrPort

	// FirstID is the IPv4 identification of the first datagram, if HasID. Datagram k of a
	// super-packet of one sender has FirstID+k, but of datagrams that were joined on their way all
	// may have the same, 0 if they came from a [TxBatch] one by one: try both.
	FirstID uint16
	HasID   bool

	// Truncated: the end of Data is missing.
	Truncated bool
}

// Segments is the number of datagrams, at least 1.
func (m *Message) Segments() int {
	if len(m.Data) == 0 {
		return 1
	}
	return (len(m.Data)-1)/m.SegmentSize + 1
}

// Segment is datagram i, from 0, a part of Data, and the identification that it is supposed to have,
// which means nothing if there is no HasID.
func (m *Message) Segment(i int) (datagram []byte, id uint16) {
	start := i * m.SegmentSize
	end := min(start+m.SegmentSize, len(m.Data))
	return m.Data[start:end:end], m.FirstID + uint16(i)
}

// An RxBatch is memory to receive messages into. It is for one goroutine at a time.
type RxBatch struct {
	buf      []byte // room for the messages, one after the other
	size     int    // of one room
	messages []Message

	headers  []mmsghdr
	iovecs   []unix.Iovec
	names    []sockaddr
	controls []control

	// One system call: how many messages came, and how many of the headers it has written to.
	received, dirty int
	errno           unix.Errno

	// Made once, since a function made for a call is an allocation. try does not wait for messages.
	try  func(fd uintptr)
	wait func(fd uintptr) bool
}

// NewRxBatch makes a batch for up to the given number of messages at a time, between 1 and 1024.
// Each has 64 KiB of memory, which is touched as messages need it.
//
// For super-packets a few are enough, 2 to 4. One system call is little beside 64 KiB, and data not
// larger than the second-level cache is still there when it is read (BenchmarkChecked finds less
// than 7 % between 1 and 16). For single datagrams each message more is a system call less.
func NewRxBatch(messages int) *RxBatch {
	return newRxBatch(min(max(messages, 1), maxRxMessages), rxBytes)
}

// newRxBatch makes a batch with rooms of size bytes.
func newRxBatch(messages, size int) *RxBatch {
	b := &RxBatch{
		buf:      make([]byte, messages*size),
		size:     size,
		messages: make([]Message, 0, messages),
		headers:  make([]mmsghdr, messages),
		iovecs:   make([]unix.Iovec, messages),
		names:    make([]sockaddr, messages),
		controls: make([]control, messages),
		dirty:    messages,
	}
	b.try = func(fd uintptr) { b.received, b.errno = recvmmsg(fd, b.headers) }
	b.wait = func(fd uintptr) bool {
		b.received, b.errno = recvmmsg(fd, b.headers)
		return b.errno != unix.EAGAIN
	}
	return b
}

// Len is the number of messages that the last call has received.
func (b *RxBatch) Len() int { return len(b.messages) }

// Message is one of them, from 0. It is valid until the batch is received into again.
func (b *RxBatch) Message(i int) *Message { return &b.messages[i] }

// arm prepares the headers for the next call: the kernel has overwritten those that it used.
func (b *RxBatch) arm(before int) {
	b.messages = b.messages[:0]
	for i := range b.headers[:b.dirty] {
		h := &b.headers[i].Msghdr
		iov := &b.iovecs[i]
		iov.Base = &b.buf[i*b.size+rxHeadroom-before]
		iov.SetLen(b.size - rxHeadroom + before)
		h.Iov = iov
		h.SetIovlen(1)
		h.Name = &b.names[i][0]
		h.Namelen = uint32(unsafe.Sizeof(b.names[i]))
		h.Control = &b.controls[i].bytes()[0]
		h.SetControllen(int(unsafe.Sizeof(b.controls[i])))
		h.Flags = 0
	}
	b.dirty, b.received = 0, 0
}

// Recv receives the messages that are there, as many as b takes, and waits for one if there is none:
// until Close, which gives [net.ErrClosed], or the deadline, which gives [os.ErrDeadlineExceeded].
// Other errors are the system's. One goroutine at a time waits, others behind it.
func (s *Socket) Recv(b *RxBatch) error {
	for skipped := 0; ; {
		b.arm(s.before())
		if err := s.reader.Read(b.wait); err != nil {
			return err
		}
		if again, err := s.received(b, &skipped); !again {
			return err
		}
	}
}

// TryRecv is Recv without waiting. It reports whether there were messages.
func (s *Socket) TryRecv(b *RxBatch) (bool, error) {
	for skipped := 0; ; {
		b.arm(s.before())
		if err := s.reader.Control(b.try); err != nil {
			return false, err
		}
		if b.errno == unix.EAGAIN {
			return false, nil
		}
		if again, err := s.received(b, &skipped); !again {
			return err == nil, err
		}
	}
}

// before is how many bytes of headers the receiving socket puts before the payload.
func (s *Socket) before() int {
	if s.packets != nil {
		return packetHeaderLen
	}
	return 0
}

// received looks at the result of one system call. It reports whether to call again, because there
// is nothing to deliver.
func (s *Socket) received(b *RxBatch, skipped *int) (again bool, err error) {
	if b.errno != 0 {
		if b.errno == unix.EINTR {
			return true, nil
		}
		// An error of the socket, such as that an interface went down: reading has cleared it.
		s.stats.receiveErrors.Add(1)
		if *skipped++; *skipped > maxReceiveErrors {
			return false, fmt.Errorf("udp: receive: %w", b.errno)
		}
		return true, nil
	}
	*skipped = 0
	b.dirty = b.received
	var count rxCount
	count.calls = 1
	for i := range b.headers[:b.received] {
		var m Message
		ok := true
		if s.packets != nil {
			m, ok = s.packet(b, i)
		} else {
			m = s.datagram(b, i)
		}
		if !ok {
			continue
		}
		n := m.Segments()
		count.datagrams += uint64(n)
		count.bytes += uint64(len(m.Data))
		if n > 1 {
			count.superPackets++
		}
		if m.Truncated {
			s.stats.truncated.Add(1)
		}
		if s.drop == nil {
			b.messages = append(b.messages, m)
		} else {
			s.sift(b, m, n)
		}
	}
	s.stats.rx.add(&count)
	return len(b.messages) == 0, nil
}

// datagram is message i of the last call on the UDP socket.
func (s *Socket) datagram(b *RxBatch, i int) Message {
	h := &b.headers[i]
	n := min(int(h.length), b.size-rxHeadroom)
	start := i*b.size + rxHeadroom
	m := Message{
		Data:        b.buf[start : start+n : start+n],
		SegmentSize: max(n, 1),
		Truncated:   h.Flags&unix.MSG_TRUNC != 0,
	}
	if h.Controllen > 0 {
		if size := b.controls[i].segment(int(h.Controllen)); size > 0 && size < n {
			m.SegmentSize = size
		}
	}
	addr, scope := b.names[i].inet(h.Namelen)
	if scope != 0 {
		addr = netip.AddrPortFrom(s.zones.with(addr.Addr(), scope), addr.Port())
	}
	m.From = addr
	return m
}

// sift delivers of a message of n datagrams those that Config.Drop does not want lost. Datagrams
// that stay together between two losses are a message of their own, so that size and identification
// hold.
func (s *Socket) sift(b *RxBatch, m Message, n int) {
	first := 0
	for i := 0; i <= n; i++ {
		lost := i == n
		if !lost {
			datagram, _ := m.Segment(i)
			lost = s.drop(datagram)
			if lost {
				s.stats.dropped.Add(1)
			}
		}
		if !lost {
			continue
		}
		if i > first {
			run := m
			end := min(i*m.SegmentSize, len(m.Data))
			run.Data = m.Data[first*m.SegmentSize : end : end]
			run.SegmentSize = max(min(m.SegmentSize, len(run.Data)), 1)
			run.FirstID += uint16(first)
			run.Truncated = m.Truncated && i == n
			b.messages = append(b.messages, run)
		}
		first = i + 1
	}
}
