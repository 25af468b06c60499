package agent

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/text"
)

// Write prints the status for people.
func (s *Status) Write(w io.Writer) error {
	t := &text.Table{Columns: []text.Column{{}, {}}}
	t.Add("agent", fmt.Sprintf("process %d, since %s", s.PID, s.Started.Format(time.DateTime)))
	t.Add("socket", text.Printable(s.Socket))
	t.Add("pins", text.Printable(s.Pins))
	s.Option.addTo(t)
	s.Pairing.addTo(t)
	s.Introductions.addTo(t)
	t.Add("requests", listCounts(
		count{s.Served.Granted, "granted"}, count{s.Served.Refused,
			"refused"}, count{s.Served.Unfit, "unfit"}))
	for _, v := range s.Vacant {
		t.Add("port "+text.Printable(v.Address), fmt.Sprintf(
			"without process; queue pairs that send to it are answered until %s, %s",
			v.Until.Format(time.TimeOnly), listCounts(count{v.Answers, "answers"})))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	if len(s.Ports) == 0 {
		return nil
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return portTable(s.Ports).Write(w)
}

func (o *OptionStatus) addTo(t *text.Table) {
	switch {
	case !o.Enabled:
		t.Add("TCP option 254", "not its task")
	case !o.Attached:
		t.Add("TCP option 254", "detached")
	default:
		c := &o.Counters
		t.Add("TCP option 254", "attached to "+text.Printable(o.Cgroup))
		t.Add("  SYN", listCounts(
			count{c.SYNSent, "with it"}, count{c.SYNNoRoom, "without room"},
			count{c.SYNFastOpen, "with Fast Open"}, count{c.SYNSigned, "with MD5 or AO"}))
		t.Add("  SYN-ACK", listCounts(
			count{c.SYNACKSent, "with it"}, count{c.SYNACKCookie, "with a cookie"},
			count{c.SYNACKNoRoom, "without room"}, count{c.SYNACKExcluded, "excluded by another option"}))
		t.Add("  clients", listCounts(count{c.ClientBoth, "answered"}, count{c.ClientAlone, "not answered"}))
		t.Add("  servers", listCounts(count{c.ServerBoth, "asked"}, count{c.ServerAlone, "not asked"}))
		if c.ListenersFull > 0 {
			t.Add("  listeners", fmt.Sprintf("%d too many", c.ListenersFull))
		}
	}
}

func (p *PairingStatus) addTo(t *text.Table) {
	if !p.Enabled {
		t.Add("pairing", "no: "+text.Printable(p.Reason))
		return
	}
	c := &p.Counters
	t.Add("pairing", listCounts(count{c.SYNSent, "tokens on SYNs"}, count{c.SYNACKSent, "on SYN-ACKs"}))
	t.Add("  clients", listCounts(count{c.ClientPaired, "paired"}, count{c.ClientUnpaired, "not paired"}))
	t.Add("  servers", listCounts(count{c.ServerPaired, "paired"}, count{c.ServerUnpaired, "not paired"}))
	t.Add("  namespaces", listCounts(count{c.Reports, "reports"}, count{c.ReportsLost, "lost"}))
}

func (i *IntroductionStatus) addTo(t *text.Table) {
	if !i.Enabled {
		t.Add("introductions", "no: "+text.Printable(cmp.Or(i.Why, "not its task")))
		return
	}
	t.Add("introductions", listCounts(
		count{i.Introduced, "made"}, count{i.Users, "refused by a policy of users"},
		count{i.Busy, "refused by a quota"}, count{i.Unfit, "unfit"}))
	t.Add("  programs", fmt.Sprintf("%d connected, in %d network namespaces", i.Clients, i.Namespaces))
}

// portTable has a line for each socket on a shared port.
func portTable(list []PortStatus) *text.Table {
	t := &text.Table{Columns: []text.Column{
		{Title: "Shared port"}, {Title: "Netns", Right: true}, {Title: "First QPN"},
		{Title: "QPNs", Right: true}, {Title: "PID", Right: true}, {Title: "UID", Right: true},
	}}
	for _, p := range list {
		for _, s := range p.Sockets {
			pid, uid := "n/a", "n/a"
			if s.Process != 0 {
				pid, uid = strconv.Itoa(int(s.Process)), strconv.Itoa(int(s.User))
			}
			t.Add(text.Printable(p.Address), strconv.FormatUint(p.Namespace, 10),
				fmt.Sprintf("%#08x", s.FirstQPN), strconv.Itoa(int(s.QPNs)), pid, uid)
		}
	}
	return t
}

// A count is a number of things.
type count struct {
	n    uint64
	what string
}

// listCounts lists the first of counts and those that are not zero.
func listCounts(counts ...count) string {
	var parts []string
	for i, c := range counts {
		if i == 0 || c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return strings.Join(parts, ", ")
}
