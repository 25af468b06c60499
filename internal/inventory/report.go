package inventory

import (
	"os"
	"slices"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/wire/clc"
)

// A Report has the connections and listeners of the machine, as far as the caller may see them.
type Report struct {
	Connections []Conn         `json:"connections"`
	Listeners   []Listener     `json:"listeners"`
	Omitted     int            `json:"connections_omitted"` // that a host has beyond what it reports
	Errors      []survey.Error `json:"errors"`
	Denied      int            `json:"other_users"` // hosts that the caller may not ask

	// the connections by server; nil unless somebody has set it
	Services []Service `json:"services,omitempty"`

	tallies tallies
}

// ModeUnix is the mode of a connection that 'gosmc run' has moved to a pair of Unix sockets.
const ModeUnix = proto.ModeUnix

// A Conn is one end of a connection.
type Conn struct {
	control.StatusConn
	PID        int    `json:"pid"`
	Command    string `json:"command"`
	Dir        string `json:"dir"`
	OtherNetNS bool   `json:"other_netns"` // its addresses are in another network namespace
	// Rings says which of its directions go by a ring in shared memory, of mode Unix: "in", "out",
	// "both"; empty: none.
	Rings string `json:"rings,omitempty"`

	// Place is where the process runs, and the next three are its parts for the process at the other
	// end. PeerUID is the user of the socket there, if the kernel has said that.
	Place
	PeerUser      string  `json:"peer_user,omitempty"`
	PeerNamespace string  `json:"peer_namespace,omitempty"`
	PeerContainer string  `json:"peer_container,omitempty"`
	PeerUID       *uint32 `json:"peer_uid,omitempty"`

	// Source is [SourceKernel] for a connection of the kernel's SMC, and empty for ours.
	Source string `json:"source,omitempty"`

	// Cause and Advice say more of a Reason for TCP, and the remedy. Bare is the process at the
	// other end, of a connection of 'gosmc run' to a program that was not started by it.
	Cause  string `json:"cause,omitempty"`
	Advice string `json:"advice,omitempty"`
	Bare   int    `json:"bare_pid,omitempty"`

	// These stand in for the fields of StatusConn with the same names. They are absent where nobody
	// knows them: of connections of 'gosmc run' only bytes are counted.
	RcvBuf     *uint64  `json:"rcvbuf,omitempty"`
	SndBuf     *uint64  `json:"sndbuf,omitempty"`
	BytesIn    *uint64  `json:"bytes_in,omitempty"`
	BytesOut   *uint64  `json:"bytes_out,omitempty"`
	AgeSeconds *float64 `json:"age_seconds,omitempty"`
}

// A Listener is a listening socket.
type Listener struct {
	control.StatusListener
	PID        int    `json:"pid"`
	Command    string `json:"command"`
	Dir        string `json:"dir"`
	OtherNetNS bool   `json:"other_netns"` // as in Conn
	// Mode is the mode of connections from clients on this machine. It is "Unix" for a program of
	// 'gosmc run', and empty for others.
	Mode string `json:"mode,omitempty"`
	// Unannounced says that clients of 'gosmc run' do not find the listener, so that their
	// connections are TCP.
	Unannounced bool `json:"unannounced,omitempty"`
	// BareConns is how many connections it has accepted from programs of this machine that do not
	// use gosmc, at most: of a program of 'gosmc run', since its start. It is absent if none is known.
	BareConns *uint64 `json:"bare_connections,omitempty"`
	// Source is as in Conn.
	Source string `json:"source,omitempty"`
	Place         // as in Conn
}

// New returns the connections and the listeners of the hosts that have answered, each if asked for.
// Connections that have no host are added by [Report.AddMoved], listeners by [Report.AddServers].
func New(g *survey.Answers, connections, listeners bool) Report {
	r := Report{
		Connections: []Conn{}, Listeners: []Listener{},
		Errors: g.Errors, Denied: g.Denied, tallies: make(tallies),
	}
	if r.Errors == nil {
		r.Errors = []survey.Error{}
	}
	for _, h := range g.Hosts {
		if connections {
			for _, c := range h.Connections {
				r.Connections = append(r.Connections, Conn{
					StatusConn: c, PID: h.PID, Command: h.Command, Dir: h.Dir, OtherNetNS: g.Elsewhere(c.NetNS),
					RcvBuf: &c.RcvBuf, SndBuf: &c.SndBuf, BytesIn: &c.BytesIn, BytesOut: &c.BytesOut, AgeSeconds: &c.AgeSeconds,
				})
			}
			r.Omitted += h.ConnectionsOmitted
			r.tallies.add(&h)
		}
		if listeners {
			for _, l := range h.Listeners {
				r.Listeners = append(r.Listeners, Listener{StatusListener: l, PID: h.PID, Command: h.Command,
					Dir: h.Dir, OtherNetNS: g.Elsewhere(l.NetNS)})
			}
		}
	}
	return r
}

