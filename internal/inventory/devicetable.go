package inventory

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/text"
)

// The words in a column of tables that answer a question.
var yesNo = map[bool]string{true: "Yes", false: "No"}

// Write prints the RNICs of hosts, with more columns for details. The error comes from w.
func (l *DeviceList) Write(w io.Writer, details bool) error {
	t := text.Table{Columns: []text.Column{
		{Title: "Net-Dev"}, {Title: "IB-Dev"}, {Title: "IB-P", Right: true}, {Title: "IB-State"},
		{Title: "Type"}, {Title: "Crit"}, {Title: "#Links", Right: true}, {Title: "PNET-ID"},
	}}
	if details {
		t.Columns = append(t.Columns, text.Column{Title: "GID"}, text.Column{Title: "MAC"},
			text.Column{Title: "MTU", Right: true}, text.Column{Title: "Received", Right: true},
			text.Column{Title: "Bad-ICRC", Right: true}, text.Column{Title: "No-QP", Right: true},
			text.Column{Title: "Send-Err", Right: true})
	}
	t.Columns = append(t.Columns, text.Column{Title: "Process"}, text.Column{})
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	for _, d := range l.Devices {
		cells := []string{
			text.OrNA(d.NetDev), text.OrNA(d.Address), strconv.Itoa(d.Port), text.OrNA(d.State),
			text.OrNA(d.Type), yesNo[d.Critical], strconv.Itoa(d.Links), text.OrNA(d.PNETID),
		}
		if details {
			cells = append(cells, text.OrNA(d.GID), text.OrNA(d.MAC), strconv.Itoa(d.MTU),
				count(d.RcvdPackets), count(d.BadICRC), count(d.UnknownQP), count(d.SendErrors))
		}
		t.Add(append(cells, text.Process(d.PID, d.Command), text.Printable(d.Why))...)
	}
	return t.Write(w)
}

// WriteKernel prints the RDMA devices of the kernel, a row for each port, and nothing if there is none.
// With details there are more columns, and a table of GIDs. An empty line comes before each table.
// The error comes from w.
func WriteKernel(w io.Writer, list []KernelDevice, details bool) error {
	if len(list) == 0 {
		return nil
	}
	t := text.Table{Columns: []text.Column{
		{Title: "RDMA-Dev"}, {Title: "Driver"}, {Title: "IB-P", Right: true}, {Title: "IB-State"},
		{Title: "Net-Dev"}, {Title: "#RoCEv2", Right: true}, {Title: "Named"}, {Title: "Usable"},
	}}
	if details {
		t.Columns = append(t.Columns, text.Column{Title: "File"}, text.Column{Title: "Firmware"},
			text.Column{Title: "Link-Layer"}, text.Column{Title: "QPs", Right: true},
			text.Column{Title: "CQs", Right: true}, text.Column{Title: "MRs", Right: true},
			text.Column{Title: "MR-Size", Right: true})
	}
	t.Columns = append(t.Columns, text.Column{})
	for i := range list {
		d := &list[i]
		ports := d.Ports
		if len(ports) == 0 {
			ports = []KernelPort{{}}
		}
		for _, p := range ports {
			t.Add(append(d.cells(&p, details), text.Printable(d.Why))...)
		}
	}
	fmt.Fprintln(w)
	if err := t.Write(w); err != nil || !details {
		return err
	}
	return writeGIDs(w, list)
}

// cells returns the row of a port, which is zero for a device without ports.
func (k *KernelDevice) cells(p *KernelPort, details bool) []string {
	number := ""
	if p.Port > 0 {
		number = strconv.Itoa(p.Port)
	}
	devs, rocev2 := p.used()
	cells := []string{
		text.Printable(k.Name), text.OrNA(k.Driver), text.OrNA(number), text.OrNA(p.State),
		text.OrNA(strings.Join(devs, ",")), strconv.Itoa(rocev2), yesNo[k.Named], yesNo[k.Usable],
	}
	if !details {
		return cells
	}
	cells = append(cells, text.OrNA(k.File), text.OrNA(k.Firmware), text.OrNA(p.LinkLayer))
	if k.Limits == nil {
		return append(cells, "n/a", "n/a", "n/a", "n/a")
	}
	l := k.Limits
	return append(cells, strconv.Itoa(l.QPs), strconv.Itoa(l.CQs), strconv.Itoa(l.MRs),
		text.Bytes(int64(min(l.MRBytes, 1<<62))))
}

// used returns the network interfaces of a port's GIDs, and the number of GIDs that SMC-R can use.
func (p *KernelPort) used() (netDevs []string, rocev2 int) {
	for _, g := range p.GIDs {
		if g.NetDev != "" && !slices.Contains(netDevs, g.NetDev) {
			netDevs = append(netDevs, g.NetDev)
		}
		if g.Type == rocev2Type {
			rocev2++
		}
	}
	return netDevs, rocev2
}

// writeGIDs prints the GIDs of the kernel's devices.
func writeGIDs(w io.Writer, list []KernelDevice) error {
	t := text.Table{Columns: []text.Column{
		{Title: "RDMA-Dev"}, {Title: "IB-P", Right: true}, {Title: "Index", Right: true},
		{Title: "Type"}, {Title: "Net-Dev"}, {Title: "GID"},
	}}
	for _, d := range list {
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				t.Add(text.Printable(d.Name), strconv.Itoa(p.Port), strconv.Itoa(g.Index),
					text.OrNA(g.Type), text.OrNA(g.NetDev), text.OrNA(g.GID))
			}
		}
	}
	if t.Len() == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return t.Write(w)
}
