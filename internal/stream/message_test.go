package stream

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// A messageCarrier works as SMC-R does: bytes that are put stay in a send ring, which is smaller
// than the peer's buffer, until their completion; a post is at most two WRITEs, as the bytes may
// wrap round, and a message with the header after them; few posts are on their way at a time. A
// wire carries posts out, in order, at once or when its script says so.
type messageCarrier struct {
	place  func(at int, b []byte) // a WRITE into the peer's buffer
	header func(cdc.Header)       // a CDC message to the peer
	wake   func()                 // our Conn, after a completion
	wire   *wire
	size   int // of the peer's buffer

	mu       sync.Mutex
	ring     []byte
	newest   cdc.Header // to be sent, or sent
	dirty    bool       // newest was not posted yet
	urgent   cdc.ProducerFlags
	put      uint64 // bytes put,
	posted   uint64 // posted,
	finished uint64 // and completed
	slots    int    // posts that may still be made
}

// A post is one send request.
type post struct {
	from, to uint64 // of the stream
	header   cdc.Header
}

const messageSlots = 3

// newMessageCarrier returns one without an other end.
func newMessageCarrier(w *wire, ring, peerBuffer int) *messageCarrier {
	return &messageCarrier{wire: w, ring: make([]byte, ring), size: peerBuffer, slots: messageSlots}
}

func (m *messageCarrier) Buffer() []byte   { return m.ring }
func (m *messageCarrier) PeerBuffer() int  { return m.size }
func (m *messageCarrier) WakeReader() bool { return false }
func (m *messageCarrier) WakeWriter() bool { return false }

func (m *messageCarrier) Room(window uint32) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return uint32(min(uint64(window), uint64(len(m.ring))-(m.put-m.finished)))
}

func (m *messageCarrier) Produce(to cdc.Cursor) bool {
	m.mu.Lock()
	n, err := cdc.Check(m.newest.Producer, to, uint32(m.size), uint32(m.size))
	if err != nil || m.put+uint64(n)-m.finished > uint64(len(m.ring)) {
		panic(fmt.Sprintf("produced up to %v after %v, %v: room for %d", to, m.newest.Producer, err, len(m.ring)))
	}
	m.put += uint64(n)
	m.newest.Producer = to
	m.dirty = true
	m.urgent = 0
	m.mu.Unlock()
	m.post()
	return false
}

func (m *messageCarrier) ProduceUrgent(to cdc.Cursor, flags cdc.ProducerFlags) bool {
	m.mu.Lock()
	m.put += uint64(cdc.Diff(m.newest.Producer, to, uint32(m.size)))
	m.newest.Producer, m.urgent, m.dirty = to, flags, true
	m.mu.Unlock()
	m.post()
	return false
}

func (m *messageCarrier) Consume(to cdc.Cursor, prod cdc.ProducerFlags, conn cdc.ConnFlags) {
	m.mu.Lock()
	m.newest.Consumer, m.newest.ProducerFlags, m.newest.ConnFlags = to, prod, conn
	m.dirty = true
	m.mu.Unlock()
	m.post()
}

func (m *messageCarrier) Published() cdc.Header {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newest
}

// post sends the newest header and the bytes that belong to it, if a post may be made: else the
// next completion does.
func (m *messageCarrier) post() {
	m.mu.Lock()
	if !m.dirty || m.slots == 0 {
		m.mu.Unlock()
		return
	}
	p := post{from: m.posted, to: m.put, header: m.newest}
	p.header.ProducerFlags |= m.urgent
	if m.urgent&cdc.UrgentPresent != 0 {
		m.urgent = 0
	}
	m.posted, m.dirty = m.put, false
	m.slots--
	m.wire.add(m, p) // locked, so that posts are in order
	m.mu.Unlock()
	if m.wire.later == nil {
		m.wire.drain()
	}
}

// deliver writes the bytes of a post out of the ring, where they must still be, and then the header.
func (m *messageCarrier) deliver(p post) {
	writes := 0
	for from := p.from; from < p.to; writes++ {
		at := int(from % uint64(m.size))
		n := min(int(p.to-from), m.size-at)
		for done := 0; done < n; { // gathered from the ring
			place := int((from + uint64(done)) % uint64(len(m.ring)))
			k := min(n-done, len(m.ring)-place)
			m.place(at+done, m.ring[place:place+k])
			done += k
		}
		from += uint64(n)
	}
	if writes > 2 {
		panic("more than two WRITEs for a post")
	}
	m.header(p.header)
}

