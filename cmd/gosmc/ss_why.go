package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/wire/clc"
)

// explain gives a connection that is TCP the cause of its reason, and the remedy.
func (c *ssConn) explain() {
	switch {
	case c.Mode != "TCP":
		return
	case c.Reason == loops:
		c.Cause = "The program shares the socket or had set options before connect, the connection is older than the supervisor, or its supervisor has ended."
		c.Advice = "Ask 'gosmc run --explain " + c.server() + "'; docs/run.md lists what is moved."
		return
	case c.Reason == ended:
		c.Cause = "Somebody, or the kernel for want of memory, has killed the process 'gosmc run-supervise' of the server. Its connections go on; new ones are TCP."
		c.Advice = "Start the server again."
		return
	case c.ReasonCode == 0:
		return
	}
	r := clc.Lookup(clc.Diagnosis(c.ReasonCode), clc.OSUnspecified)
	c.Cause, c.Advice = r.Cause, r.Advice
	if r.Code == clc.DiagPeerNoSMC && c.Bare != 0 { // rule: TestSSWhy
		end := "client"
		if c.Role == "client" {
			end = "server"
		}
		c.Cause = fmt.Sprintf("The %s, %s, was not started by 'gosmc run'.", end, process(c.Bare, c.PeerCommand))
		c.Advice = "Start it by 'gosmc run " + printable(cmp.Or(c.PeerCommand, "PROGRAM")) + " ...'; a service by 'gosmc service enable NAME'."
	}
}

// server is the address of the end that has accepted.
func (c *ssConn) server() string {
	if c.Role == "server" {
		return c.Local
	}
	return c.Peer
}

// remedy has the lines that --why adds.
func (c *ssConn) remedy() (lines []string) {
	if c.ReasonCode != 0 {
		lines = append(lines, "reason: "+clc.Lookup(clc.Diagnosis(c.ReasonCode), clc.OSUnspecified).Tag)
	}
	if c.Cause != "" {
		lines = append(lines, "cause:  "+printable(c.Cause))
	}
	if c.Advice != "" {
		lines = append(lines, "remedy: "+printable(c.Advice))
	}
	return lines
}

// tag is a short name for the reason of a connection that is TCP, "" if there is none.
func (c *ssConn) tag() string {
	switch {
	case c.Reason == ended:
		return "SUPERVISOR_ENDED"
	case c.ReasonCode != 0:
		return clc.Lookup(clc.Diagnosis(c.ReasonCode), clc.OSUnspecified).Tag
	}
	return ""
}

// loops counts the ends that are TCP for no reason that can be seen.
func (r *ssReport) loops() (n int) {
	for _, c := range r.Connections {
		if c.Reason == loops {
			n++
		}
	}
	return n
}

// An ssService has the connections of one server, of which each counts once.
type ssService struct {
	Port    int            `json:"port"`
	Command string         `json:"command"` // of the server; empty: not known
	Modes   map[string]int `json:"modes"`   // connections by mode
	Reasons []ssReason     `json:"reasons"` // of those that are TCP, the most frequent first
}

// An ssReason counts the connections that are TCP for one reason.
type ssReason struct {
	Tag   string `json:"tag"` // empty: no reason can be seen
	Count int    `json:"count"`
}

// summarize counts connections by server. Of the two ends of a connection that are here, the
// server's counts, and the client's command stands in where only that end is here.
func summarize(list []ssConn) []ssService {
	type ends struct {
		server, client string
		netns          uint64
	}
	connections := make(map[ends]*ssConn)
	for i := range list {
		c := &list[i]
		e := ends{c.server(), c.Local, c.NetNS}
		if c.Role == "server" {
			e.client = c.Peer
		}
		if connections[e] == nil || c.Role == "server" {
			connections[e] = c
		}
	}
	var services []ssService
	for e, c := range connections {
		command := c.Command
		if c.Role != "server" {
			command = c.PeerCommand
		}
		port := 0
		if i := strings.LastIndexByte(e.server, ':'); i >= 0 {
			port, _ = strconv.Atoi(e.server[i+1:])
		}
		i := slices.IndexFunc(services, func(s ssService) bool { return s.Port == port && s.Command == command })
		if i < 0 {
			i = len(services)
			services = append(services, ssService{Port: port, Command: command, Modes: make(map[string]int), Reasons: []ssReason{}})
		}
		s := &services[i]
		s.Modes[c.Mode]++
		if c.Mode != "TCP" {
			continue
		}
		tag := c.tag()
		if j := slices.IndexFunc(s.Reasons, func(r ssReason) bool { return r.Tag == tag }); j >= 0 {
			s.Reasons[j].Count++
		} else {
			s.Reasons = append(s.Reasons, ssReason{tag, 1})
		}
	}
	slices.SortFunc(services, func(a, b ssService) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Command, b.Command))
	})
	for i := range services {
		slices.SortFunc(services[i].Reasons, func(a, b ssReason) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Tag, b.Tag))
		})
	}
	return services
}

// writeServices prints a line for each server.
func (r *ssReport) writeServices(w io.Writer, bare bool) error {
	t := table{bare: bare, columns: []column{
		{title: "Port", right: true}, {title: "Server"}, {title: "Unix", right: true}, {title: "SMC-D", right: true}, {title: "SMC-R", right: true}, {title: "TCP", right: true}, {title: "Why TCP"},
	}}
	for _, s := range r.Services {
		var why []string
		for _, reason := range s.Reasons {
			why = append(why, fmt.Sprintf("%s %d", cmp.Or(reason.Tag, "no visible reason"), reason.Count))
		}
		count := func(mode string) string { return strconv.Itoa(s.Modes[mode]) }
		t.add(strconv.Itoa(s.Port), orNA(s.Command), count(modeUnix), count("SMC-D"), count("SMC-R"), count("TCP"), strings.Join(why, ", "))
	}
	return t.write(w)
}
