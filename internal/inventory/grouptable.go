package inventory

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/text"
)

// Tables of link groups and links, with the columns that smcr and smcd have.

// GroupID is the number of a link group as tools print it, and the number of a link for its peer's user.
func GroupID(id uint32) string { return fmt.Sprintf("%08x", id) }

// groupRole is a role as smcr has it.
func groupRole(role string) string {
	switch role {
	case "client":
		return "CLNT"
	case "server":
		return "SERV"
	}
	return text.OrNA(role)
}

// Write prints a line for each group.
func (l *LinkGroupList) Write(w io.Writer) error {
	t := text.Table{Columns: []text.Column{
		{Title: "LG-ID"}, {Title: "LG-Role"}, {Title: "LG-Type"}, {Title: "VLAN", Right: true},
		{Title: "#Conns", Right: true}, {Title: "PNET-ID"}, {Title: "Mode"},
		{Title: "Peer"}, {Title: "Process"},
	}}
	for _, g := range l.Groups {
		t.Add(GroupID(g.ID), groupRole(g.Role), text.OrNA(g.Type), strconv.Itoa(int(g.VLAN)),
			strconv.Itoa(g.Conns), text.OrNA(g.PNETID),
			strings.TrimSpace(text.OrNA(g.Mode)+" "+text.Printable(g.Version)),
			text.OrNA(g.Peer), text.Process(g.PID, g.Command))
	}
	return t.Write(w)
}

// WriteDetails prints a block for each group.
func (l *LinkGroupList) WriteDetails(w io.Writer) error {
	for i, g := range l.Groups {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := g.table().Write(w); err != nil {
			return err
		}
	}
	return nil
}

// table has a line for each property of the group.
func (g *LinkGroup) table() *text.Table {
	t := &text.Table{Columns: []text.Column{{}, {}}}
	row := func(name, value string) { t.Add(name, ": "+value) }
	row("LG-ID", GroupID(g.ID))
	row("Mode", text.OrNA(g.Mode))
	row("State", text.OrNA(g.State))
	row("LG-Role", groupRole(g.Role))
	if g.Type != "" {
		row("LG-Type", text.Printable(g.Type))
	}
	row("VLAN", strconv.Itoa(int(g.VLAN)))
	row("PNET-ID", text.OrNA(g.PNETID))
	row("Version", text.OrNA(g.Version))
	row("Peer", text.OrNA(g.Peer))
	if g.PeerID != "" {
		row("Peer-ID", text.Printable(g.PeerID))
	}
	row("Peer-Host", text.OrNA(g.PeerHost))
	row("Peer-OS", text.OrNA(g.PeerOS))
	if g.Type != "" {
		row("Direct", text.YesNo(g.Direct))
	}
	row("EID", text.OrNA(g.EID))
	row("#Conns", fmt.Sprintf("%d, at most %d", g.Conns, g.MaxConns))
	if g.Type != "" {
		row("Failovers", fmt.Sprintf("%d, of %d connections", g.Failovers, g.Moved))
		row("Spread-By", text.OrNA(g.Spread))
		row("RMB", fmt.Sprintf("%d B, %d buffers: %d idle, %d in quarantine",
			g.RMBBytes, g.RMBs, g.IdleRMBs, g.Quarantined))
	}
	row("Process", text.Process(g.PID, g.Command))
	return t
}

// WriteLinks prints a line for each link of the groups.
func (l *LinkGroupList) WriteLinks(w io.Writer, details bool) error {
	t := text.Table{Columns: []text.Column{
		{Title: "LG-ID"}, {Title: "LG-Role"}, {Title: "LG-Type"}, {Title: "Net-Dev"}, {Title: "Link-State"},
		{Title: "#Conns", Right: true},
	}}
	if details {
		t.Columns = append(t.Columns,
			text.Column{Title: "Link-UID"}, text.Column{Title: "IB-Dev"},
			text.Column{Title: "IB-P", Right: true},
			text.Column{Title: "Local-GID"}, text.Column{Title: "Local-QP"}, text.Column{Title: "Peer-GID"},
			text.Column{Title: "Peer-QP"}, text.Column{Title: "MTU", Right: true},
			text.Column{Title: "RTT", Right: true}, text.Column{Title: "Sent", Right: true},
			text.Column{Title: "Resent", Right: true})
	}
	t.Columns = append(t.Columns, text.Column{Title: "Process"}, text.Column{})
	for _, g := range l.Groups {
		for _, link := range g.Links {
			cells := []string{
				GroupID(g.ID), groupRole(g.Role), text.OrNA(g.Type), text.OrNA(link.NetDev),
				text.OrNA(link.State), strconv.Itoa(link.Conns),
			}
			if details {
				rtt, mtu := "n/a", "n/a"
				if link.RoundTrip > 0 {
					rtt = text.Number(float64(link.RoundTrip)/1e3) + " µs"
				}
				if link.MTU > 0 {
					mtu = strconv.Itoa(link.MTU)
				}
				cells = append(cells, GroupID(link.UID), text.OrNA(link.Device), strconv.Itoa(link.Port),
					text.OrNA(link.LocalGID), fmt.Sprintf("%#x", link.LocalQPN),
					text.OrNA(link.PeerGID), fmt.Sprintf("%#x", link.PeerQPN),
					mtu, rtt, text.Bytes(int64(min(link.SentBytes, 1<<62))),
					strconv.FormatUint(link.Retransmitted, 10))
			}
			t.Add(append(cells, text.Process(g.PID, g.Command), text.Printable(link.Why))...)
		}
	}
	return t.Write(w)
}