// complete gives back the slot and the bytes of the ring that a post has used.
func (m *messageCarrier) complete(p post) {
	m.mu.Lock()
	m.finished = p.to
	m.slots++
	m.mu.Unlock()
	m.post()
	m.wake()
}

// A wire carries the posts of both directions, each in order.
type wire struct {
	later *rand.Rand // the script: nil delivers at once

	mu       sync.Mutex
	draining bool
	steps    [2][]func() // by direction; a post is two steps: delivery and completion
	ends     [2]*messageCarrier
	more     chan struct{}
}

func newWire(later *rand.Rand) *wire { return &wire{later: later, more: make(chan struct{}, 1)} }

func (w *wire) add(m *messageCarrier, p post) {
	w.mu.Lock()
	direction := 0
	if m == w.ends[1] {
		direction = 1
	}
	w.steps[direction] = append(w.steps[direction], func() { m.deliver(p) }, func() { m.complete(p) })
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// drain takes steps until there are none. Only one goroutine does so at a time.
func (w *wire) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining {
		return
	}
	w.draining = true
	for {
		i := 0
		if len(w.steps[0]) == 0 || len(w.steps[1]) > 0 && w.later != nil && w.later.IntN(2) == 0 {
			i = 1
		}
		if len(w.steps[i]) == 0 {
			w.draining = false
			return
		}
		step := w.steps[i][0]
		w.steps[i] = w.steps[i][1:]
		w.mu.Unlock()
		step()
		if w.later != nil {
			for range w.later.IntN(4) {
				runtime.Gosched()
			}
		}
		w.mu.Lock()
	}
}

// run drains until the test ends.
func (w *wire) run(tb testing.TB) {
	quit, done := make(chan struct{}), make(chan struct{})
	tb.Cleanup(func() { close(quit); <-done })
	go func() {
		defer close(done)
		for {
			select {
			case <-w.more:
				w.drain()
			case <-quit:
				return
			}
		}
	}()
}

// How the ends of a pair, or a puppet and its Conn, are joined in the tests.
type joint uint8

const (
	byMemory       joint = iota // as SMC-D
	byMessages                  // each is there at once
	byMessagesLate              // when the wire gets to it
)

// joined is the way in which newPair, newUnequalPair and newPuppet join their ends.
var joined = byMemory

// newMessagePair is newUnequalPair with messages.
func newMessagePair(tb testing.TB, ringA, ringB int, spin time.Duration) (a, b *Conn) {
	var w *wire
	if joined == byMessagesLate {
		w = newWire(newRandom(tb))
		w.run(tb)
	} else {
		w = newWire(nil)
	}
	sizes := [2]int{ringA, ringB}
	var conns [2]*Conn
	var data [2][]byte
	for i := range conns {
		data[i] = make([]byte, sizes[i])
		peer := sizes[1-i]
		w.ends[i] = newMessageCarrier(w, peer*2/3+1, peer)
	}
	for i := range conns {
		conns[i] = New(Config{In: MessageInbox(data[i]), Out: w.ends[i], Spin: spin})
		w.ends[i].wake = func() { conns[i].Wake() }
		w.ends[i].place = func(at int, b []byte) { copy(data[1-i][at:], b) }
		w.ends[i].header = func(h cdc.Header) { conns[1-i].Receive(h) }
	}
	return conns[0], conns[1]
}

// sendByMessages is the carrier of a puppet's Conn.
func (p *puppet) sendByMessages() *messageCarrier {
	data := p.element[1][cdc.HeaderLen:]
	w := newWire(nil)
	m := newMessageCarrier(w, len(data)*2/3+1, len(data))
	w.ends[0] = m
	m.wake = func() {}
	m.place = func(at int, b []byte) { copy(data[at:], b) }
	m.header = func(h cdc.Header) {
		w := word(p.element[1], cdc.ProducerOffset)
		w.Store(ProducerWord(w.Load(), h.Producer, h.ProducerFlags, cdc.Cursor{Count: 1<<32 - 1}))
		word(p.element[1], cdc.ConsumerOffset).Store(cdc.PackConsumer(h.Consumer, h.ProducerFlags, h.ConnFlags))
	}
	return m
}

