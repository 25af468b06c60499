package render

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/text"
)

// A CaptureStats holds facts about the input that the tracker does not see: for [WriteStats] and
// [NewStatsReport].
type CaptureStats struct {
	Inputs   []string // names
	Errors   int      // faults of the files that were read over
	Received uint64   // of a live capture: packets that the kernel's filter has let through
	Dropped  uint64   // of a live capture: packets that came faster than they were read
	Live     bool
}

// WriteStats writes a summary as tables.
func WriteStats(w io.Writer, s *dissect.Summary, c *CaptureStats) error {
	var b strings.Builder
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	facts := [][]string{
		{"Packets", number(s.Packets)},
		{"Bytes captured", number(s.Bytes)},
	}
	if !s.First.IsZero() {
		facts = append(facts,
			[]string{"First packet", s.First.UTC().Format("2006-01-02 15:04:05.000000 UTC")},
			[]string{"Last packet", s.Last.UTC().Format("2006-01-02 15:04:05.000000 UTC")},
			[]string{"Duration", fmt.Sprintf("%.6f s", s.Last.Sub(s.First).Seconds())})
	}
	facts = append(facts,
		[]string{"TCP segments", number(s.TCPSegments)},
		[]string{"RoCEv2 packets", number(s.RoCEPackets)},
		[]string{"Connections", number(s.Conns)},
		[]string{"Link groups", number(s.LinkGroups)},
		[]string{"Links", number(s.Links)},
		[]string{"Links lost", number(s.LinksLost)},
		[]string{"Failovers", number(s.Failovers)},
		[]string{"Moves to spread load", number(s.Moves)},
		[]string{"Moved by RDMA", text.Size(s.RDMABytes)},
		[]string{"Retransmissions", number(s.Retransmissions)},
		[]string{"Packet numbers missing", number(s.Gaps)})
	optional := []struct {
		name string
		n    uint64
	}{
		{"Seen at another place, too", s.AlsoSeen},
		{"Truncated by the capture", s.Truncated},
		{"IP fragments", s.Fragments},
		{"Undecodable headers", s.Undecodable},
		{"Other link types", s.OtherLinkTypes},
		{"Connections forgotten", s.Evicted.Conns},
		{"Queue pairs forgotten", s.Evicted.Flows},
		{"Link groups forgotten", s.Evicted.Groups},
		{"Faults of the files", uint64(c.Errors)},
	}
	if c.Live {
		facts = append(facts, []string{"Received by the socket", number(c.Received)},
			[]string{"Dropped by the kernel", number(c.Dropped)})
	}
	for _, o := range optional {
		if o.n > 0 {
			facts = append(facts, []string{o.name, number(o.n)})
		}
	}
	for _, row := range facts {
		fmt.Fprintf(&b, "%-25s%s\n", row[0], row[1])
	}
	writeCounts(&b, "Mode", "Connections", len(s.Modes),
		func(i int) (string, uint64) { return s.Modes[i].Name, s.Modes[i].Count })
	writeCounts(&b, "Reason", "Declines", len(s.Reasons), func(i int) (string, uint64) {
		r := s.Reasons[i].Reason
		text := r.String()
		if r.Sentence != "" {
			text += ": " + r.Sentence
		}
		return text, s.Reasons[i].Count
	})
	writeCounts(&b, "Message", "Seen", len(s.Messages), func(i int) (string, uint64) {
		m := s.Messages[i]
		return messageName(m.Family, m.Name), m.Count
	})
	writeCounts(&b, "Problem", "Seen", len(s.Problems),
		func(i int) (string, uint64) { return s.Problems[i].Kind.String(), s.Problems[i].Count })
	_, err := io.WriteString(w, b.String())
	return err
}

// messageName returns "CLC Proposal", and not "CDC CDC".
func messageName(f dissect.Family, name string) string {
	if f.String() == name {
		return name
	}
	return f.String() + " " + name
}

// writeCounts writes a table of two columns, the numbers first. There is none if it has no rows.
func writeCounts(b *strings.Builder, name, count string, n int, row func(int) (string, uint64)) {
	if n == 0 {
		return
	}
	width := utf8.RuneCountInString(count)
	for i := range n {
		_, v := row(i)
		width = max(width, len(strconv.FormatUint(v, 10)))
	}
	fmt.Fprintf(b, "\n%*s  %s\n", width, count, name)
	for i := range n {
		text, v := row(i)
		fmt.Fprintf(b, "%*d  %s\n", width, v, printableText(text))
	}
}

