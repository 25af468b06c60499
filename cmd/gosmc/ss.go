package main

import (
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/control"
	supervise "github.com/gosmc/smc/internal/run"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/wire/clc"
)

// addressWidth is how much of an address ss shows without --wide, as smcss does.
const addressWidth = 23

// modeUnix is the mode of a connection that 'gosmc run' has moved to a pair of Unix sockets.
const modeUnix = supervise.ModeUnix

// otherNetNS marks a line whose addresses cannot be reached from here, or are somebody else's here.
const otherNetNS = "in another network namespace"

// An ssReport is what ss --json prints. Queues and buffers are bytes.
type ssReport struct {
	Schema      int            `json:"schema"`
	Time        time.Time      `json:"time"`
	Connections []ssConn       `json:"connections"`
	Listeners   []ssListener   `json:"listeners"`
	Omitted     int            `json:"connections_omitted"` // that a host has beyond what it reports
	Errors      []survey.Error `json:"errors"`
	Denied      int            `json:"other_users"` // hosts that the caller may not ask

	loops int // ends of connections between programs of 'gosmc run' that are TCP for no reason that can be seen
}

type ssConn struct {
	control.StatusConn
	PID        int    `json:"pid"`
	Command    string `json:"command"`
	Dir        string `json:"dir"`
	OtherNetNS bool   `json:"other_netns"` // its addresses are those of another network namespace than ours
}

type ssListener struct {
	control.StatusListener
	PID        int    `json:"pid"`
	Command    string `json:"command"`
	Dir        string `json:"dir"`
	OtherNetNS bool   `json:"other_netns"` // as that of a connection
}

func newSSCommand() *cobra.Command {
	var flags gatherFlags
	var all, listening, wide bool
	cmd := &cobra.Command{
		Use:   "ss [flags]",
		Short: "Show the connections of all hosts on this machine",
		Long: `Show every connection that a process on this machine handles with gosmc, and for plain
TCP connections why they do not use SMC. A connection within the machine has two ends and two lines.

Recv-Q is received and not yet read by the program, Send-Q written and not yet taken by the
peer, both in bytes. Addresses in another network namespace than that of this command are marked: 127.0.0.1
there is not 127.0.0.1 here. The mode Unix is that of programs started by 'gosmc run', in this network namespace; their TCP connections
are shown, too. LG-ID is the connection's link group in its host, and Link, of SMC-R, the link's number in
that: see 'gosmc linkgroup' and 'gosmc link'.

The exit status is 1 if the run directory that --dir or GOSMC_DIR names does not exist.`,
		Example: `  gosmc ss
  gosmc ss -a --wide
  gosmc ss --json | jq '.connections[] | select(.mode == "TCP") | .reason'`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && listening {
				return usagef("--all and --listening exclude each other")
			}
			g := flags.gather(cmd.Context())
			r := newSSReport(&g, all || !listening, all || listening)
			if (all || !listening) && flags.dir == "" {
				r.addMoved()
			}
			if flags.json {
				return errors.Join(writeJSON(cmd.OutOrStdout(), r), incomplete(&g))
			}
			if err := r.write(cmd.OutOrStdout(), wide); err != nil {
				return err
			}
			complain(cmd, &g)
			if r.loops > 0 {
				cmd.PrintErrf("gosmc: %d ends are TCP though both programs were started by 'gosmc run': docs/run.md has what is moved\n", r.loops)
			}
			if r.Omitted > 0 {
				cmd.PrintErrf("gosmc: %d more connections are not listed by their hosts\n", r.Omitted)
			}
			return incomplete(&g)
		},
	}
	flags.register(cmd)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show connections and listeners")
	cmd.Flags().BoolVarP(&listening, "listening", "l", false, "show listeners only")
	cmd.Flags().BoolVarP(&wide, "wide", "W", false, "do not cut addresses")
	return cmd
}

func newSSReport(g *survey.Answers, connections, listeners bool) ssReport {
	r := ssReport{
		Schema: jsonSchema, Time: time.Now(), Connections: []ssConn{}, Listeners: []ssListener{},
		Errors: g.Errors, Denied: g.Denied,
	}
	if r.Errors == nil {
		r.Errors = []survey.Error{}
	}
	for _, h := range g.Hosts {
		if connections {
			for _, c := range h.Connections {
				r.Connections = append(r.Connections, ssConn{c, h.PID, h.Command, h.Dir, g.Elsewhere(c.NetNS)})
			}
			r.Omitted += h.ConnectionsOmitted
		}
		if listeners {
			for _, l := range h.Listeners {
				r.Listeners = append(r.Listeners, ssListener{l, h.PID, h.Command, h.Dir, g.Elsewhere(l.NetNS)})
			}
		}
	}
	return r
}

