package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/measure"
)

// WorkerVerb is the hidden verb of the command that runs a worker, see [Work].
const WorkerVerb = "bench-worker"

const (
	roleServer = "server"
	roleClient = "client"
	doBegin    = "begin" // the warm-up is over
	doEnd      = "end"   // report
)

// workerSpec is the first thing that a worker hears.
type workerSpec struct {
	Role      string       `json:"role"`
	Benchmark string       `json:"benchmark"`
	Transport string       `json:"transport"`
	Addr      string       `json:"addr"`  // for the client
	Local     netip.Addr   `json:"local"` // of the worker itself; zero: as the transport likes
	Settings  workSettings `json:"settings"`
}

// workerCommand is a later command to a worker: begin, end, and the end of its input.
type workerCommand struct {
	Do string `json:"do"`
}

// workerMessage is a message of a worker: Addr from the server when it listens, an empty message
// from the client when it works and from both after doBegin, the rest after doEnd, and Problem at
// any time.
type workerMessage struct {
	Addr       string  `json:"addr,omitempty"`
	Seconds    float64 `json:"seconds,omitempty"`
	Ops        uint64  `json:"ops,omitempty"`
	Bytes      uint64  `json:"bytes,omitempty"`
	P50        int64   `json:"p50_ns,omitempty"`
	P99        int64   `json:"p99_ns,omitempty"`
	CPUSeconds float64 `json:"cpu_seconds,omitempty"`
	Mode       string  `json:"mode,omitempty"`
	Buffer     int     `json:"buffer,omitempty"` // bytes
	Packets    uint64  `json:"packets,omitempty"`
	// of the packets; negative if more turned up than went missing
	Lost    int64   `json:"lost,omitempty"`
	Least   float64 `json:"least,omitempty"` // the smallest share of the work, relative to the average
	Slowest int64   `json:"slowest_ns,omitempty"`
	Problem string  `json:"problem,omitempty"`
}

// problem decodes a line that came when none was due.
func (w *worker) problem(line []byte) error {
	var m workerMessage
	if err := json.Unmarshal(line, &m); err != nil {
		return err
	}
	return fmt.Errorf("%s: %s", w.Name(), m.Problem)
}

// A workload is the work of the two workers of a benchmark. Both functions run until m says that
// the end has come, or their peer is gone.
type workload struct {
	clientCounts bool // Ops and Bytes of the client are the result, otherwise the server's
	server       func(m *meter, l net.Listener) error
	client       func(m *meter, dial dialFunc) error
}

type dialFunc func() (net.Conn, error)

// A meter counts the operations of a workload.
type meter struct {
	settings workSettings
	check    func(net.Conn) error // is this connection really of the transport? Called on each.

	_     [64]byte // the counters have cache lines of their own
	ops   atomic.Uint64
	bytes atomic.Uint64

	packets, lost atomic.Uint64
	_             [64]byte

	slowest atomic.Int64 // how long the slowest of many had nothing, a time.Duration

	shares []atomic.Uint64 // ops of each, where many share; see shareAmong

	phase   atomic.Int32
	working chan struct{} // closed by the first call of start
	begun   chan struct{} // closed at the end of the warm-up
	once    sync.Once
	base    atomic.Uint64     // ops at the end of the warm-up
	latency measure.Histogram // of the client's one loop, in phaseMeasure

	mu     sync.Mutex
	begin  snapshot
	end    snapshot
	hasEnd bool
	mode   string
	buffer int
}

const (
	phaseWarmUp int32 = iota
	phaseMeasure
	phaseStop
)

type snapshot struct {
	at            time.Time
	cpu           time.Duration
	ops, bytes    uint64
	packets, lost uint64
	shares        []uint64
}

func newMeter(s workSettings, check func(net.Conn) error) *meter {
	return &meter{settings: s, check: check, working: make(chan struct{}), begun: make(chan struct{})}
}

// start says that the work has begun: connections stand.
func (m *meter) start() { m.once.Do(func() { close(m.working) }) }

// stopped says that the end has come.
func (m *meter) stopped() bool { return m.phase.Load() == phaseStop }

// measuring says that the warm-up is over and the end has not come.
func (m *meter) measuring() bool { return m.phase.Load() == phaseMeasure }

// count adds to the result. A workload with MaxOps stops warming up at a tenth of them,
// and its interval ends when they are done.
func (m *meter) count(ops, bytes int) {
	n := m.ops.Add(uint64(ops))
	m.bytes.Add(uint64(bytes))
	limit := uint64(m.settings.MaxOps)
	if limit == 0 {
		return
	}
	switch m.phase.Load() {
	case phaseWarmUp:
		if n >= limit/10 {
			m.start()
			<-m.begun
		}
	case phaseMeasure:
		if n-m.base.Load() >= limit {
			m.finish()
		}
	}
}

// countPackets says that of so many packets some were lost, where that can be known. lost is
// negative when some turn up that were counted as lost.
func (m *meter) countPackets(all, lost int) {
	m.packets.Add(uint64(all))
	m.lost.Add(uint64(lost))
}

// shareAmong says that n share the work, before it begins: how fairly is of interest. They count with
// countOf.
func (m *meter) shareAmong(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shares = make([]atomic.Uint64, n)
}

// countOf adds an operation of the i-th to the result.
func (m *meter) countOf(i, bytes int) {
	m.shares[i].Add(1)
	m.count(1, bytes)
}

