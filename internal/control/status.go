package control

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Status is a snapshot of one host, as its control socket reports it. Sizes are bytes.
type Status struct {
	Version  int       `json:"version"` // Version
	Time     time.Time `json:"time"`    // when the snapshot was taken
	Started  time.Time `json:"started"` // when the host was made
	PID      int       `json:"pid"`
	Command  string    `json:"command"` // base name of the program
	UID      uint32    `json:"uid"`
	Name     string    `json:"name"`      // of the control socket
	HostName string    `json:"host_name"` // as sent to peers: SMCv2 first contact extension
	GID      string    `json:"gid"`       // extended GID of the shared-memory device
	SEID     string    `json:"seid"`      // empty: not used
	UEIDs    []string  `json:"ueids"`
	Dir      string    `json:"dir"` // run directory

	Capabilities StatusCapabilities `json:"capabilities"`
	Limits       []StatusLimit      `json:"limits"`
	Counters     StatusCounters     `json:"counters"`
	Listeners    []StatusListener   `json:"listeners"`
	Connections  []StatusConn       `json:"connections"`
	Groups       []StatusGroup      `json:"link_groups"` // in the order of their IDs
	Devices      []StatusDevice     `json:"devices"`     // of SMC-R

	// Programs are the processes that a supervisor of 'gosmc run' serves, and those that have
	// connected to them; empty for other hosts.
	Programs []StatusProgram `json:"programs,omitempty"`

	// Tallies are the bytes of ends of connections that programs of a supervisor of 'gosmc run' have,
	// or had a moment ago, in no order; empty for other hosts.
	Tallies []StatusTally `json:"tallies,omitempty"`

	// Config says how the program follows the configuration file; nil: it keeps the values that it
	// had when it began, as releases do that do not know of this.
	Config *StatusConfig `json:"config,omitempty"`

	// ConnectionsOmitted counts live connections that did not fit into Connections.
	ConnectionsOmitted int `json:"connections_omitted"`
}

// A StatusTally has the bytes of one end of a connection, as far as the programs of one supervisor
// have moved them. Programs of another supervisor may have the end, too: then there are more.
type StatusTally struct {
	Cookie uint64 `json:"cookie"` // of the end's socket, as SO_COOKIE
	In     uint64 `json:"bytes_in"`
	Out    uint64 `json:"bytes_out"`
	// Lent counts the descriptors of the end that were given to programs, less those that programs
	// have come to count here. If the sum for an end is not 0, a program may move bytes that nobody
	// counts.
	Lent int32 `json:"lent,omitempty"`
}

// StatusConfig says how a host follows the configuration file.
type StatusConfig struct {
	File  string `json:"file"`
	Error string `json:"error,omitempty"` // of the file as it is now: the values before are in force
	Live  string `json:"live"`            // words whose values in the file are in force, with spaces
}

// A StatusProgram is a process behind a host that is none itself.
type StatusProgram struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	// Caller says that it has connected to programs of the supervisor and is none of them: its own
	// supervisor has it, too.
	Caller bool `json:"caller,omitempty"`
}

// StatusCapabilities has the capabilities of a host, with the reason for each that it lacks.
type StatusCapabilities struct {
	SMCDv2          Capability `json:"smc_d_v2"`
	SMCDv1          Capability `json:"smc_d_v1"`
	SMCRv2          Capability `json:"smc_r_v2"`
	SMCRv1          Capability `json:"smc_r_v1"`
	TCPOption       Capability `json:"tcp_option"`       // TCP option 254 on this host's SYNs
	LocalRendezvous Capability `json:"local_rendezvous"` // announcements in the run directory
}

// A Capability is one thing that a host can or cannot do.
type Capability struct {
	Available bool   `json:"available"`
	Why       string `json:"why,omitempty"`    // why not, in words; empty when available
	Advice    string `json:"advice,omitempty"` // the remedy, where there is one
}

// A StatusLimit is a named bound and how much of it is in use.
type StatusLimit struct {
	Name  string `json:"name"`  // such as "memory", "peers", "open files": docs/limits.md explains them
	Limit int64  `json:"limit"` // -1: none
	Used  int64  `json:"used"`  // -1: not counted
	Unit  string `json:"unit"`  // "bytes", "seconds", or empty for a count
}

// StatusCounters count from the start of the host. Keys of the maps are modes: "TCP", "SMC-D", "SMC-R".
type StatusCounters struct {
	Connections map[string]uint64 `json:"connections"` // by the mode they ended up in
	// AsServer has the Connections that the program has accepted.
	AsServer     map[string]uint64    `json:"connections_as_server"`
	Bytes        map[string]ByteCount `json:"bytes"` // payload
	HandshakesOK uint64               `json:"handshakes_ok"`
	// ended the connection; a fallback is not a failure
	HandshakesFailed uint64         `json:"handshakes_failed"`
	HandshakeTimes   HandshakeTimes `json:"handshake_times"` // of HandshakesOK
	// Failovers counts links of SMC-R whose connections went on over others.
	Failovers uint64 `json:"failovers"`
	// BuffersFull counts how often a writer found no room, and waited.
	BuffersFull uint64          `json:"buffers_full"`
	Fallbacks   []FallbackCount `json:"fallbacks"`
	// handshakes, connections and link groups that ended for a reason of their own
	Ends          []EndCount `json:"ends"`
	DoorbellsRung uint64     `json:"doorbells_rung"`
	Sleeps        uint64     `json:"sleeps"` // waits that ended asleep
	Spins         uint64     `json:"spins"`  // waits that ended while spinning
	// by type, those that there were; other bytes are "malformed"
	CLC      []MessageCount `json:"clc"`
	LLC      []MessageCount `json:"llc"`
	Groups   map[string]int `json:"link_groups"` // that there are now, by mode
	RMBBytes int64          `json:"rmb_bytes"`   // of the RMBs of SMC-R, now
}

