package host

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/counters"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// controlView is a host as its control socket shows it.
type controlView Host

// Trace implements [control.Host].
func (v *controlView) Trace() control.Tracer { return &v.trace }

// SampleCursors implements [control.Host].
func (v *controlView) SampleCursors(list []control.TraceEvent) ([]control.TraceEvent, int) {
	return (*Host)(v).sampleCursors(list)
}

// Status implements [control.Host].
func (v *controlView) Status() control.Status { return (*Host)(v).Status() }

// DeleteLink implements [control.LinkDeleter].
func (v *controlView) DeleteLink(group uint32, num uint8) (err error) {
	var none *transport.NoGroupError
	for _, n := range v.networks {
		if err = n.DeleteLink(group, num); !errors.As(err, &none) {
			return err
		}
	}
	return err
}

// Status returns a snapshot of the host.
func (h *Host) Status() control.Status {
	followed := h.rules.status()
	s, _ := h.Numbers()
	s.Config = followed
	h.mu.Lock()
	conns := slices.Collect(maps.Keys(h.conns))
	listeners := slices.Collect(maps.Keys(h.listeners))
	h.mu.Unlock()

	s.Command = processName(os.Getpid())
	names := h.Names()
	s.HostName, s.SEID, s.UEIDs = names.HostName, names.SEID, names.UEIDs
	s.Capabilities = h.capabilityStatus()
	s.Listeners, s.Connections = []control.StatusListener{}, []control.StatusConn{}
	s.Devices = h.rnics.Status()
	if f := h.openFabricOrNil(); f != nil {
		s.GID = f.device.GID().String()
	}
	for _, l := range listeners {
		announceLate(l)
		s.Listeners = append(s.Listeners, l.status())
	}
	sort.Slice(s.Listeners, func(i, j int) bool { return s.Listeners[i].Local < s.Listeners[j].Local })
	// The oldest first; the newest ones are left out if there is no room.
	sort.Slice(conns, func(i, j int) bool { return conns[i].Since().Before(conns[j].Since()) })
	if len(conns) > control.MaxConns {
		s.ConnectionsOmitted = len(conns) - control.MaxConns
		conns = conns[:control.MaxConns]
	}
	links := make(map[uint32]uint8) // by group
	for _, g := range s.Groups {
		if len(g.Links) > 0 {
			links[g.ID] = g.Links[0].Number
		}
	}
	commands := make(map[int]string)
	for _, c := range conns {
		k := connStatus(c, commands)
		k.Link = links[k.Group]
		if n := c.Link(); n != 0 {
			k.Link = n
		}
		s.Connections = append(s.Connections, k)
	}
	return s
}

// Numbers returns the parts of a Status that are numbers: Started, Counters, Limits and Groups, and
// how many connections there are now. It opens nothing, as Status does.
func (h *Host) Numbers() (s control.Status, open counters.Open) {
	s = control.Status{Started: h.started, Groups: h.groupStatus(), Limits: h.limitStatus()}
	h.mu.Lock()
	s.Counters = h.counters.Status()
	for c := range h.conns { // with the lock: else forget could make a sum less than the last one was
		in, out := c.Totals()
		s.Counters.AddBytes(c.Mode().String(), in, out) // rule: . TestStatsModes
		open.Add(c.Mode(), c.Client())                  // rule: . TestStatsModes
	}
	h.mu.Unlock()
	s.Counters.Groups = make(map[string]int)
	for _, f := range h.fabrics() {
		s.Counters.Groups[f.Mode().String()] = 0
	}
	for _, g := range s.Groups {
		s.Counters.Groups[g.Mode]++
	}
	for _, n := range h.networks {
		_, rmbs := n.Memory()
		s.Counters.RMBBytes += rmbs
	}
	return s, open
}

// limitStatus returns the limits, and how much of each is in use.
func (h *Host) limitStatus() []control.StatusLimit {
	var device ism.Stats
	if f := h.openFabricOrNil(); f != nil {
		device = f.device.Stats()
	}
	list := []control.StatusLimit{
		{Name: "memory", Limit: h.cfg.MemoryBudget, Used: device.Bytes, Unit: "bytes"},
		{Name: "memory of peers", Limit: h.cfg.MemoryBudget, Used: device.MappedBytes, Unit: "bytes"},
	}
	for _, n := range h.networks {
		used, _ := n.Memory()
		list = append(list, control.StatusLimit{Name: "memory of " + n.Mode().String(),
			Limit: h.cfg.MemoryBudget, Used: used, Unit: "bytes"})
	}
	return append(list,
		control.StatusLimit{Name: "read buffer", Limit: int64(h.cfg.ReadBuffer), Used: -1, Unit: "bytes"},
		control.StatusLimit{Name: "peers", Limit: ism.MaxPeers,
			Used: device.PeersDialed + device.PeersAccepted},
		control.StatusLimit{Name: "connections with a peer", Limit: ism.SlotCount, Used: -1},
		mappings(),
		openFiles(),
	)
}

