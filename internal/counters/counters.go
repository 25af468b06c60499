package counters

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// Counters are the counters of one host. They only grow. Indexes are modes. The zero value is ready,
// and any goroutine may call the methods.
type Counters struct {
	connections       [4]atomic.Uint64
	asServer          [4]atomic.Uint64 // of connections, those that a listener took
	bytesIn, bytesOut [4]atomic.Uint64
	handshakesOK      atomic.Uint64
	handshakesFailed  atomic.Uint64
	failovers         atomic.Uint64
	times             handshakeTimes
	messages          messageCounters

	// Data is counted by the data path of connections.
	Data stream.Stats

	mu        sync.Mutex
	fallbacks map[clc.Reason]fallbackCount
	ends      map[endKey]uint64
}

// A fallbackCount counts connections that went on over TCP for one reason.
type fallbackCount struct{ all, asServer uint64 }

// Open counts the connections that there are, by mode: ends of clients, and of servers.
type Open [4]struct{ Client, Server int }

// Add counts a connection.
func (o *Open) Add(m conn.Mode, client bool) {
	if client {
		o[m].Client++
	} else {
		o[m].Server++
	}
}

// Added counts a connection by its mode, and whether our end is the client.
func (k *Counters) Added(m conn.Mode, client bool) {
	k.connections[m].Add(1)
	if !client { // rule: internal/host TestCountersByRole: !client -> true
		k.asServer[m].Add(1)
	}
}

// Forgotten counts the payload of a connection that is not there any more, in bytes.
func (k *Counters) Forgotten(m conn.Mode, in, out uint64) {
	k.bytesIn[m].Add(in)
	k.bytesOut[m].Add(out)
}

// HandshakeDone counts a handshake that made an SMC connection, and its time.
func (k *Counters) HandshakeDone(took time.Duration) {
	k.handshakesOK.Add(1)
	k.times.add(took)
}

// HandshakeFailed counts a handshake that ended its TCP connection.
func (k *Counters) HandshakeFailed(reason string) {
	k.handshakesFailed.Add(1)
	k.Ended("handshake", reason) // rule: internal/host TestSMCRSilence
}

// ConnectionFailed counts a connection that did not end in order.
func (k *Counters) ConnectionFailed(reason string) {
	k.Ended("connection", reason) // rule: internal/host TestSMCRDataLies
}

// FailedOver counts a link of SMC-R whose connections went on over others.
func (k *Counters) FailedOver() { k.failovers.Add(1) }

