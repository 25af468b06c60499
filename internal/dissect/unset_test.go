package dissect

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/llc"
)

// A link may have number 0, and a message about number 0 is none about a link of unknown number.
func TestLinkNumberZero(t *testing.T) {
	s := dissecttest.NewScript()
	s.Open(true, true)
	s.CLC(c2s, s.Proposal())
	s.CLC(s2c, s.Accept())
	s.CLC(c2s, s.Confirm()) // the link is known, its number is not
	s.LLC(s2c, 0, llc.DeleteLink{Header: llc.Header{Form: llc.V2}, Link: 0, Reason: llc.DeleteLostPath})
	tr := New(Options{})
	var link *Link
	emit := func(e *Event) {
		if e.Link != nil {
			link = e.Link
		}
	}
	for _, p := range s.Packets {
		tr.Packet(p, emit)
	}
	if link == nil || link.NumKnown || link.State != LinkLearned || tr.Summary().LinksLost != 0 {
		t.Fatalf("after DELETE LINK of another number: %+v", link)
	}

	zero := llc.ConfirmLink{Header: llc.Header{Form: llc.V2}, CacheSize: llc.NoEyecatcher, GID: s.Accept().R.GID, QPN: s.Accept().R.QPN, Link: 0, MaxLinks: 2}
	n := len(s.Packets)
	s.LLC(s2c, 0, zero)
	other := zero
	other.Link = 9
	s.LLC(s2c, 0, other)
	var problems []Problem
	for _, p := range s.Packets[n:] {
		tr.Packet(p, func(e *Event) { problems = append(problems, e.Problems...) })
	}
	if !link.NumKnown || link.Num != 0 || len(problems) != 1 || problems[0].Kind != Violation {
		t.Errorf("CONFIRM LINK with number 0, then 9: %+v, problems %v; want number 0, and a violation", link, problems)
	}
}

// Packets may have no time: an event without a time has happened all the same.
func TestPacketsWithoutTime(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	s.Write(c2s, 0, 100)
	s.CDC(c2s, dissecttest.Produce(0, 100))
	s.CDC(c2s, dissecttest.Set(cdc.Closed))
	s.CDC(s2c, dissecttest.Set(cdc.Closed))
	s.Segment(c2s, tcpFIN|tcpACK, nil, nil)
	s.Segment(s2c, tcpFIN|tcpACK, nil, nil)
	timed := s.Packets[4].Time
	for name, timeless := range map[string]func(i int) bool{
		"all": func(int) bool { return true }, "first": func(i int) bool { return i < 4 }, "last": func(i int) bool { return i > 4 },
	} {
		tr := New(Options{})
		var conn *Conn
		for i, p := range s.Packets {
			if timeless(i) {
				p.Time = time.Time{}
			}
			tr.Packet(p, func(e *Event) {
				conn = e.Conn
				if e.Packet.Time.IsZero() {
					t.Errorf("%s: event %v %s without a time", name, e.Family, e.Name)
				}
			})
		}
		if conn == nil || conn.Opened.IsZero() || conn.Closed.IsZero() {
			t.Errorf("%s: %+v, want it opened and closed", name, conn)
		}
		sum := tr.Summary()
		switch name {
		case "all":
			if !sum.First.IsZero() || !sum.Last.IsZero() {
				t.Errorf("Summary from %v to %v, and no packet had a time", sum.First, sum.Last)
			}
		case "first":
			if !sum.First.Equal(timed) {
				t.Errorf("Summary from %v, and the first time is %v", sum.First, timed)
			}
		case "last":
			if !sum.Last.Equal(timed) {
				t.Errorf("Summary to %v, and the last time is %v", sum.Last, timed)
			}
		}
	}
}