// AddMoved adds the connections of 'gosmc run', which the kernel knows and no host. They are the
// connections of programs with the run directory dir, or of all programs if dir is empty. Ends that
// programs of package smc have are there already. They are in this network namespace, which is
// netns. If the kernel cannot be asked about Unix sockets it cannot say whether there are any, and
// none are added.
func (r *Report) AddMoved(dir string, netns uint64) {
	list, _ := inspect.Connections()
	for _, c := range list {
		own := func(x Conn) bool { return x.Mode == ModeUnix && x.Inode == c.Inode && x.PID == c.PID }
		if i := slices.IndexFunc(r.Connections, own); i >= 0 {
			// the kernel counts memory for SendQ, not bytes
			r.Connections[i].SendQ, r.Connections[i].Rings = c.SendQ, ringsOf(c)
			continue
		}
		of := inspect.RunDir(c.PID)
		if !Within(of, dir) {
			continue
		}
		in, out := r.tallies.bytes(&c)
		r.Connections = append(r.Connections, Conn{StatusConn: control.StatusConn{
			State: "Active", Local: c.Local.String(), Peer: c.Peer.String(), Role: roleOf(c), Mode: ModeUnix,
			UID: c.UID, Inode: c.Inode, NetNS: netns, RecvQ: c.RecvQ, SendQ: c.SendQ, PeerPID: c.PeerPID, PeerCommand: c.PeerCommand,
		}, PID: c.PID, Command: c.Command, Dir: of, Rings: ringsOf(c), BytesIn: in, BytesOut: out})
	}
	stayed, _ := inspect.TCPConnections()
	for _, c := range stayed {
		// of a program that uses package smc, too
		own := func(x Conn) bool { return x.Inode == c.Inode && x.PID == c.PID }
		of := inspect.RunDir(c.PID)
		if slices.ContainsFunc(r.Connections, own) || !Within(of, dir) {
			continue
		}
		reason := c.Reason.Sentence
		switch {
		case c.Ended:
			reason = Ended
		case c.Reason.Code == clc.DiagNone:
			reason = Unexplained
		}
		var in, out *uint64
		if c.Payload.Known {
			in, out = &c.Payload.Received, &c.Payload.Written
		}
		r.Connections = append(r.Connections, Conn{StatusConn: control.StatusConn{
			State: "Active", Local: c.Local.String(), Peer: c.Peer.String(), Role: roleOf(c.Connection), Mode: "TCP", ReasonCode: control.ReasonCode(c.Reason.Code), Reason: reason,
			UID: c.UID, Inode: c.Inode, NetNS: netns, RecvQ: c.RecvQ, SendQ: c.SendQ, PeerPID: c.PeerPID, PeerCommand: c.PeerCommand,
		}, PID: c.PID, Command: c.Command, Dir: of, Bare: c.Bare, PeerUID: c.PeerUID, BytesIn: in,
			BytesOut: out})
	}
	for i := range r.Connections {
		r.Connections[i].Explain()
	}
}

// AddServers adds the sockets that programs of 'gosmc run' listen with, as addMoved adds connections.
func (r *Report) AddServers(dir string, netns uint64) {
	list, _ := inspect.Listeners()
	for _, l := range list {
		own := func(x Listener) bool { return x.Inode == l.Inode && x.PID == l.PID }
		of := inspect.RunDir(l.PID)
		if slices.ContainsFunc(r.Listeners, own) || !Within(of, dir) {
			continue
		}
		r.Listeners = append(r.Listeners, Listener{
			StatusListener: control.StatusListener{Local: l.Local.String(), Require: "any", UID: l.UID,
				Inode: l.Inode, NetNS: netns},
			PID: l.PID, Command: l.Command, Dir: of, Mode: ModeUnix,
			Unannounced: !l.Announced, BareConns: l.Bare,
		})
	}
}

// Within reports whether something of the run directory of is meant by --dir, which is dir, or empty.
func Within(of, dir string) bool {
	if dir == "" {
		return true
	}
	if of == "" {
		return false
	}
	one, err := os.Stat(of)
	if err != nil {
		return false
	}
	other, err := os.Stat(dir)
	return err == nil && os.SameFile(one, other)
}

func roleOf(c inspect.Connection) string {
	if c.Server {
		return "server"
	}
	return "client"
}

// Loops is the remark about a connection that is TCP without a visible reason.
const Unexplained = "Both ends were started by 'gosmc run', and it is TCP."

// Ended is the remark about a connection whose server has no supervisor any more.
const Ended = "The server's supervisor has ended, as if it was killed."

// ringsOf says which directions of an end have rings.
func ringsOf(c inspect.Connection) string {
	switch {
	case c.Sends && c.Receives:
		return "both"
	case c.Sends:
		return "out"
	case c.Receives:
		return "in"
	}
	return ""
}
