package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// An Option is the programs of option.bpf.c, attached to a control group. They stay when it is closed.
type Option struct {
	counters *ebpf.Map
	links    map[string]link.Link
	cgroup   string
	parts    Parts
	pairing  *Pairing // nil without
	noPair   error    // the reason
	Found    bool     // the programs were attached already, and were exchanged for ours
}

// Parts are the parts of the programs that are left out.
type Parts struct {
	NoOption  bool // TCP option 254 of SMC
	NoPairing bool // pairing tokens
}

// optionPrograms are in the order in which they are attached: sockets can ask when all else is there.
var optionPrograms = []struct {
	name   string
	attach ebpf.AttachType
}{
	{"smc", ebpf.AttachCGroupSockOps},
	{"get", ebpf.AttachCGroupGetsockopt},
	{"set", ebpf.AttachCGroupSetsockopt},
}

// optionMaps are pinned with them.
var optionMaps = []string{"wishes", "listeners", "quotas", "crowded", "counters"}

// pairingMaps are pinned with them, and made where an earlier version has not pinned them.
var pairingMaps = []string{
	"modes", "pairs", "secret", "names", "reports", "reported", "reporters", "pair_counters",
}

// formerMaps were pinned by earlier versions.
var formerMaps = []string{"written"}

func linkPin(pins, program string) string { return filepath.Join(pins, "link_"+program) }

// AttachOption is [Attach] of all parts.
func AttachOption(cgroup, pins string) (*Option, error) { return Attach(cgroup, pins, Parts{}) }

// Attach attaches the programs to a control group, for all processes in it and below, and
// pins them in pins, which [PreparePins] has made. Programs that are pinned there already, of an
// earlier process or version, are exchanged for these without a moment in which there are none, and
// their knowledge of sockets stays. If some of the programs or maps are gone, or the maps have
// another layout, all of it is made anew: sockets that asked before have not asked then.
//
// A kernel that cannot pair sockets is no error: [Option.Pairing] has the reason.
func Attach(cgroup, pins string, parts Parts) (*Option, error) {
	var group unix.Stat_t
	if err := unix.Stat(cgroup, &group); err != nil {
		return nil, fmt.Errorf("bpf: control group %s: %w", cgroup, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroup, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, fmt.Errorf("bpf: %s is no control group of version 2", cgroup)
	}
	whole := complete(pins, group.Ino)
	if !whole { // sockets that ended meanwhile are still counted
		if err := DetachOption(pins); err != nil {
			return nil, err
		}
	}
	o := &Option{links: make(map[string]link.Link), cgroup: cgroup, parts: parts}
	c, err := o.load(pins)
	if errors.Is(err, ebpf.ErrMapIncompatible) { // another version's
		if err := DetachOption(pins); err != nil {
			return nil, err
		}
		c, err = o.load(pins)
	}
	if err != nil {
		if !whole { // the maps are pinned before the verifier sees a program
			_ = DetachOption(pins) // the first error is the reason
		}
		return nil, explain("load", err)
	}
	defer c.Close()
	if err := o.attach(c, group.Ino, pins); err != nil {
		o.Close()
		if !o.Found { // half of them are of no use
			_ = DetachOption(pins) // the first error is the reason
		}
		return nil, err
	}
	return o, nil
}

// attach attaches the programs of c, which may be in use by then if its error is not nil.
func (o *Option) attach(c *ebpf.Collection, group uint64, pins string) (err error) {
	if o.noPair == nil {
		if o.pairing, err = newPairing(c.Maps); err != nil { // before any socket can ask
			return err
		}
	}
	for _, p := range optionPrograms {
		l, found, err := attach(c.Programs[p.name], p.attach, o.cgroup, group, linkPin(pins, p.name))
		if err != nil {
			return err
		}
		o.links[p.name] = l
		o.Found = o.Found || found
	}
	if o.counters, err = c.Maps["counters"].Clone(); err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	return nil
}

// complete reports whether all programs are attached to a control group, and all maps are pinned with them.
func complete(pins string, group uint64) bool {
	for _, p := range optionPrograms {
		l, err := link.LoadPinnedLink(linkPin(pins, p.name), nil)
		if err != nil {
			return false
		}
		id, attached := groupOf(l)
		l.Close()
		if !attached || id != group {
			return false
		}
	}
	for _, name := range optionMaps {
		if _, err := os.Lstat(filepath.Join(pins, name)); err != nil {
			return false
		}
	}
	return true
}

// attach updates the link that is pinned at pin, if it is one to this control group, and else makes one.
func attach(p *ebpf.Program, kind ebpf.AttachType, cgroup string, inode uint64,
	pin string) (l link.Link, found bool, err error) {
	l, err = link.LoadPinnedLink(pin, nil)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, false, explain("pinned link "+pin, err)
	default:
		if id, attached := groupOf(l); attached && id == inode {
			if err := l.Update(p); err != nil {
				l.Close()
				return nil, false, explain("exchange the program of "+pin, err)
			}
			return l, true, nil
		}
		err := l.Unpin() // of a control group that is gone, or another one
		l.Close()
		if err != nil {
			return nil, false, explain("pinned link "+pin, err)
		}
	}
	l, err = link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: kind, Program: p})
	if err != nil {
		return nil, false, explain("attach", err)
	}
	if err := l.Pin(pin); err != nil {
		l.Close()
		return nil, false, explain("pin", err)
	}
	return l, false, nil
}