// capabilityStatus reports the capabilities of the host. It opens the device, so that the answer is
// the truth and not a guess.
func (h *Host) capabilityStatus() control.StatusCapabilities {
	const noNative = "needs an ISM device of a mainframe; Emulated-ISM is version 2 only"
	c := control.StatusCapabilities{
		SMCDv1:    control.Capability{Why: noNative},
		TCPOption: h.optionStatus(),
	}
	c.SMCRv1, c.SMCRv2 = h.smcrStatus(c.TCPOption)
	_, reason, err := h.open()
	switch {
	case err != nil:
		r := clc.Lookup(reason, clc.OSUnspecified)
		c.SMCDv2 = control.Capability{Why: fmt.Sprintf("%s (%v)", r.Sentence, err), Advice: r.Advice}
		c.LocalRendezvous = c.SMCDv2
	case h.seid.IsZero() && len(h.ueids) == 0:
		c.LocalRendezvous.Available = true
		c.SMCDv2.Why = "there is no EID: the kernel's boot id cannot be read, and no UEID is configured"
	default:
		if reason := h.meeting.Usable(); reason != clc.DiagNone {
			why := clc.Lookup(reason, clc.OSUnspecified).Sentence
			c.SMCDv2, c.LocalRendezvous = control.Capability{Why: why}, control.Capability{Why: why}
			break
		}
		c.SMCDv2.Available, c.LocalRendezvous.Available = true, true
	}
	return c
}

// smcrStatus says for both versions of SMC-R all that is missing. option is the capability of TCP
// option 254.
func (h *Host) smcrStatus(option control.Capability) (v1, v2 control.Capability) {
	if h.cfg.Disabled {
		r := clc.Lookup(clc.DiagDisabled, clc.OSUnspecified)
		v1 = control.Capability{Why: r.Sentence, Advice: r.Advice}
		return v1, v1
	}
	both := h.rnics.Missing()
	if len(h.peers) == 0 && !option.Available {
		both = append(both, "no peer is configured, and there is no agent to ask peers by TCP option 254")
	}
	var ofV1, ofV2 []string
	if len(h.ueids) == 0 {
		ofV2 = append(ofV2, "no UEID is configured, which SMC with another machine needs")
		v2.Advice = "A UEID is configured by 'gosmc ueid add NAME', GOSMC_UEIDS, or the program; peers are by 'peer' in the file that 'gosmc ueid --help' describes."
	}
	if !h.cfg.SMCRv1 {
		ofV1 = append(ofV1, "switched off, since stock Linux speaks it over RoCEv1 only")
	}
	say := func(c *control.Capability, missing []string) {
		c.Why = strings.Join(append(missing, both...), "; ")
		c.Available = c.Why == ""
	}
	say(&v1, ofV1)
	say(&v2, ofV2)
	return v1, v2
}

// fabrics returns all fabrics of the host.
func (h *Host) fabrics() []transport.Fabric {
	list := []transport.Fabric{h.smcd}
	for _, n := range h.networks {
		list = append(list, n)
	}
	return list
}

// groupStatus describes the link groups, in the order of their IDs.
func (h *Host) groupStatus() []control.StatusGroup {
	var list []control.StatusGroup
	for _, f := range h.fabrics() {
		list = f.Status(list)
	}
	slices.SortStableFunc(list, func(a, b control.StatusGroup) int { return cmp.Compare(a.ID, b.ID) })
	return list[:min(len(list), control.MaxGroups)]
}

// Names returns the names that peers know the host by: of a Status HostName, SEID and UEIDs.
func (h *Host) Names() *control.Status {
	s := &control.Status{HostName: h.name, UEIDs: append([]string{}, h.cfg.UEIDs...)}
	if !h.seid.IsZero() {
		s.SEID = h.seid.String()
	}
	return s
}

func mappings() control.StatusLimit {
	used, limit := ism.Mappings()
	return control.StatusLimit{Name: "memory mappings", Limit: int64(limit), Used: int64(used)}
}

func openFiles() control.StatusLimit {
	l := control.StatusLimit{Name: "open files", Limit: -1, Used: -1}
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil {
		l.Limit = int64(min(r.Cur, 1<<62))
	}
	var st unix.Stat_t
	if unix.Stat("/proc/self/fd", &st) == nil && st.Size > 0 { // since Linux 6.2: their number
		l.Used = st.Size
	} else if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		l.Used = int64(len(names))
	}
	return l
}

func (l *Listener) status() control.StatusListener {
	s := control.StatusListener{
		Local:    l.Addr().String(),
		Require:  l.opts.Require.String(),
		Accepted: l.handled.Load(),
		Pending:  len(l.busy) + len(l.ready),
	}
	s.UID, s.Inode = socketOwner(l.tcp)
	s.NetNS = socketNetns(l.tcp)
	return s
}

// connStatus describes a connection. names holds the names of processes already looked up.
func connStatus(c conn.Conn, names map[int]string) control.StatusConn {
	s := c.Status()
	s.PeerCommand = names[s.PeerPID]
	if pid := s.PeerPID; pid != 0 && s.PeerCommand == "" {
		s.PeerCommand = processName(pid)
		names[pid] = s.PeerCommand
	}
	s.UID, s.Inode = socketOwner(c.Socket())
	s.NetNS = socketNetns(c.Socket())
	return s
}

// socketOwner returns the user and the inode of a socket, zero if it is closed.
func socketOwner(sc syscall.Conn) (uid uint32, inode uint64) {
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, 0
	}
	raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		if unix.Fstat(int(fd), &st) == nil {
			uid, inode = st.Uid, st.Ino
		}
	})
	return uid, inode
}

// socketNetns returns the network namespace of a socket, zero if it is closed.
func socketNetns(sc syscall.Conn) uint64 {
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	netns, err := rendezvous.SocketNetns(raw)
	if err != nil {
		return 0
	}
	return netns
}

// processName returns the name of a process of this machine, "" if it cannot be seen.
func processName(pid int) string {
	if pid == os.Getpid() {
		return filepath.Base(os.Args[0])
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(comm))
}
