package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/wire/clc"
)

// remedy has the lines that --why adds.
func remedy(c *inventory.Conn) (lines []string) {
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

// writeServices prints a line for each server.
func (r *ssReport) writeServices(w io.Writer, bare bool) error {
	t := table{Bare: bare, Columns: []column{
		{Title: "Port", Right: true}, {Title: "Server"}, {Title: "Unix", Right: true}, {Title: "SMC-D", Right: true}, {Title: "SMC-R", Right: true}, {Title: "TCP", Right: true}, {Title: "Why TCP"},
	}}
	for _, s := range r.Services {
		var why []string
		for _, reason := range s.Reasons {
			why = append(why, fmt.Sprintf("%s %d", cmp.Or(reason.Tag, "no visible reason"), reason.Count))
		}
		count := func(mode string) string { return strconv.Itoa(s.Modes[mode]) }
		t.Add(strconv.Itoa(s.Port), orNA(s.Command), count(modeUnix), count("SMC-D"), count("SMC-R"), count("TCP"), strings.Join(why, ", "))
	}
	return t.Write(w)
}
