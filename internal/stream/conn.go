package stream

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/gosmc/smc/wire/cdc"
)

// Config has the memory and the carrier through which a [Conn] moves bytes, and the functions that
// it calls. All slices and pointers stay the caller's; they must stay mapped until [Conn.Close] has
// returned.
type Config struct {
	// In is the memory that the peer writes. The package comment says how far we trust it. Its
	// header is zero.
	In Inbox

	// Out takes the bytes and cursors that we have for the peer.
	Out Carrier

	// ReaderSleeps and WriterSleeps are set to 1 by this side just before it parks and set to 0 by
	// the side that wakes it. Both may be nil where nobody looks.
	ReaderSleeps, WriterSleeps *atomic.Uint32

	// Read is where we say how many bytes were read, at every read: more than the published cursor
	// tells. PeerRead is where the peer does. Both may be nil.
	Read, PeerRead *atomic.Uint64

	// Told is where a carrier whose headers are messages says how many bytes the peer knows to be
	// read: it takes the number from Read for each message, before it sends it. As messages cost
	// something, there are none then because a reader waits or closes. nil where the peer knows the
	// cursor that Consume publishes.
	Told *atomic.Uint64

	// Doorbell is where the peer's rings arrive; nil if somebody else waits there.
	Doorbell Doorbell

	// Spin is the longest spin before parking; 0 means never to spin.
	Spin time.Duration

	// Notice, if not nil, is called without locks after a change of the peer's flags that the
	// connection's life depends on. It is also called after the peer broke the protocol (err is
	// then a [*PeerError]). It may be called repeatedly with the same flags, from several
	// goroutines.
	Notice func(flags cdc.ConnFlags, err error)

	// Dirty, if not nil, is called by the first write after New or ReturnPages, with locks
	// held: from then on there are pages to give back.
	Dirty func()

	// Stats may be shared by many connections; nil counts nothing.
	Stats *Stats
}

// Stats counts the events of the data path beside moving bytes. Fields only grow.
type Stats struct {
	Rings  atomic.Uint64 // doorbells rung at a peer
	Sleeps atomic.Uint64 // times a reader or writer parked
	Spins  atomic.Uint64 // waits that ended while spinning
	Futile atomic.Uint64 // spins that ended in parking all the same
	Full   atomic.Uint64 // times a writer found no room and waited
}

// A PeerError says that the peer's header held something that no correct peer writes.
// The connection is of no further use.
type PeerError struct {
	Field string // which half of the header
	Err   error  // from [cdc.Check]
}

func (e *PeerError) Error() string {
	return "smc: peer broke the protocol: " + e.Field + ": " + e.Err.Error()
}
func (e *PeerError) Unwrap() error { return e.Err }

// State bits of one direction. Bits are only added, but for stExpired.
const (
	stClosed   = 1 << iota // Close was called
	stShut                 // CloseRead or CloseWrite was called
	stExpired              // the deadline has passed
	stFailed               // Conn.failure is set
	stDetached             // the peer's element must not be touched

	// Of a reader, and not to be waited out: the bits that make it take the way that looks at
	// urgent data.
	stMarked      // consumer.marked is set
	stUrgentWaits // somebody waits for urgent data beside it
)

// stEnds are the bits for which a waiter looks again.
const stEnds = stClosed | stShut | stExpired | stFailed | stDetached

// A Conn is one end of an established SMC connection's data path. Its methods may be
// called by several goroutines at once. Reads are serialised, and so are writes; a Read
// and a Write never wait for each other.
type Conn struct {
	// The fields that the fast paths of both directions load; nothing here changes while data
	// flows.
	inProd, inCons *atomic.Uint64 // the peer's header
	rdata          []byte         // our buffer
	carrier        Carrier
	wdata          []byte // the carrier's buffer
	capacity       uint32 // of the peer's buffer
	read, peerRead *atomic.Uint64
	told           *atomic.Uint64 // nil where a header costs nothing
	notice         func(cdc.ConnFlags, error)
	dirty          func()
	stats          *Stats

	_ [64]byte
	r consumer
	_ [64]byte
	w producer
	_ [64]byte

	// out is our consumer half as last published. Reader, writer and closer all change
	// parts of it.
	out struct {
		sync.Mutex
		cursor   cdc.Cursor
		prod     cdc.ProducerFlags
		conn     cdc.ConnFlags
		detached bool // the peer's element and sleep words must not be touched
	}

	awaiting atomic.Bool // flags, with nobody parked

	urgent urgent

	failOnce sync.Once
	failure  error // why stFailed is set; written before it
}

