package smc

import (
	"cmp"
	"slices"
	"time"
)

// HostStats are the numbers of a [Host] at one time: counters since Started, which only grow, and
// gauges. 'gosmc stats' and 'gosmc metrics' show the same numbers of this process, if nothing is
// counted in between.
//
// The JSON form is for [expvar] and the like. Its names stay as they are; later releases may add some.
// Durations are nanoseconds there.
type HostStats struct {
	Started time.Time `json:"started"` // when the host was made

	// Modes has the connections and their payload. Every mode is there, also one without connections.
	Modes map[Mode]ModeStats `json:"modes"`

	// Fallbacks has the connections that stayed TCP: one entry for each code, the most frequent
	// first, 256 at most. A connection that the application made plain TCP is one, too.
	Fallbacks []FallbackStats `json:"fallbacks"`

	Handshakes HandshakeStats `json:"handshakes"`

	// Ends has the handshakes that ended their TCP connection, the connections that did not end in
	// order, and the links and link groups of SMC-R that ended: the most frequent first, some 256 at
	// most.
	Ends []EndStats `json:"ends"`

	// Failovers counts links of SMC-R whose connections went on over other links.
	Failovers uint64 `json:"failovers"`

	// BuffersFull counts writes that found no room in the peer's buffer and waited.
	BuffersFull uint64 `json:"buffers_full"`

	Doorbells     uint64 `json:"doorbells"`      // wakeups of a peer
	WaitsSpinning uint64 `json:"waits_spinning"` // waits for a peer that ended while spinning
	WaitsAsleep   uint64 `json:"waits_asleep"`   // waits for a peer that ended asleep

	// LinkGroups has the link groups that there are, for SMC-D and SMC-R. Links has the links of
	// SMC-R by their state: LINK_ACTIVATING, LINK_ACTIVE, LINK_LEAVING, LINK_INACTIVE. All four are
	// there.
	LinkGroups map[Mode]int   `json:"link_groups"`
	Links      map[string]int `json:"links"`

	RMBBytes int64 `json:"rmb_bytes"` // memory of the receive buffers of SMC-R, in bytes

	// Limits are those limits of docs/limits.md whose use is counted, such as "memory".
	Limits []LimitStats `json:"limits"`
}

// ModeStats are the connections of one mode. Each counts with the end that is in this host: a
// connection between two programs of one machine has two ends, and each host counts its own.
type ModeStats struct {
	OpenClient int `json:"open_client"` // that there are now and were dialed
	OpenServer int `json:"open_server"` // that there are now and were accepted

	Client uint64 `json:"client"` // since Started, with those that there are
	Server uint64 `json:"server"`

	BytesRead    uint64 `json:"bytes_read"`    // payload that the application has read
	BytesWritten uint64 `json:"bytes_written"` // payload that the application has written
}

// FallbackStats are the connections that stayed TCP for one reason.
type FallbackStats struct {
	Code   uint32 `json:"code"` // see [Reason]
	Tag    string `json:"tag"`
	Text   string `json:"text"`
	Client uint64 `json:"client"` // dialed
	Server uint64 `json:"server"` // accepted, or made of a file
}

// HandshakeStats are the handshakes of a host. One that led to TCP is none of them: it is a fallback.
type HandshakeStats struct {
	Done   uint64 `json:"done"`   // made an SMC connection
	Failed uint64 `json:"failed"` // ended its TCP connection

	// Took has the time of those that are Done, from the TCP connection to the SMC connection.
	Took Histogram `json:"took"`
}

// A Histogram counts durations.
type Histogram struct {
	// Bounds are upper bounds, in ascending order; they do not change while the program runs. Counts
	// has one entry more. Counts[i] are the durations of at most Bounds[i] and more than
	// Bounds[i-1], and the last entry those that are longer than all bounds.
	Bounds []time.Duration `json:"bounds_ns"`
	Counts []uint64        `json:"counts"`

	Sum time.Duration `json:"sum_ns"` // of all durations
}

// Count returns the number of durations.
func (h *Histogram) Count() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// EndStats say how many of something have ended for one reason.
type EndStats struct {
	Of     string `json:"of"`     // "handshake", "connection", "link", "link group"
	Reason string `json:"reason"` // in words, which may change between releases
	Count  uint64 `json:"count"`
}

// LimitStats are a limit, and how much of it is in use.
type LimitStats struct {
	Name  string `json:"name"` // such as "memory", "peers", "open files"
	Used  int64  `json:"used"`
	Limit int64  `json:"limit"` // above 0
	Unit  string `json:"unit"`  // "bytes", or empty for a count
}

// Stats returns the numbers of the host now. It takes nothing from the system, and keeps no idle host
// awake: an unused host, and one that has ended, can be asked, too.
//
// The result is the caller's. Any goroutine may call Stats. It allocates some 4 KB, and looks at each
// open connection while Dial, Accept and Close wait: 10,000 connections take 0.7 ms. Call it
// once for each export, not for each number.
func (h *Host) Stats() HostStats {
	s := HostStats{
		Modes:      make(map[Mode]ModeStats),
		Fallbacks:  []FallbackStats{},
		Ends:       []EndStats{},
		LinkGroups: map[Mode]int{ModeSMCD: 0, ModeSMCR: 0},
		Links: map[string]int{"LINK_ACTIVATING": 0, "LINK_ACTIVE": 0, "LINK_LEAVING": 0,
			"LINK_INACTIVE": 0},
		Limits: []LimitStats{},
	}
	for m := range modeNames {
		s.Modes[Mode(m)] = ModeStats{}
	}
	s.fill(h.or())
	return s
}

// addFallback adds connections to the entry of a code. Reasons can differ in more than the code, and
// series of metrics are by code.
func (s *HostStats) addFallback(f FallbackStats) {
	i := slices.IndexFunc(s.Fallbacks, func(e FallbackStats) bool { return e.Code == f.Code })
	if i < 0 {
		s.Fallbacks = append(s.Fallbacks, f)
		return
	}
	e := &s.Fallbacks[i]
	e.Client += f.Client // rule: TestStatsFallbacks
	e.Server += f.Server
}

// sortFallbacks puts the most frequent first.
func (s *HostStats) sortFallbacks() {
	slices.SortFunc(s.Fallbacks, func(a, b FallbackStats) int {
		return cmp.Or(cmp.Compare(b.Client+b.Server, a.Client+a.Server), cmp.Compare(a.Code, b.Code))
	})
}