// groupOf returns the number of the control group that a link is attached to, if it is.
func groupOf(l link.Link) (id uint64, attached bool) {
	info, err := l.Info()
	if err != nil || info.Cgroup() == nil {
		return 0, false
	}
	return info.Cgroup().CgroupId, info.Cgroup().CgroupId != 0
}

// DetachOption takes the programs away that are pinned in pins, also where another process has them
// open. It is no error if there are none.
func DetachOption(pins string) error {
	var errs []error
	for i := len(optionPrograms) - 1; i >= 0; i-- { // those by which sockets ask first
		pin := linkPin(pins, optionPrograms[i].name)
		l, err := link.LoadPinnedLink(pin, nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, explain("pinned link "+pin, err))
			continue
		}
		if d, ok := l.(interface{ Detach() error }); ok {
			if err := d.Detach(); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
				errs = append(errs, explain("detach "+pin, err))
			}
		}
		if err := l.Unpin(); err != nil {
			errs = append(errs, explain("unpin "+pin, err))
		}
		l.Close()
	}
	for _, name := range slices.Concat(optionMaps, pairingMaps, formerMaps) {
		if err := os.Remove(filepath.Join(pins, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Attached reports whether all programs are attached: somebody may have detached them.
func (o *Option) Attached() bool {
	for _, l := range o.links {
		if _, attached := groupOf(l); !attached {
			return false
		}
	}
	return true
}

// Parts returns the parts that were left out by request.
func (o *Option) Parts() Parts { return o.parts }

// Cgroup returns the control group that the programs are attached to.
func (o *Option) Cgroup() string { return o.cgroup }

// OptionCounters are the counts of the programs since they were first attached: segments with the
// option, and connections of sockets that asked.
type OptionCounters struct {
	SYNSent        uint64 `json:"syn_sent"`
	SYNNoRoom      uint64 `json:"syn_no_room"`
	SYNFastOpen    uint64 `json:"syn_fast_open"`
	SYNSigned      uint64 `json:"syn_signed"`
	SYNACKSent     uint64 `json:"synack_sent"`
	SYNACKCookie   uint64 `json:"synack_cookie"`
	SYNACKNoRoom   uint64 `json:"synack_no_room"`
	SYNACKExcluded uint64 `json:"synack_excluded"`
	ClientBoth     uint64 `json:"client_both"`
	ClientAlone    uint64 `json:"client_alone"`
	ServerBoth     uint64 `json:"server_both"`
	ServerAlone    uint64 `json:"server_alone"`
	ListenersFull  uint64 `json:"listeners_full"`
}

// Counters reads the counters.
func (o *Option) Counters() (c OptionCounters, err error) {
	err = sumCounters(o.counters, // in the order of option.bpf.c, enum counter
		&c.SYNSent, &c.SYNNoRoom, &c.SYNFastOpen, &c.SYNSigned,
		&c.SYNACKSent, &c.SYNACKCookie, &c.SYNACKNoRoom, &c.SYNACKExcluded,
		&c.ClientBoth, &c.ClientAlone, &c.ServerBoth, &c.ServerAlone, &c.ListenersFull)
	return c, err
}

// sumCounters adds what each processor has counted to the sums, which are in the order of the map.
func sumCounters(counters *ebpf.Map, sums ...*uint64) error {
	for key, sum := range sums {
		var each []uint64 // by processor
		if err := counters.Lookup(uint32(key), &each); err != nil {
			return fmt.Errorf("bpf: counters: %w", err)
		}
		for _, n := range each {
			*sum += n
		}
	}
	return nil
}

// Close lets go of the programs, which stay attached.
func (o *Option) Close() {
	closeAll(o.links)
	if o.counters != nil {
		o.counters.Close()
	}
	if o.pairing != nil {
		o.pairing.Close()
	}
}
