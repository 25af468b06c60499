package dissect

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/wire/roce"
)

func TestFilter(t *testing.T) {
	group := &LinkGroup{ID: 4}
	conn := &Conn{ID: 7, Client: netip.MustParseAddrPort("10.0.0.1:1000"), Server: netip.MustParseAddrPort("[2001:db8::2]:80"), Group: group}
	link := &Link{ID: 2, Group: group, Client: Endpoint{Addr: netip.MustParseAddr("10.1.0.1")}, Server: Endpoint{Addr: netip.MustParseAddr("10.1.0.2")}}
	early := &Conn{ID: 8}
	events := map[string]*Event{
		"accept":  {Family: CLC, Name: "Accept", Conn: conn},
		"decline": {Family: CLC, Name: "Decline", Conn: early, Src: netip.MustParseAddrPort("10.2.0.1:5"), Dst: netip.MustParseAddrPort("10.2.0.2:6"), Problems: []Problem{{Kind: Declined}}},
		"add":     {Family: LLC, Name: "ADD LINK", Link: link},
		"write":   {Family: RoCE, Name: "RDMA WRITE MIDDLE", Conn: conn, Link: link},
		"nak":     {Family: RoCE, Name: "NAK PSN sequence error", Link: link, Problems: []Problem{{Kind: Nak}}},
		"rnr":     {Family: RoCE, Name: "RNR NAK", Src: netip.MustParseAddrPort("10.9.9.9:49152"), Dst: netip.AddrPortFrom(netip.MustParseAddr("10.9.9.8"), roce.Port)},
		"note":    {Family: Note, Name: "timeout"},
	}
	types := func(words ...string) (list []TypeFilter) {
		for _, w := range words {
			f, err := ParseType(w)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, f)
		}
		return list
	}
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, s := range texts {
			list = append(list, netip.MustParsePrefix(s))
		}
		return list
	}
	for _, tt := range []struct {
		name   string
		filter Filter
		want   string // keys in alphabetical order
	}{
		{"all", Filter{}, "accept add decline nak note rnr write"},
		{"problems", Filter{Problems: true}, "decline nak"},
		{"conn", Filter{Conns: []int{7}}, "accept write"},
		{"two conns", Filter{Conns: []int{7, 8}}, "accept decline write"},
		{"group", Filter{LinkGroups: []int{4}}, "accept add nak write"},
		{"group known", Filter{LinkGroups: []int{4}, ConnGroups: map[int]int{8: 4}}, "accept add decline nak write"},
		{"family", Filter{Types: types("clc")}, "accept decline"},
		{"names", Filter{Types: types("Add Link", "DECLINE")}, "add decline"},
		{"prefix", Filter{Types: types("nak", "write")}, "nak rnr write"},
		{"address of conn", Filter{Addrs: prefixes("2001:db8::/32")}, "accept write"},
		{"address of link", Filter{Addrs: prefixes("10.1.0.2/32")}, "add nak write"},
		{"address of packet", Filter{Addrs: prefixes("10.2.0.0/16", "10.9.9.9/32")}, "decline rnr"},
		{"port of conn", Filter{Ports: []uint16{80}}, "accept write"},
		{"port of packet", Filter{Ports: []uint16{5, roce.Port}}, "decline rnr"},
		{"and", Filter{Types: types("roce"), Conns: []int{7}, Ports: []uint16{1000}}, "write"},
		{"none", Filter{Types: types("clc"), LinkGroups: []int{5}}, ""},
	} {
		var got []string
		for key, e := range events {
			if tt.filter.Match(e) {
				got = append(got, key)
			}
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: Match chooses %q, want %q", tt.name, s, tt.want)
		}
	}
	if _, err := ParseType("hello"); err == nil || !strings.Contains(err.Error(), "add-link-continuation") {
		t.Errorf("ParseType(hello) = %v, want the words there are", err)
	}
}

// Every event of the captures has a type by which it can be chosen, and a word for that type.
func TestTypesCoverEvents(t *testing.T) {
	for name := range dissecttest.Captures {
		tr := New(Options{})
		check := func(e *Event) {
			named := 0
			for i := range typeFilters {
				if typeFilters[i].match(e) {
					named++
				}
			}
			if named == 0 || e.Family != CDC && e.Family != Note && named == 1 {
				t.Errorf("%s: %d words choose %v %q, want its family and itself", name, named, e.Family, e.Name)
			}
		}
		for _, p := range dissecttest.Captured(t, name) {
			tr.Packet(p, check)
		}
		tr.Close(check)
	}
}