// AddBytes adds payload to Bytes.
func (c *StatusCounters) AddBytes(mode string, in, out uint64) {
	b := c.Bytes[mode]
	b.In += in
	b.Out += out
	c.Bytes[mode] = b
}

// A ByteCount is payload in both directions, in bytes.
type ByteCount struct {
	In  uint64 `json:"in"`
	Out uint64 `json:"out"`
}

// A FallbackCount says how many connections went on over TCP for one reason.
type FallbackCount struct {
	Code  ReasonCode `json:"reason_code"`
	Tag   string     `json:"tag"`    // short name, such as PEER_NO_SMC
	Text  string     `json:"reason"` // in words
	Count uint64     `json:"count"`

	AsServer uint64 `json:"as_server"` // of Count, those that the program has accepted
}

// HandshakeBounds are the upper bounds of the first counts of [HandshakeTimes]. They do not change
// within a version of the protocol. A handshake of SMC-D takes some 100 microseconds, one that
// waits for a filtered port two seconds.
var HandshakeBounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 10 * time.Second,
}

// HandshakeTimes is a histogram of the time from a TCP connection to an SMC connection.
type HandshakeTimes struct {
	// Counts has the handshakes that took no longer than the bound with the same index, and longer
	// than the bound before. The last one has those that took longer than all bounds.
	Counts      [len(HandshakeBounds) + 1]uint64 `json:"counts"`
	Nanoseconds uint64                           `json:"nanoseconds"` // their sum
}

// An EndCount says how many of something ended for one reason: handshakes that ended their TCP
// connection, connections that did not end in order, and link groups of SMC-R, these also in order.
type EndCount struct {
	What   string `json:"what"`   // "handshake", "connection", "link group"
	Reason string `json:"reason"` // in words, such as "link failed: receive: local length error"
	Count  uint64 `json:"count"`
}

// CompareEnds orders ends: the most frequent first.
func CompareEnds(a, b EndCount) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.What, b.What),
		strings.Compare(a.Reason, b.Reason))
}

// A StatusListener is one listening socket of a host.
type StatusListener struct {
	Local   string `json:"local"`   // address and port
	Require string `json:"require"` // "any", "smc", "smc-d", "smc-r"
	UID     uint32 `json:"uid"`     // owner of the socket
	Inode   uint64 `json:"inode"`   // of the TCP socket
	// the network namespace of the socket, by the number that SO_NETNS_COOKIE has; 0: not known
	NetNS    uint64 `json:"netns"`
	Accepted uint64 `json:"accepted"` // connections since it was opened
	Pending  int    `json:"pending"`  // in a handshake, or not yet accepted by the application
}

// A StatusConn is one connection of a host, in whatever mode.
type StatusConn struct {
	State       string     `json:"state"` // the specification's name: Active, PeerCloseWait1, ...
	Local       string     `json:"local"`
	Peer        string     `json:"peer"`
	Role        string     `json:"role"`        // "client" or "server"
	Mode        string     `json:"mode"`        // "TCP", "SMC-D", "SMC-R"
	Version     string     `json:"version"`     // "2.1"; empty for TCP
	EID         string     `json:"eid"`         // the one agreed on
	Group       uint32     `json:"lg_id"`       // its link group; 0: none
	Link        uint8      `json:"link"`        // of SMC-R: the number of its link in the group; 0: none
	ReasonCode  ReasonCode `json:"reason_code"` // 0 unless Mode is TCP
	Reason      string     `json:"reason"`      // in words
	UID         uint32     `json:"uid"`
	Inode       uint64     `json:"inode"`  // of the TCP socket
	NetNS       uint64     `json:"netns"`  // as for a listener
	RecvQ       uint64     `json:"recv_q"` // received, not yet read by the application
	SendQ       uint64     `json:"send_q"` // written, not yet consumed by the peer
	RcvBuf      uint64     `json:"rcvbuf"`
	SndBuf      uint64     `json:"sndbuf"`
	BytesIn     uint64     `json:"bytes_in"`
	BytesOut    uint64     `json:"bytes_out"`
	PeerPID     int        `json:"peer_pid"` // 0: on another host, or unknown
	PeerCommand string     `json:"peer_command"`
	PeerHost    string     `json:"peer_host"`
	AgeSeconds  float64    `json:"age_seconds"`
}

// A ReasonCode is the peer diagnosis of a Decline: RFC 7609 p.105. Its text form is the one of
// the Linux tools, 0x03010000, and empty for 0, which is no reason.
type ReasonCode uint32

func (c ReasonCode) String() string {
	if c == 0 {
		return ""
	}
	return fmt.Sprintf("0x%08x", uint32(c))
}

// Suffix returns the text form in brackets, behind a space, for the end of a sentence; "" for 0.
func (c ReasonCode) Suffix() string {
	if c == 0 {
		return ""
	}
	return " (" + c.String() + ")"
}

// MarshalText returns the text form.
func (c ReasonCode) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText takes the text form and nothing else.
func (c *ReasonCode) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*c = 0
		return nil
	}
	digits, ok := strings.CutPrefix(string(b), "0x")
	v, err := strconv.ParseUint(digits, 16, 32)
	if !ok || err != nil {
		return fmt.Errorf("reason code %q: want 0x and 8 hexadecimal digits", b)
	}
	*c = ReasonCode(v)
	return nil
}
