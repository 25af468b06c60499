package inventory

import (
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/survey"
)

func groupsOf(pid int, ids ...uint32) control.Status {
	h := control.Status{PID: pid, Command: "server", Dir: "/run/\x1b"}
	for _, id := range ids {
		h.Groups = append(h.Groups, control.StatusGroup{ID: id})
		h.Devices = append(h.Devices, control.StatusDevice{Links: int(id)})
	}
	return h
}

// TestGroupOwner looks for the host that a number of a link group means.
func TestGroupOwner(t *testing.T) {
	a := &survey.Answers{Hosts: []control.Status{groupsOf(10, 1, 2), groupsOf(11, 2), groupsOf(12)}}
	for _, tt := range []struct {
		group uint32
		pid   int
		want  string // the process, or a part of the error
	}{
		{1, 0, "10"},
		{1, 11, "process 11 has no link group 00000001"},
		{2, 0, "2 hosts have a link group 00000002, choose one with --pid or --dir: 10/server in /run/?, 11/server"},
		{2, 11, "11"},
		{3, 0, "no host has a link group 00000003"},
	} {
		h, err := GroupOwner(a, tt.group, tt.pid)
		if err == nil && h != &a.Hosts[h.PID-10] || err == nil && tt.want[0] != '1' || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("GroupOwner(%d, %d) = %v, %v, want %s", tt.group, tt.pid, h, err, tt.want)
		}
	}
}

// TestLinkGroups lists link groups and devices with their hosts.
func TestLinkGroups(t *testing.T) {
	a := &survey.Answers{Hosts: []control.Status{groupsOf(10, 1, 2), groupsOf(11, 2)}, Denied: 3}
	all, one, devices := NewLinkGroupList(a, nil), NewLinkGroupList(a, new(uint32(2))), NewDeviceList(a)
	if len(all.Groups) != 3 || all.Denied != 3 || all.Errors == nil {
		t.Errorf("all link groups: %+v", all)
	}
	if len(one.Groups) != 2 || one.Groups[0].PID != 10 || one.Groups[1].PID != 11 || one.Groups[1].ID != 2 {
		t.Errorf("link groups with the number 2: %+v", one)
	}
	if len(devices.Devices) != 3 || devices.Devices[2].PID != 11 || devices.Denied != 3 || devices.Errors == nil {
		t.Errorf("devices: %+v", devices)
	}
	if none := NewLinkGroupList(&survey.Answers{}, nil); none.Groups == nil || none.Errors == nil {
		t.Errorf("no link groups are %+v, want lists that are not nil", none)
	}
}