// consumer is the reading half. mu guards all but the atomics and the waiter.
type consumer struct {
	mu       sync.Mutex
	state    atomic.Uint32
	cursor   cdc.Cursor // up to where the application has read
	seen     cdc.Cursor // the peer's producer cursor, checked
	seenWord uint64     // as loaded
	unread   uint32     // bytes between cursor and seen
	unsaid   uint32     // bytes between the published consumer cursor and cursor
	total    atomic.Uint64
	marked   bool   // there is an urgent byte that reads have not passed
	skipped  bool   // it was taken out of the stream: cursor is behind it
	pending  bool   // the peer says that there will be one
	mark     uint64 // its place in the stream, counted as total
	waiter
	deadline deadline
}

// producer is the writing half. mu guards all but the atomics and the waiter.
type producer struct {
	mu       sync.Mutex
	state    atomic.Uint32
	cursor   cdc.Cursor // up to where we have written and published
	at       int        // the same place in the carrier's buffer
	seen     cdc.Cursor // the peer's consumer cursor, checked
	seenWord uint64     // as loaded, with the flags
	free     uint32     // bytes that can be written
	held     uint32     // bytes that the peer has room for beyond that, but the carrier has not
	blocked  bool       // WriterBlocked is published
	urgent   bool       // the last byte that was put is urgent, and the peer is not known to have it
	total    atomic.Uint64
	clean    bool          // nothing was written since pages were last given back
	swept    uint64        // total when Idle was last called
	given    int           // up to where pages were last given back
	givenAt  uint64        // total at that time
	noticed  cdc.ConnFlags // the flags that made a write fail, for the notice
	waits    bool          // the write under way has had to wait for room
	unsent   atomic.Bool   // the peer closed while a write waited for room
	dropping int           // bytes of the write under way that go nowhere, because the peer has closed
	dropped  bool          // an earlier write has lost bytes so
	waiter
	deadline deadline
}

// New returns a connection over freshly zeroed headers.
func New(cfg Config) *Conn {
	wdata, capacity := cfg.Out.Buffer(), cfg.Out.PeerBuffer()
	if len(cfg.In.Data) == 0 || len(wdata) == 0 || capacity == 0 {
		panic(fmt.Sprintf("stream: buffers of %d, %d and %d bytes", len(cfg.In.Data), len(wdata), capacity))
	}
	c := &Conn{
		inProd:   cfg.In.Producer,
		inCons:   cfg.In.Consumer,
		rdata:    cfg.In.Data,
		carrier:  cfg.Out,
		wdata:    wdata,
		capacity: uint32(capacity),
		read:     cfg.Read,
		peerRead: cfg.PeerRead,
		told:     cfg.Told,
		notice:   cfg.Notice,
		dirty:    cfg.Dirty,
		stats:    cfg.Stats,
	}
	if c.notice == nil {
		c.notice = func(cdc.ConnFlags, error) {}
	}
	if c.dirty == nil {
		c.dirty = func() {}
	}
	if c.stats == nil {
		c.stats = new(Stats)
	}
	if c.read == nil {
		c.read = new(atomic.Uint64)
	}
	if c.peerRead == nil {
		c.peerRead = new(atomic.Uint64)
	}
	if cfg.ReaderSleeps == nil {
		cfg.ReaderSleeps = new(atomic.Uint32)
	}
	if cfg.WriterSleeps == nil {
		cfg.WriterSleeps = new(atomic.Uint32)
	}
	c.setRoom(c.capacity)
	c.w.clean = true
	c.r.waiter.init(cfg.ReaderSleeps, cfg.Spin, cfg.Doorbell, c.readable)
	c.r.waiter.written = &c.w.total
	c.w.waiter.init(cfg.WriterSleeps, cfg.Spin, cfg.Doorbell, c.writable)
	c.r.deadline.init(&c.r.state, &c.r.waiter)
	c.r.deadline.urgent = &c.urgent
	c.w.deadline.init(&c.w.state, &c.w.waiter)
	return c
}

// word is the 8 bytes of a header at offset, as one atomic.
func word(element []byte, offset int) *atomic.Uint64 {
	if len(element) <= cdc.HeaderLen {
		panic(fmt.Sprintf("stream: element of %d bytes", len(element)))
	}
	p := unsafe.Pointer(&element[offset])
	if uintptr(p)%8 != 0 {
		panic("stream: header is not aligned")
	}
	return (*atomic.Uint64)(p)
}