// FellBack counts a connection that went on over TCP, and whether our end is the client.
func (k *Counters) FellBack(r clc.Reason, client bool) {
	if r.Code == clc.DiagNoRunDir { // with the error of the time: they count together
		r = clc.Lookup(r.Code, clc.OSUnspecified)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fallbacks == nil {
		k.fallbacks = make(map[clc.Reason]fallbackCount)
	}
	if _, ok := k.fallbacks[r]; !ok && len(k.fallbacks) >= maxFallbackReasons {
		r = clc.Lookup(clc.DiagNone, clc.OSUnspecified) // a peer makes up reasons
	}
	n := k.fallbacks[r]
	n.all++
	if !client { // rule: internal/host TestCountersByRole: !client -> client
		n.asServer++
	}
	k.fallbacks[r] = n
}

// Ends are counted by kind and reason, so that an operator with reset connections learns the
// actions of peers. The reasons are our own words: a peer's message is part of one only where it
// has few possible values.

// An endKey is the kind and the reason of ends that are counted together.
type endKey struct{ what, reason string }

// Ended counts an end: of a kind that [control.EndCount] names, for a reason.
func (k *Counters) Ended(what, reason string) {
	key := endKey{what, reason}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ends == nil {
		k.ends = make(map[endKey]uint64)
	}
	if _, ok := k.ends[key]; !ok && len(k.ends) >= maxEndReasons {
		key.reason = "other"
	}
	k.ends[key]++
}

// endStatus lists the ends, the most frequent first. k.mu is held.
func (k *Counters) endStatus() []control.EndCount {
	list := make([]control.EndCount, 0, len(k.ends))
	for key, n := range k.ends {
		list = append(list, control.EndCount{What: key.what, Reason: key.reason, Count: n})
	}
	slices.SortFunc(list, control.CompareEnds)
	return list
}

// Status returns all counters. They lack the bytes that live connections have moved.
func (k *Counters) Status() control.StatusCounters {
	s := control.StatusCounters{
		Connections:      make(map[string]uint64),
		AsServer:         make(map[string]uint64),
		Bytes:            make(map[string]control.ByteCount),
		HandshakesOK:     k.handshakesOK.Load(),
		HandshakesFailed: k.handshakesFailed.Load(),
		HandshakeTimes:   k.times.status(),
		Failovers:        k.failovers.Load(),
		BuffersFull:      k.Data.Full.Load(),
		Fallbacks:        []control.FallbackCount{},
		DoorbellsRung:    k.Data.Rings.Load(),
		Sleeps:           k.Data.Sleeps.Load(),
		Spins:            k.Data.Spins.Load(),
	}
	s.CLC, s.LLC = k.messages.status()
	for m := conn.ModeTCP; m <= conn.ModeUnix; m++ {
		if m == conn.ModeUnix && k.connections[m].Load() == 0 {
			continue // there are no programs of 'gosmc run', on most machines
		}
		s.AsServer[m.String()] = k.asServer[m].Load() // before all: it is never more
		s.Connections[m.String()] = k.connections[m].Load()
		s.Bytes[m.String()] = control.ByteCount{In: k.bytesIn[m].Load(), Out: k.bytesOut[m].Load()}
	}
	k.mu.Lock()
	for r, n := range k.fallbacks {
		s.Fallbacks = append(s.Fallbacks, control.FallbackCount{
			Code: control.ReasonCode(r.Code), Tag: r.Tag, Text: r.Sentence,
			Count: n.all, AsServer: n.asServer,
		})
	}
	s.Ends = k.endStatus()
	k.mu.Unlock()
	sort.Slice(s.Fallbacks, func(i, j int) bool {
		a, b := s.Fallbacks[i], s.Fallbacks[j]
		return a.Count > b.Count || a.Count == b.Count && a.Code < b.Code
	})
	return s
}

// messageCounters count CLC and LLC messages by type: index 0 is for bytes that are no message.
type messageCounters struct {
	clc [clc.TypeDecline + 1]twoWays
	llc [llc.TypeDeleteRKey + 1]twoWays
}

// twoWays counts the messages received, and the messages sent.
type twoWays [2]atomic.Uint64

func (w *twoWays) add(sent bool) {
	if sent {
		w[1].Add(1)
	} else {
		w[0].Add(1)
	}
}

// CLC counts a message of CLC as it is on the wire.
func (k *Counters) CLC(b []byte, sent bool) { k.messages.countCLC(b, sent) }

// LLC counts a message of LLC as it is on the wire.
func (k *Counters) LLC(b []byte, sent bool) { k.messages.countLLC(b, sent) }

// countCLC is [Counters.CLC].
func (m *messageCounters) countCLC(b []byte, sent bool) {
	typ := clc.Type(0)
	if len(b) > 4 && b[0] == 0xe2 && b[1] == 0xd4 && b[2] == 0xc3 && clc.Type(b[4]) <= clc.TypeDecline {
		typ = clc.Type(b[4])
	}
	m.clc[typ].add(sent)
}

// countLLC is [Counters.LLC].
func (m *messageCounters) countLLC(b []byte, sent bool) {
	typ := llc.Type(0)
	if len(b) > 0 && llc.Type(b[0]&0x0f) <= llc.TypeDeleteRKey { // the upper half is the version
		typ = llc.Type(b[0] & 0x0f)
	}
	m.llc[typ].add(sent)
}

// status lists the types that there were.
func (m *messageCounters) status() (ofCLC, ofLLC []control.MessageCount) {
	list := func(list []control.MessageCount, index int, name string, w *twoWays) []control.MessageCount {
		c := control.MessageCount{Type: name, Sent: w[1].Load(), Rcvd: w[0].Load()}
		if index == 0 {
			c.Type = "malformed"
		}
		if c.Sent+c.Rcvd > 0 {
			list = append(list, c)
		}
		return list
	}
	for i := range m.clc {
		ofCLC = list(ofCLC, i, clc.Type(i).String(), &m.clc[i])
	}
	for i := range m.llc {
		ofLLC = list(ofLLC, i, llc.Type(i).String(), &m.llc[i])
	}
	return ofCLC, ofLLC
}

// handshakeTimes is a histogram of the time that handshakes took. The last count is of
// those that took longer than every bound.
type handshakeTimes struct {
	counts [len(control.HandshakeBounds) + 1]atomic.Uint64
	sum    atomic.Uint64 // nanoseconds
}

// add counts a handshake.
func (h *handshakeTimes) add(took time.Duration) {
	i := 0
	for i < len(control.HandshakeBounds) && took > control.HandshakeBounds[i] {
		i++
	}
	h.sum.Add(uint64(max(took, 0)))
	h.counts[i].Add(1)
}

func (h *handshakeTimes) status() (t control.HandshakeTimes) {
	for i := range h.counts {
		t.Counts[i] = h.counts[i].Load()
	}
	t.Nanoseconds = h.sum.Load()
	return t
}
