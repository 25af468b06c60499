package demo

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/text"
)

// Write prints the report for people.
func (r *Report) Write(w io.Writer) error {
	s, t := r.Runs[0], r.Runs[1]
	about := text.Table{Columns: []text.Column{{}, {}}}
	about.Add("Mode", strings.TrimSpace(s.Mode+" "+s.Version))
	about.Add("EID", text.OrNA(s.EID))
	peer := fmt.Sprintf("%s, process %d", text.OrNA(s.Peer), s.PeerPID)
	if s.PeerHost != "" {
		peer += ", host " + text.Printable(s.PeerHost)
	}
	if s.PeerOS != "" {
		peer += " (" + text.Printable(s.PeerOS) + ")"
	}
	about.Add("Peer", peer)
	if s.Reason != "" {
		about.Add("Reason", text.Printable(s.Reason)+s.ReasonCode.Suffix())
	}
	if r.Network != "" {
		about.Add("Network", text.Printable(r.Network))
	}
	about.Add("Machine", fmt.Sprintf("%s, %d CPUs, %s",
		text.OrNA(r.Machine.CPU), r.Machine.CPUs, text.OrNA(r.Machine.Kernel)))
	if err := about.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)

	if err := compare(s, t, r.Size).Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nThe time is that of the transfer; SHA-256 %s was computed afterwards.\n",
		r.SHA256)
	if s.Mode == "SMC-R" { // rule: cmd/gosmc TestWriteDemo
		_, err2 := fmt.Fprintln(w, "SMC-R here is RDMA in software, which is slower than TCP on one "+
			"machine. It is for peers with Linux AF_SMC, and for failover: docs/smcr.md.")
		err = errors.Join(err, err2)
	}
	return err
}

func (h HTTP) answers() string {
	if h.Wrong > 0 {
		return fmt.Sprintf("%d WRONG", h.Wrong)
	}
	return text.GroupDigits(strconv.FormatInt(h.Requests, 10)) + " right"
}

// compare has a line for each measurement, over SMC and over TCP.
func compare(s, t Outcome, size int64) *text.Table {
	right := func(ok bool) string {
		if ok {
			return "right"
		}
		return "WRONG"
	}
	times := func(a, b float64) string {
		if b == 0 {
			return "n/a"
		}
		return text.Number(a/b) + " x"
	}
	results := &text.Table{Columns: []text.Column{
		{}, {Title: s.Mode, Right: true}, {Title: "plain TCP", Right: true}, {Title: "ratio", Right: true},
	}}
	add := func(title string, a, b float64, unit string) {
		results.Add(title, text.Number(a)+unit, text.Number(b)+unit, times(a, b))
	}
	gbps := func(f File) string { return text.Number(f.Rate/1e9) + " GB/s" }
	results.Add("File of "+text.Bytes(size), gbps(s.File), gbps(t.File), times(s.File.Rate, t.File.Rate))
	add("  time", s.File.Seconds, t.File.Seconds, " s")
	add("  CPU time, both sides", s.File.CPUSeconds, t.File.CPUSeconds, " s")
	results.Add("  SHA-256", right(s.File.Right), right(t.File.Right))
	add(fmt.Sprintf("HTTP, %d connections", Conns), s.HTTP.Rate, t.HTTP.Rate, " requests/s")
	add("  half answered within", s.HTTP.P50, t.HTTP.P50, " µs")
	add("  99 % answered within", s.HTTP.P99, t.HTTP.P99, " µs")
	results.Add("  answers", s.HTTP.answers(), t.HTTP.answers())
	return results
}
