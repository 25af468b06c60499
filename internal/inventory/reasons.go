package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/wire/clc"
)

// named is a process with its number, and its command if that is known.
func named(pid int, command string) string { return fmt.Sprintf("%d/%s", pid, cmp.Or(command, "n/a")) }

// CommandWord is the name of a program as a word of a command that a person may copy into a shell. It
// is PROGRAM if the name is not known, or has characters that a shell takes otherwise: programs of
// other users choose their names.
func CommandWord(name string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+@:,-"
	if name == "" || name[0] == '-' || strings.Trim(name, plain) != "" { // rule: TestCommandWord: strings.Trim(name, plain) != "" -> false
		return "PROGRAM"
	}
	return name
}

// Explain gives a connection that is TCP the cause of its reason, and the remedy.
func (c *Conn) Explain() {
	switch {
	case c.Mode != "TCP":
		return
	case c.Reason == Unexplained:
		c.Cause = "The program shares the socket or had set options before connect, the connection is older than the supervisor, or its supervisor has ended."
		c.Advice = "Ask 'gosmc run --explain " + c.Server() + "'; docs/run.md lists what is moved."
		return
	case c.Reason == Ended:
		c.Cause = "Somebody, or the kernel for want of memory, has killed the process 'gosmc run-supervise' of the server. Its connections go on; new ones are TCP."
		c.Advice = "Start the server again."
		return
	case c.ReasonCode == 0:
		return
	}
	r := clc.Lookup(clc.Diagnosis(c.ReasonCode), clc.OSUnspecified)
	c.Cause, c.Advice = r.Cause, r.Advice
	if r.Code == clc.DiagPeerNoSMC && c.Bare != 0 { // rule: cmd/gosmc TestSSWhy
		end := "client"
		if c.Role == "client" {
			end = "server"
		}
		c.Cause = fmt.Sprintf("The %s, %s, was not started by 'gosmc run'.", end,
			named(c.Bare, c.PeerCommand))
		c.Advice = "Start it by 'gosmc run " + CommandWord(c.PeerCommand) + " ...'; a service by 'gosmc service enable NAME'."
	}
}

// Server is the address of the end that has accepted.
func (c *Conn) Server() string {
	if c.Role == "server" {
		return c.Local
	}
	return c.Peer
}

// Tag is a short name for the reason of a connection that is TCP, "" if there is none.
func (c *Conn) Tag() string {
	switch {
	case c.Reason == Ended:
		return "SUPERVISOR_ENDED"
	case c.ReasonCode != 0:
		return clc.Lookup(clc.Diagnosis(c.ReasonCode), clc.OSUnspecified).Tag
	}
	return ""
}

// Loops counts the ends that are TCP for no reason that can be seen.
func (r *Report) Loops() (n int) {
	for _, c := range r.Connections {
		if c.Reason == Unexplained {
			n++
		}
	}
	return n
}

// An Service has the connections of one server, of which each counts once.
type Service struct {
	Port    int            `json:"port"`
	Command string         `json:"command"` // of the server; empty: not known
	Modes   map[string]int `json:"modes"`   // connections by mode
	Reasons []ReasonCount  `json:"reasons"` // of those that are TCP, the most frequent first
}

// An ReasonCount counts the connections that are TCP for one reason.
type ReasonCount struct {
	Tag   string `json:"tag"` // empty: no reason can be seen
	Count int    `json:"count"`
}

// distinct returns one end of each connection: the server's if it is there.
func distinct(list []Conn) (ends []*Conn) {
	type pair struct {
		server, client string
		netns          uint64
	}
	index := make(map[pair]int)
	for i := range list {
		c := &list[i]
		p := pair{c.Server(), c.Local, c.NetNS}
		if c.Role == "server" {
			p.client = c.Peer
		}
		switch at, known := index[p]; {
		case !known:
			index[p] = len(ends)
			ends = append(ends, c)
		case c.Role == "server":
			ends[at] = c
		}
	}
	return ends
}

// Summarize counts connections by server. Of the two ends of a connection that are here, the
// server's counts, and the client's command stands in where only that end is here.
func Summarize(list []Conn) []Service {
	var services []Service
	for _, c := range distinct(list) {
		command := c.Command
		if c.Role != "server" {
			command = c.PeerCommand
		}
		port := 0
		if i := strings.LastIndexByte(c.Server(), ':'); i >= 0 {
			port, _ = strconv.Atoi(c.Server()[i+1:])
		}
		i := slices.IndexFunc(services,
			func(s Service) bool { return s.Port == port && s.Command == command })
		if i < 0 {
			i = len(services)
			services = append(services, Service{Port: port, Command: command, Modes: make(map[string]int),
				Reasons: []ReasonCount{}})
		}
		s := &services[i]
		s.Modes[c.Mode]++
		if c.Mode != "TCP" {
			continue
		}
		tag := c.Tag()
		if j := slices.IndexFunc(s.Reasons, func(r ReasonCount) bool { return r.Tag == tag }); j >= 0 {
			s.Reasons[j].Count++
		} else {
			s.Reasons = append(s.Reasons, ReasonCount{tag, 1})
		}
	}
	slices.SortFunc(services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Command, b.Command))
	})
	for i := range services {
		slices.SortFunc(services[i].Reasons, func(a, b ReasonCount) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Tag, b.Tag))
		})
	}
	return services
}