func (m *meter) snapshot() snapshot {
	s := snapshot{time.Now(), measure.CPUTime(), m.ops.Load(), m.bytes.Load(), m.packets.Load(),
		m.lost.Load(), nil}
	for i := range m.shares {
		s.shares = append(s.shares, m.shares[i].Load())
	}
	return s
}

// beginInterval ends the warm-up.
func (m *meter) beginInterval() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.phase.CompareAndSwap(phaseWarmUp, phaseMeasure) {
		return // it has ended already
	}
	m.begin = m.snapshot()
	m.base.Store(m.begin.ops)
	close(m.begun)
}

// finish ends the interval, once.
func (m *meter) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hasEnd {
		return
	}
	m.end, m.hasEnd = m.snapshot(), true
	if m.phase.Swap(phaseStop) == phaseWarmUp {
		close(m.begun)
	}
}

// report returns the result of the time between begin and end.
func (m *meter) report() workerMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	shares := slices.Clone(m.end.shares)
	for i := range m.begin.shares {
		shares[i] -= m.begin.shares[i]
	}
	return workerMessage{
		Least:      leastShare(shares),
		Slowest:    m.slowest.Load(),
		Seconds:    m.end.at.Sub(m.begin.at).Seconds(),
		Ops:        m.end.ops - m.begin.ops,
		Bytes:      m.end.bytes - m.begin.bytes,
		P50:        int64(m.latency.Quantile(0.50)),
		P99:        int64(m.latency.Quantile(0.99)),
		CPUSeconds: (m.end.cpu - m.begin.cpu).Seconds(),
		Mode:       m.mode,
		Buffer:     m.buffer,
		Packets:    m.end.packets - m.begin.packets,
		Lost:       int64(m.end.lost - m.begin.lost),
	}
}

// note remembers the mode and the buffer of a connection.
func (m *meter) note(mode string, buffer int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mode, m.buffer = mode, buffer
}

// accept takes the next connection and checks it.
func (m *meter) accept(l net.Listener) (net.Conn, error) {
	c, err := l.Accept()
	if err != nil {
		return nil, err
	}
	if err := m.check(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Work does the work of the hidden verb [WorkerVerb]: a worker, which carries out its parent's
// commands until the last one. in and out are standard input and output of the process.
func Work(in io.Reader, out io.Writer) error {
	parent := child.NewParent(in, out)
	var spec workerSpec
	if err := parent.Receive(&spec); err != nil {
		return child.ErrNotFromHere
	}
	b, t := findRow(spec.Benchmark), transports[spec.Transport]
	if b == nil || b.workload(spec.Transport) == nil || t == nil {
		return fmt.Errorf("no work for benchmark %q over %q", spec.Benchmark, spec.Transport)
	}
	work := b.workload(spec.Transport)
	e, err := t(spec)
	if err != nil {
		return parent.Send(workerMessage{Problem: err.Error()})
	}
	defer e.close()
	m := newMeter(spec.Settings, nil)
	m.check = func(c net.Conn) error { return e.check(c, m) }

	finished := make(chan error, 1)
	switch spec.Role {
	case roleServer:
		l, err := e.listen()
		if err != nil {
			return parent.Send(workerMessage{Problem: err.Error()})
		}
		defer l.Close()
		if err := parent.Send(workerMessage{Addr: l.Addr().String()}); err != nil {
			return err
		}
		go func() { finished <- work.server(m, l) }()
	case roleClient:
		dial := func() (net.Conn, error) {
			c, err := e.dial(spec.Addr)
			if err != nil {
				return nil, err
			}
			if err := m.check(c); err != nil {
				c.Close()
				return nil, err
			}
			return c, nil
		}
		go func() { finished <- work.client(m, dial) }()
		select {
		case <-m.working:
			if err := parent.Send(workerMessage{}); err != nil {
				return err
			}
		case err := <-finished:
			return parent.Send(workerMessage{Problem: fmt.Sprintf("ended before it began: %v", err)})
		}
	default:
		return fmt.Errorf("no role %q", spec.Role)
	}

	commands := make(chan workerCommand)
	go func() {
		defer close(commands)
		for {
			var c workerCommand
			if parent.Receive(&c) != nil {
				return
			}
			commands <- c
		}
	}()
	return obey(parent, m, spec.Role, commands, finished)
}

// obey carries out begin and end, and reports.
func obey(parent *child.Parent, m *meter, role string, commands <-chan workerCommand,
	finished chan error) error {
	for {
		select {
		case err := <-finished:
			finished = nil
			switch {
			case err == nil && (role == roleServer || m.stopped()):
				continue // as it should
			case err != nil && role == roleServer && m.stopped():
				continue // the client may be gone already
			case err == nil:
				err = errors.New("ended too early")
			}
			if err := parent.Send(workerMessage{Problem: err.Error()}); err != nil {
				return err
			}
		case c, ok := <-commands:
			switch {
			case !ok:
				return nil // goroutines that still run end with the process
			case c.Do == doBegin:
				m.beginInterval()
				if err := parent.Send(workerMessage{}); err != nil {
					return err
				}
			case c.Do == doEnd:
				m.finish()
				if role == roleClient && finished != nil {
					// The measure.Histogram belongs to the loop until it has ended.
					select {
					case err := <-finished:
						finished = nil
						if err != nil {
							return parent.Send(workerMessage{Problem: err.Error()})
						}
					case <-time.After(child.Patience / 2):
						return parent.Send(workerMessage{Problem: "does not come to an end"})
					}
				}
				if err := parent.Send(m.report()); err != nil {
					return err
				}
			}
		}
	}
}

// gone says that an error is the ordinary end of a connection after its peer has done its work.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