// addMoved adds the connections of 'gosmc run', which are the kernel's and in no run directory; ends that programs of package smc have are there already. Where the
// kernel cannot be asked about Unix sockets there is nothing to say: neither can it say whether there are any.
func (r *ssReport) addMoved() {
	list, _ := supervise.Connections()
	for _, c := range list {
		own := func(x ssConn) bool { return x.Mode == modeUnix && x.Inode == c.Inode && x.PID == c.PID }
		if i := slices.IndexFunc(r.Connections, own); i >= 0 {
			r.Connections[i].SendQ, r.Connections[i].Reason = c.SendQ, movedBy(c) // what is queued is bytes here, not memory
			continue
		}
		role := "client"
		if c.Server {
			role = "server"
		}
		r.Connections = append(r.Connections, ssConn{StatusConn: control.StatusConn{
			State: "Active", Local: c.Local.String(), Peer: c.Peer.String(), Role: role, Mode: modeUnix,
			UID: c.UID, Inode: c.Inode, RecvQ: c.RecvQ, SendQ: c.SendQ, Reason: movedBy(c),
		}, PID: c.PID, Command: c.Command})
	}
	stayed, _ := supervise.TCPConnections()
	for _, c := range stayed {
		own := func(x ssConn) bool { return x.Inode == c.Inode && x.PID == c.PID } // of a program that uses package smc, too
		if slices.ContainsFunc(r.Connections, own) {
			continue
		}
		role, reason := "client", c.Reason.Sentence
		if c.Server {
			role = "server"
		}
		if c.Reason.Code == clc.DiagNone {
			reason = loops
			r.loops++
		}
		r.Connections = append(r.Connections, ssConn{StatusConn: control.StatusConn{
			State: "Active", Local: c.Local.String(), Peer: c.Peer.String(), Role: role, Mode: "TCP", ReasonCode: control.ReasonCode(c.Reason.Code), Reason: reason,
			UID: c.UID, Inode: c.Inode, RecvQ: c.RecvQ, SendQ: c.SendQ,
		}, PID: c.PID, Command: c.Command})
	}
}

// loops is said of a connection for whose being TCP no reason can be seen.
const loops = "Both ends were started by 'gosmc run', and it is TCP."

// movedBy says how the bytes of an end go.
func movedBy(c supervise.Connection) string {
	switch {
	case c.Sends && c.Receives:
		return "on rings"
	case c.Sends:
		return "sends on a ring"
	case c.Receives:
		return "receives on a ring"
	}
	return "in-band"
}

func (r *ssReport) write(w io.Writer, wide bool) error {
	address := func(s string) string {
		if s = printable(s); wide {
			return s
		}
		return cutAddress(s, addressWidth)
	}
	t := table{columns: []column{
		{title: "State"}, {title: "Recv-Q", right: true}, {title: "Send-Q", right: true},
		{title: "Local Address"}, {title: "Peer Address"}, {title: "Mode"}, {title: "LG-ID"}, {title: "Link"}, {title: "Process"}, {},
	}}
	for _, l := range r.Listeners {
		mark := ""
		if l.OtherNetNS {
			mark = otherNetNS
		}
		t.add("LISTEN", strconv.Itoa(l.Pending), "0", address(l.Local), "*", "", "", "", process(l.PID, l.Command), mark)
	}
	for _, c := range r.Connections {
		mode := orNA(c.Mode)
		if c.Version != "" {
			mode += " " + printable(c.Version)
		}
		if c.ReasonCode != 0 {
			mode += " " + c.ReasonCode.String()
		}
		group, link := "", ""
		if c.Group != 0 {
			group = lgID(c.Group)
		}
		if c.Link != 0 {
			link = strconv.Itoa(int(c.Link))
		}
		var notes []string
		if c.OtherNetNS {
			notes = append(notes, otherNetNS)
		}
		if c.Reason != "" {
			notes = append(notes, printable(c.Reason))
		}
		t.add(orNA(c.State), strconv.FormatUint(c.RecvQ, 10), strconv.FormatUint(c.SendQ, 10),
			address(c.Local), address(c.Peer), mode, group, link, process(c.PID, c.Command), strings.Join(notes, "; "))
	}
	return t.write(w)
}

// cutAddress shortens host:port to width characters, with two dots in front of the port.
func cutAddress(addr string, width int) string {
	if utf8.RuneCountInString(addr) <= width {
		return addr
	}
	h, port, err := net.SplitHostPort(addr)
	if err != nil {
		h, port = addr, ""
	}
	if len(addr) > 0 && addr[0] == '[' {
		h = "[" + h
	}
	tail := ".." + ":" + port
	if port == "" {
		tail = ".."
	}
	keep := max(width-len(tail), 0)
	runes := []rune(h)
	return string(runes[:min(keep, len(runes))]) + tail
}
