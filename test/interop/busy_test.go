package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Packets count only if they were dropped while a place was up.
func TestDropMeter(t *testing.T) {
	now := []dropCount{{"data0", true, 7}, {"data1", false, 100}}
	var failure error
	m, err := newDropMeter(func() ([]dropCount, error) { return slices.Clone(now), failure })
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		what string
		now  []dropCount
		want uint64
	}{
		{"nothing", []dropCount{{"data0", true, 7}, {"data1", false, 100}}, 0},
		{"a tap that is down", []dropCount{{"data0", true, 7}, {"data1", false, 300}}, 0},
		{"it has come up", []dropCount{{"data0", true, 7}, {"data1", true, 305}}, 0},
		{"it is up", []dropCount{{"data0", true, 7}, {"data1", true, 308}}, 3},
		{"it has gone down", []dropCount{{"data0", true, 7}, {"data1", false, 309}}, 3},
		{"the other one", []dropCount{{"data0", true, 9}, {"data1", false, 400}}, 5},
		{"one that was not there", []dropCount{{"data0", true, 9}, {"data1", false, 400}, {"data2", true, 50}}, 5},
	} {
		now = step.now
		if got, err := m.take(); got != step.want || err != nil {
			t.Errorf("%s: take = %d, %v; want %d", step.what, got, err, step.want)
		}
	}
	if got, want := m.String(), "2 at data0, 3 at data1"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
	failure = errors.New("none")
	if _, err := m.take(); err == nil {
		t.Error("take without counters has no error")
	}
}

const someDevices = "Inter-|   Receive                                                |  Transmit\n" +
	" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n" +
	"    lo: 1 2 0 9 0 0 0 0 1 2 0 9 0 0 0 0\n" +
	"  eth0: 9900 99 0 8 0 0 0 0 7700 77 0 3 0 0 0 0\n" +
	"  eth2: 9900 99 0 1 0 0 0 0 7700 77 0 2 0 0 0 0\n"

// Counters that are not there are an error: a counter that was not read excuses no case.
func TestParseDrops(t *testing.T) {
	const snmp = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdp: 10 1 5 10 4 0\nUdpLite: InDatagrams\nUdpLite: 0\n"
	if got, err := parseSocketDrops(snmp); got.total != 4 || !got.up || err != nil {
		t.Errorf("parseSocketDrops = %+v, %v; want 4", got, err)
	}
	for _, bad := range []string{"", strings.ReplaceAll(snmp, "Rcvbuf", "Other"), strings.ReplaceAll(snmp, "10 4 0", "10 x 0")} {
		if got, err := parseSocketDrops(bad); err == nil {
			t.Errorf("parseSocketDrops(%q) = %+v, want an error", bad, got)
		}
	}
	const flags, softnet = "0x1043\n0x1002\n", "000003e8 00000010 00000000\n000003e8 00000002 00000000\n"
	want := []dropCount{{"the guest's eth0", true, 11}, {"the guest's eth2", false, 3}, {"the guest's backlog", true, 18}}
	if got, err := parseGuestDrops(someDevices + flags + softnet); !slices.Equal(got, want) || err != nil {
		t.Errorf("parseGuestDrops = %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{
		"", someDevices, someDevices + flags, someDevices + "0x1043\n" + softnet, strings.ReplaceAll(someDevices, "eth2", "eth3") + flags + softnet,
		strings.ReplaceAll(someDevices, "77 0 3", "77 0 x") + flags + softnet, someDevices + flags + "000003e8\n", someDevices + flags + "000003e8 g 0\n",
	} {
		if got, err := parseGuestDrops(bad); err == nil {
			t.Errorf("parseGuestDrops(%q) = %+v, want an error", bad, got)
		}
	}
}

// Others are processes that are not ours, and the host of a virtual machine.
func TestLoad(t *testing.T) {
	first, err := parseTicks("cpu  100 10 50 1000 5 3 2 20 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	if want := (ticks{all: 1190, busy: 160, steal: 20}); first != want || err != nil {
		t.Fatalf("parseTicks = %+v, %v; want %+v", first, err, want)
	}
	first.own = 40
	for _, tt := range []struct {
		name   string
		now    ticks
		others float64
		steal  float64
		busy   bool
	}{
		{"idle", ticks{all: 1390, busy: 160, steal: 20, own: 40}, 0, 0, false},
		{"only we", ticks{all: 1390, busy: 350, steal: 20, own: 230}, 0, 0, false},
		{"others", ticks{all: 1390, busy: 260, steal: 20, own: 40}, 0.5, 0, true},
		{"both", ticks{all: 1390, busy: 360, steal: 20, own: 225}, 0.075, 0, false},
		{"the host", ticks{all: 1390, busy: 160, steal: 80, own: 40}, 0, 0.3, true},
		{"ours seem to be more", ticks{all: 1390, busy: 165, steal: 20, own: 60}, 0, 0, false},
		{"no time", first, 0, 0, false},
	} {
		if got := tt.now.since(first); got.others != tt.others || got.steal != tt.steal || got.busy() != tt.busy {
			t.Errorf("%s: %+v, busy %t; want %v, %v, %t", tt.name, got, got.busy(), tt.others, tt.steal, tt.busy)
		}
	}
	for _, bad := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu 1 2 x 4 5 6 7 8"} {
		if got, err := parseTicks(bad); err == nil {
			t.Errorf("parseTicks(%q) = %+v, want an error", bad, got)
		}
	}
	pid, parent, used, err := parseProcess("77 (a) b (c) S 5 77 77 0 -1 4194304 100 0 0 0 11 12 13 14 20 0 1 0 100\n")
	if pid != 77 || parent != 5 || used != 50 || err != nil {
		t.Errorf("parseProcess = %d, %d, %d, %v; want 77, 5, 50", pid, parent, used, err)
	}
	for _, bad := range []string{"", "x (a) S 5", "77 (a) S 5 77", "77 (a) S 5 77 77 0 -1 4194304 100 0 0 0 11 y 13 14 20"} {
		if pid, parent, used, err := parseProcess(bad); err == nil {
			t.Errorf("parseProcess(%q) = %d, %d, %d, want an error", bad, pid, parent, used)
		}
	}
	m := newLoadMeter()
	if got, err := m.result(); err != nil || got.window <= 0 {
		t.Errorf("a load meter measures %+v, %v; want some window", got, err)
	}
}
