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

	"github.com/gosmc/smc/internal/option"
)

// An Option is the programs of option.bpf.c, attached to a control group. They stay when it is closed.
type Option struct {
	counters *ebpf.Map
	links    map[string]link.Link
	cgroup   string
	Found    bool // the programs were attached already, and were exchanged for ours
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

// formerMaps were pinned by earlier versions.
var formerMaps = []string{"written"}

func linkPin(pins, program string) string { return filepath.Join(pins, "link_"+program) }

// AttachOption attaches the programs to a control group, for all processes in it and below, and
// pins them in pins, which [PreparePins] has made. Programs that are pinned there already, of an
// earlier process or version, are exchanged for these without a moment in which there are none, and
// their knowledge of sockets stays. If some of the programs or maps are gone, or the maps have
// another layout, all of it is made anew: sockets that asked before have not asked then.
func AttachOption(cgroup, pins string) (*Option, error) {
	var group unix.Stat_t
	if err := unix.Stat(cgroup, &group); err != nil {
		return nil, fmt.Errorf("bpf: control group %s: %w", cgroup, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroup, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, fmt.Errorf("bpf: %s is no control group of version 2", cgroup)
	}
	spec, err := load(optionObject)
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["option_name"].Set(option.Name); err != nil {
		return nil, fmt.Errorf("bpf: %w", err)
	}
	whole := complete(pins, group.Ino)
	if !whole { // sockets that ended meanwhile are still counted
		if err := DetachOption(pins); err != nil {
			return nil, err
		}
	}
	options := ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}}
	c, err := ebpf.NewCollectionWithOptions(spec, options)
	if errors.Is(err, ebpf.ErrMapIncompatible) { // another version's
		if err := DetachOption(pins); err != nil {
			return nil, err
		}
		c, err = ebpf.NewCollectionWithOptions(spec, options)
	}
	if err != nil {
		if !whole { // the maps are pinned before the verifier sees a program
			_ = DetachOption(pins) // the first error is the reason
		}
		return nil, explain("load", err)
	}
	defer c.Close()
	o := &Option{links: make(map[string]link.Link), cgroup: cgroup}
	for _, p := range optionPrograms {
		l, found, err := attach(c.Programs[p.name], p.attach, cgroup, group.Ino, linkPin(pins, p.name))
		if err != nil {
			o.Close()
			if !o.Found { // half of them are of no use
				_ = DetachOption(pins) // the first error is the reason
			}
			return nil, err
		}
		o.links[p.name] = l
		o.Found = o.Found || found
	}
	if o.counters, err = c.Maps["counters"].Clone(); err != nil {
		o.Close()
		return nil, fmt.Errorf("bpf: %w", err)
	}
	return o, nil
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
func attach(p *ebpf.Program, kind ebpf.AttachType, cgroup string, inode uint64, pin string) (l link.Link, found bool, err error) {
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
	for _, name := range slices.Concat(optionMaps, formerMaps) {
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
	// In the order of option.bpf.c, enum counter.
	for key, sum := range []*uint64{
		&c.SYNSent, &c.SYNNoRoom, &c.SYNFastOpen, &c.SYNSigned, &c.SYNACKSent, &c.SYNACKCookie, &c.SYNACKNoRoom, &c.SYNACKExcluded,
		&c.ClientBoth, &c.ClientAlone, &c.ServerBoth, &c.ServerAlone, &c.ListenersFull,
	} {
		var each []uint64 // by processor
		if err := o.counters.Lookup(uint32(key), &each); err != nil {
			return c, fmt.Errorf("bpf: counters: %w", err)
		}
		for _, n := range each {
			*sum += n
		}
	}
	return c, nil
}

// Close lets go of the programs, which stay attached.
func (o *Option) Close() {
	closeAll(o.links)
	if o.counters != nil {
		o.counters.Close()
	}
}