// A StatsReport is a summary as JSON. Fields may be added; names and meaning stay.
type StatsReport struct {
	Schema          int            `json:"schema"` // 1
	Inputs          []string       `json:"inputs"`
	Packets         uint64         `json:"packets"`
	Bytes           uint64         `json:"bytes"` // as captured
	First           *time.Time     `json:"first"` // null if there is no packet
	Last            *time.Time     `json:"last"`
	TCPSegments     uint64         `json:"tcp_segments"`
	RoCEPackets     uint64         `json:"roce_packets"`
	Connections     uint64         `json:"connections"`
	Modes           []statsCount   `json:"modes"`
	Declines        []statsDecline `json:"declines"`
	Messages        []statsMessage `json:"messages"`
	Problems        []statsCount   `json:"problems"`
	RDMABytes       uint64         `json:"rdma_bytes"` // without retransmissions
	Retransmissions uint64         `json:"retransmissions"`
	Gaps            uint64         `json:"psn_gaps"` // packet numbers missing
	LinkGroups      uint64         `json:"link_groups"`
	Links           uint64         `json:"links"`
	LinksLost       uint64         `json:"links_lost"`
	Failovers       uint64         `json:"failovers"`
	Moves           uint64         `json:"moves"`
	// packets that another input or interface has, too: only counted in packets
	AlsoSeen       uint64          `json:"also_seen"`
	Truncated      uint64          `json:"truncated"`
	Fragments      uint64          `json:"fragments"`
	Undecodable    uint64          `json:"undecodable"`
	OtherLinkTypes uint64          `json:"other_link_types"`
	Forgotten      statsForgotten  `json:"forgotten"`
	InputErrors    int             `json:"input_errors"`
	Live           *statsLiveInput `json:"live"` // null for files
}

type (
	statsCount struct {
		Name  string `json:"name"`
		Count uint64 `json:"count"`
	}
	statsDecline struct {
		Code  uint32 `json:"code"`
		Tag   string `json:"tag"`
		Text  string `json:"text"`
		Count uint64 `json:"count"`
	}
	statsMessage struct {
		Family string `json:"family"`
		Name   string `json:"name"`
		Count  uint64 `json:"count"`
	}
	statsForgotten struct {
		Connections uint64 `json:"connections"`
		QueuePairs  uint64 `json:"queue_pairs"`
		LinkGroups  uint64 `json:"link_groups"`
	}
	statsLiveInput struct {
		Received uint64 `json:"received"`
		Dropped  uint64 `json:"dropped"`
	}
)

// NewStatsReport returns a summary for JSON.
func NewStatsReport(s *dissect.Summary, c *CaptureStats) *StatsReport {
	r := &StatsReport{
		Schema: 1, Inputs: append([]string{}, c.Inputs...), Packets: s.Packets, Bytes: s.Bytes,
		TCPSegments: s.TCPSegments, RoCEPackets: s.RoCEPackets, Connections: s.Conns,
		Modes: []statsCount{}, Declines: []statsDecline{}, Messages: []statsMessage{}, Problems: []statsCount{},
		RDMABytes: s.RDMABytes, Retransmissions: s.Retransmissions, Gaps: s.Gaps,
		LinkGroups: s.LinkGroups, Links: s.Links, LinksLost: s.LinksLost, Failovers: s.Failovers, Moves: s.Moves,
		AlsoSeen: s.AlsoSeen, Truncated: s.Truncated, Fragments: s.Fragments, Undecodable: s.Undecodable, OtherLinkTypes: s.OtherLinkTypes,
		Forgotten:   statsForgotten{s.Evicted.Conns, s.Evicted.Flows, s.Evicted.Groups},
		InputErrors: c.Errors,
	}
	if !s.First.IsZero() {
		first, last := s.First.UTC(), s.Last.UTC()
		r.First, r.Last = &first, &last
	}
	for _, m := range s.Modes {
		r.Modes = append(r.Modes, statsCount(m))
	}
	for _, d := range s.Reasons {
		r.Declines = append(r.Declines,
			statsDecline{uint32(d.Reason.Code), d.Reason.Tag, d.Reason.Sentence, d.Count})
	}
	for _, m := range s.Messages {
		r.Messages = append(r.Messages, statsMessage{m.Family.String(), m.Name, m.Count})
	}
	for _, p := range s.Problems {
		r.Problems = append(r.Problems, statsCount{p.Kind.String(), p.Count})
	}
	if c.Live {
		r.Live = &statsLiveInput{c.Received, c.Dropped}
	}
	return r
}

// printableText is [text.Printable], for functions that have texts of their own.
func printableText(s string) string { return text.Printable(s) }