// PeerFlags samples the peer's connection flags. Not to be called after Close.
func (c *Conn) PeerFlags() cdc.ConnFlags {
	_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
	return flags
}

// SendFlags adds flags to those the peer sees and wakes it. Flags are never taken back.
// DoneWriting and Closed must come after the last byte: see CloseWrite and Close.
func (c *Conn) SendFlags(flags cdc.ConnFlags) {
	c.out.Lock()
	defer c.out.Unlock()
	if c.out.detached {
		return
	}
	c.out.conn |= flags
	c.storeConsumer()
	c.wakeReader()
	c.wakeWriter()
}

// SendLast is SendFlags for the flags that nothing may follow, Closed or Abort: the peer may use
// its element for another connection as soon as it sees them. Afterwards the connection is
// detached.
func (c *Conn) SendLast(flags cdc.ConnFlags) {
	c.stopWrites()
	c.out.Lock()
	defer c.out.Unlock()
	if c.out.detached {
		return
	}
	c.out.conn |= flags
	c.storeConsumer()
	c.wakeReader()
	c.wakeWriter()
	c.out.detached = true
}

// Detach ends all use of the peer's element and makes writes fail. Bytes that have arrived can
// still be read.
func (c *Conn) Detach() {
	c.stopWrites()
	c.out.Lock()
	c.out.detached = true
	c.out.Unlock()
}

// stopWrites makes writes fail, and waits for one under way to notice.
func (c *Conn) stopWrites() {
	c.w.state.Or(stDetached)
	c.w.wake()
	waitOut(&c.w.mu)
}

// storeConsumer publishes the consumer half. c.out must be locked and not detached.
func (c *Conn) storeConsumer() { c.carrier.Consume(c.out.cursor, c.out.prod, c.out.conn) }

// wakeReader and wakeWriter wake the peer's half. c.w.mu or c.out must be locked, so that the connection
// is not detached meanwhile.
func (c *Conn) wakeReader() { c.rang(c.carrier.WakeReader()) }
func (c *Conn) wakeWriter() { c.rang(c.carrier.WakeWriter()) }

func (c *Conn) rang(rang bool) {
	if rang {
		c.stats.Rings.Add(1)
	}
}

// Wake is the call in which the peer's ring, its message or a completion ends: both directions look
// again.
//
// It reports whether flags were awaited, see [Conn.AwaitFlags]: the caller looks at them again.
func (c *Conn) Wake() (awaited bool) {
	awaited = c.awaiting.Load() && c.awaiting.Swap(false)
	woken := c.r.wake()
	c.w.wake()
	if !woken && c.r.state.Load()&stUrgentWaits != 0 && c.urgentDue() { // a reader looks for itself
		c.urgent.signal()
	}
	return awaited
}

// AwaitFlags has the peer ring when it sets flags, although nobody reads or writes any more: after Close, or
// after a failure. It returns the flags that there are. It is good for one Wake. Not to be called once
// the memory may be gone; [Conn.Wake] ends it.
func (c *Conn) AwaitFlags() cdc.ConnFlags {
	r := &c.r
	r.mu.Lock() // after the goroutine that was reading has left
	defer r.mu.Unlock()
	c.awaiting.Store(true)
	r.expect()
	return c.PeerFlags()
}

// Fail ends the connection with err: writes fail at once, reads after the bytes that
// have already arrived. The first failure counts.
func (c *Conn) Fail(err error) {
	if err == nil {
		err = errReset
	}
	c.failOnce.Do(func() {
		c.failure = err
		c.r.state.Or(stFailed)
		c.w.state.Or(stFailed)
		c.Wake()
		c.urgent.signal()
	})
}

// End ends the connection for a peer that is gone and has left nothing unread: reads return io.EOF
// after the bytes that have already arrived, writes fail as those to a peer that has closed. The
// first failure counts.
func (c *Conn) End() { c.Fail(errEnded) }

// PeerReadAll reports whether the peer is known to have read everything that was written. It is meant for
// one that is gone, and may be called as [Conn.Queues] may.
func (c *Conn) PeerReadAll() bool {
	written := c.w.total.Load()
	cons, _, _ := cdc.UnpackConsumer(c.inCons.Load())
	return c.peerRead.Load() == written ||
		(written-absolute(cons, int(c.capacity)))%(uint64(c.capacity)<<16) == 0
}