// TestOverMessages runs the tests of the data path again, over messages. All that does not speak of
// memory, sleep words and rings has to be the same.
func TestOverMessages(t *testing.T) {
	for _, tt := range []struct {
		name string
		test func(*testing.T)
		late bool // messages take their time; else they are there at once, as the test expects
	}{
		{"Transfer", TestTransfer, true},
		{"UrgentTransfer", TestUrgentTransfer, true},
		{"UrgentScenario5", TestUrgentScenario5, false},
		{"UrgentScenario6", TestUrgentScenario6, false},
		{"UrgentMark", TestUrgentMark, false},
		{"UrgentInline", TestUrgentInline, false},
		{"UrgentWrap", TestUrgentWrap, false},
		{"UrgentLong", TestUrgentLong, true},
		{"UrgentInARow", TestUrgentInARow, true},
		{"UrgentThenEnd", TestUrgentThenEnd, false},
		{"ReadUrgentAlone", TestReadUrgentAlone, true},
		{"ReadUrgentBesideRead", TestReadUrgentBesideRead, true},
		{"WrapOfWrap", TestWrapOfWrap, false},
		{"WrapOfWrapConcurrent", TestWrapOfWrapConcurrent, true},
		{"FullWindow", TestFullWindow, false},
		{"ReadHappensAfterWrite", TestReadHappensAfterWrite, true},
		{"HalfClose", TestHalfClose, false},
		{"PeerFlags", TestPeerFlags, false},
		{"Fail", TestFail, false},
		{"Detach", TestDetach, false},
		{"DetachDuringWrite", TestDetachDuringWrite, true},
		{"End", TestEnd, false},
		{"Headers", TestHeaders, false},
		{"BrokenCursor", TestBrokenCursor, false},
		{"ConsumerAheadOfProducer", TestConsumerAheadOfProducer, false},
		{"ProducerAheadOfConsumer", TestProducerAheadOfConsumer, false},
		{"Deadline", TestDeadline, false},
		{"DeadlineBeforeData", TestDeadlineBeforeData, false},
		{"DeadlinePartialWrite", TestDeadlinePartialWrite, false},
		{"DeadlineRace", TestDeadlineRace, true},
		{"WindowUpdate", TestWindowUpdate, false},
		{"WindowUpdateFollowsBlocked", TestWindowUpdateFollowsBlocked, false},
		{"SayRead", TestSayRead, false},
		{"Writable", TestWritable, false},
		{"WriterBlockedFlag", TestWriterBlockedFlag, false},
		{"NoDeadlock", TestNoDeadlock, true},
		{"ConcurrentReadersAndWriters", TestConcurrentReadersAndWriters, true},
		{"CloseWakesAll", TestCloseWakesAll, false},
		{"ReadFromFull", TestReadFromFull, false},
	} {
		if raceEnabled && tt.name == "WrapOfWrap" {
			continue // too slow; it has one goroutine only
		}
		t.Run(tt.name, func(t *testing.T) {
			joined = byMessages
			if tt.late {
				joined = byMessagesLate
			}
			defer func() { joined = byMemory }()
			tt.test(t)
		})
	}
}

// TestHeldByCarrier has a writer wait for the carrier while the peer has room: it does not say that it is blocked,
// and a completion wakes it.
func TestHeldByCarrier(t *testing.T) {
	watchdog(t)
	p := &puppet{memory: newMemory(100+cdc.HeaderLen, 1000+cdc.HeaderLen)}
	cfg := p.puppetConfig(func() {})
	m := p.sendByMessages()
	held := newWire(rand.New(rand.NewPCG(1, 1))) // whose posts nobody carries yet
	m.wire, held.ends[0] = held, m
	cfg.Out = m
	p.conn = New(cfg)
	m.wake = func() { p.conn.Wake() }
	room := len(m.Buffer())
	if n, err := p.conn.Write(make([]byte, room)); n != room || err != nil {
		t.Fatalf("Write of what there is room for: %d, %v", n, err)
	}
	p.conn.w.want = 1
	p.conn.pollConsumer()
	if p.conn.writable() {
		t.Error("writable, with the ring full")
	}
	held.drain()
	if !p.conn.writable() {
		t.Error("not writable, with the ring empty")
	}
	writing := start(p.conn.Write, make([]byte, 1000))
	p.consume(at(uint64(room), 1000), 0, 0)
	p.asleep(t, 1)
	if _, written := p.conn.Totals(); written != uint64(2*room) {
		t.Errorf("%d bytes were put into a ring of %d", written-uint64(room), room)
	}
	if flags := p.conn.OwnHeader().ProducerFlags; flags != 0 {
		t.Errorf("flags while the carrier is awaited: %v", flags)
	}
	held.run(t)
	if got := <-writing; got.n != 1000 || got.err != nil {
		t.Errorf("Write = %d, %v", got.n, got.err)
	}
	eventually(t, "the last byte", func() bool { return p.produced() == at(uint64(room)+1000, 1000) })
}