// Unsent reports whether the peer closed while a write waited for room: "any pending data to be written"
// of RFC 7609 p.84. Bytes of that write have not reached the peer.
func (c *Conn) Unsent() bool { return c.w.unsent.Load() }

// violation fails the connection for a broken rule and returns the error.
func (c *Conn) violation(field string, err error) error {
	e := &PeerError{Field: field, Err: err}
	c.Fail(e)
	return e
}

// CloseRead makes reads return io.EOF from now on. The peer is not told.
func (c *Conn) CloseRead() error {
	if c.r.state.Or(stShut)&stClosed != 0 {
		return net.ErrClosed
	}
	c.r.wake()
	c.urgent.signal()
	return nil
}

// CloseWrite makes writes fail with EPIPE, waits for one under way to notice, and
// returns. The caller then sends the DoneWriting flag.
func (c *Conn) CloseWrite() error {
	if c.w.state.Or(stShut)&stClosed != 0 {
		return net.ErrClosed
	}
	c.w.wake()
	waitOut(&c.w.mu)
	return nil
}

// Close makes reads and writes fail with [net.ErrClosed] and waits for those under way
// to notice. It reports how many bytes have arrived that nobody has read. Afterwards the
// connection touches its memory only in SendFlags, PeerFlags and Queues. To be called once.
func (c *Conn) Close() (unread int) {
	c.r.state.Or(stClosed)
	c.w.state.Or(stClosed)
	c.Wake()
	c.urgent.signal()
	waitOut(&c.w.mu)
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.deadline.set(time.Time{})
	c.w.deadline.set(time.Time{})
	c.pollProducer() // an error here changes nothing: the caller aborts or closes anyway
	c.sayIdle()
	return int(c.r.unread)
}

// waitOut returns when the goroutine that holds mu has let go of it.
func waitOut(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
}

// Queues returns how many bytes have arrived unread, and how many the peer is not known
// to have read. Both are momentary; neither waits for a Read or Write under way. Not to
// be called once the memory may be gone.
func (c *Conn) Queues() (recv, send int) {
	recv = between(c.r.total.Load(), c.inProd.Load(), len(c.rdata))
	sendMod := c.w.total.Load()
	cons, _, _ := cdc.UnpackConsumer(c.inCons.Load())
	behind := (sendMod - absolute(cons, int(c.capacity))) % (uint64(c.capacity) << 16)
	if behind <= uint64(c.capacity) {
		send = int(behind)
	}
	return recv, send
}

// between is how far the cursor in a producer word is ahead of total, if that is possible.
func between(total, prodWord uint64, capacity int) int {
	round := uint64(capacity) << 16 // the cursor's wrap begins anew after so many bytes; total does not
	ahead := (absolute(cdc.UnpackProducer(prodWord), capacity)%round + round - total%round) % round
	if ahead <= uint64(capacity) {
		return int(ahead)
	}
	return 0
}

// absolute is a cursor as a number of bytes, modulo 2^16 times the capacity.
func absolute(c cdc.Cursor, capacity int) uint64 {
	return uint64(c.Wrap)*uint64(capacity) + uint64(c.Count)
}

// Totals returns the bytes read and written by the application.
func (c *Conn) Totals() (read, written uint64) { return c.r.total.Load(), c.w.total.Load() }

// Buffers returns the capacities of our buffer and the peer's, in bytes.
func (c *Conn) Buffers() (local, remote int) { return len(c.rdata), int(c.capacity) }

// SetReadDeadline and SetWriteDeadline are the methods of [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.r.state.Load()&stClosed != 0 {
		return net.ErrClosed
	}
	c.r.deadline.set(t)
	return nil
}

// SetWriteDeadline is described at SetReadDeadline.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.w.state.Load()&stClosed != 0 {
		return net.ErrClosed
	}
	c.w.deadline.set(t)
	return nil
}

// localError is the error that state bits of our own making stand for, or nil.
func localError(state uint32) error {
	switch {
	case state&stClosed != 0:
		return net.ErrClosed
	case state&stExpired != 0:
		return os.ErrDeadlineExceeded
	}
	return nil
}

var (
	errPipe  error = syscall.EPIPE
	errReset error = syscall.ECONNRESET

	errEnded      = errors.New("smc: peer has ended")
	errPeerClosed = errors.New("smc: peer has closed")
	errNoProgress = errors.New("smc: writer returned an impossible count")
)
