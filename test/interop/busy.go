package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file has the excuses of a case that counts losses or late timers. Only packets that this
// machine or the guest has counted as dropped excuse the first. Only processors that were
// measurably busy with something else excuse the second.

// A dropCount belongs to a place where packets were dropped, since a queue was full.
type dropCount struct {
	place string // as a reader is told of it
	up    bool   // it can carry packets; drops count meanwhile
	total uint64 // dropped, since the machine was started
}

// A dropMeter adds up the packets that were dropped at places while they were up. The hub of qemu
// sends each broadcast to both taps, and the kernel counts packets to a tap that is down as
// dropped: that is no loss.
type dropMeter struct {
	read func() ([]dropCount, error)

	mu     sync.Mutex
	last   map[string]dropCount
	counts map[string]uint64 // by place
}

// newDropMeter begins to count.
func newDropMeter(read func() ([]dropCount, error)) (*dropMeter, error) {
	m := &dropMeter{read: read, last: make(map[string]dropCount), counts: make(map[string]uint64)}
	_, err := m.take()
	return m, err
}

// take looks at the places, and returns how many packets were dropped so far. It is called before a
// place goes down, and after it has come up.
func (m *dropMeter) take() (uint64, error) {
	drops, err := m.read()
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range drops {
		last, known := m.last[d.place]
		m.last[d.place] = d
		if known && d.up && last.up && d.total > last.total {
			m.counts[d.place] += d.total - last.total
		}
	}
	var sum uint64
	for _, n := range m.counts {
		sum += n
	}
	return sum, nil
}

// String lists the numbers of dropped packets, and the places.
func (m *dropMeter) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var words []string
	for _, place := range slices.Sorted(maps.Keys(m.counts)) {
		words = append(words, fmt.Sprintf("%d at %s", m.counts[place], place))
	}
	return strings.Join(words, ", ")
}

// dropsHere reads the counters of this network namespace: of packets for which a socket of ours had
// no room, and of those on their way through the taps.
func dropsHere() ([]dropCount, error) {
	snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return nil, err
	}
	sockets, err := parseSocketDrops(string(snmp))
	if err != nil {
		return nil, err
	}
	dev, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return nil, err
	}
	taps, err := parseDeviceDrops(string(dev), dataTap, secondTap)
	if err != nil {
		return nil, err
	}
	for i := range taps {
		dev, err := net.InterfaceByName(taps[i].place)
		if err != nil {
			return nil, err
		}
		taps[i].up = dev.Flags&net.FlagUp != 0
	}
	return append(taps, sockets), nil
}

// parseSocketDrops takes RcvbufErrors of UDP from /proc/net/snmp.
func parseSocketDrops(snmp string) (dropCount, error) {
	var titles []string
	for line := range strings.Lines(snmp) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] != "Udp:":
		case titles == nil:
			titles = words
		default:
			at := slices.Index(titles, "RcvbufErrors")
			if at < 0 || at >= len(words) {
				return dropCount{}, fmt.Errorf("no RcvbufErrors in %q", snmp)
			}
			n, err := strconv.ParseUint(words[at], 10, 64)
			return dropCount{"UDP sockets", true, n}, err
		}
	}
	return dropCount{}, fmt.Errorf("no counters of UDP in\n%s", snmp)
}

// parseDeviceDrops takes the drop counts of interfaces from /proc/net/dev.
func parseDeviceDrops(dev string, names ...string) (drops []dropCount, err error) {
	columns := []int{3, 11} // received and transmitted packets that were dropped
	for line := range strings.Lines(dev) {
		name, numbers, _ := strings.Cut(strings.TrimSpace(line), ":")
		words := strings.Fields(numbers)
		if !slices.Contains(names, name) || len(words) <= slices.Max(columns) {
			continue
		}
		d := dropCount{place: name}
		for _, column := range columns {
			n, err := strconv.ParseUint(words[column], 10, 64)
			if err != nil {
				return nil, err
			}
			d.total += n
		}
		drops = append(drops, d)
	}
	if len(drops) != len(names) {
		return nil, fmt.Errorf("no counters of %v in\n%s", names, dev)
	}
	return drops, nil
}

// dropsInGuest reads the counters of the guest's interfaces, and of its queue of packets that no
// processor has taken yet.
func (l *lab) dropsInGuest(ctx context.Context) ([]dropCount, error) {
	text, err := l.vm.run(ctx, commandTimeout, "cat /proc/net/dev; cat /sys/class/net/eth0/flags /sys/class/net/eth2/flags; cat /proc/net/softnet_stat")
	if err != nil {
		return nil, err
	}
	return parseGuestDrops(text)
}

// parseGuestDrops takes /proc/net/dev, the flags of eth0 and of eth2, and /proc/net/softnet_stat.
func parseGuestDrops(text string) ([]dropCount, error) {
	interfaces := []string{"eth0", "eth2"}
	drops, err := parseDeviceDrops(text, interfaces...)
	if err != nil {
		return nil, err
	}
	const isUp = 1 // IFF_UP
	lines := strings.Split(strings.TrimSpace(text), "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "0x") })
	if at < 0 || len(lines) < at+len(interfaces)+1 {
		return nil, fmt.Errorf("no flags of %v, or nothing behind them, in\n%s", interfaces, text)
	}
	for i, name := range interfaces {
		flags, err := strconv.ParseUint(strings.TrimSpace(lines[at+i]), 0, 32)
		if err != nil {
			return nil, err
		}
		for j := range drops {
			if drops[j].place == name {
				drops[j].up = flags&isUp != 0
				drops[j].place = "the guest's " + name
			}
		}
	}
	backlog := dropCount{place: "the guest's backlog", up: true}
	for _, line := range lines[at+len(interfaces):] {
		words := strings.Fields(line)
		if len(words) < 2 {
			return nil, fmt.Errorf("softnet_stat of the guest has %q", line)
		}
		n, err := strconv.ParseUint(words[1], 16, 64) // packets that were dropped
		if err != nil {
			return nil, err
		}
		backlog.total += n
	}
	return append(drops, backlog), nil
}

// A loadMeter measures how much of this machine's processors others have taken: time that neither
// this process nor its children used, and time that the host of a virtual machine took away.
type loadMeter struct {
	stop  chan struct{}
	done  chan struct{}
	worst load
	err   error
}

// A load is the share of all processors that others had in a window of time.
type load struct {
	others, steal float64
	window        time.Duration
}

func (l load) String() string {
	return fmt.Sprintf("in %v others took %.0f %% of this machine's processors, and its host %.0f %%",
		l.window.Round(100*time.Millisecond), 100*l.others, 100*l.steal)
}

const (
	// loadWindow is the shortest time over which load is measured. The kernel counts in ticks of 10 ms.
	loadWindow = time.Second
	// tooBusy is the share from which on a window excuses timers that were late: on a quiet machine
	// others take less than 5 %.
	tooBusy = 0.2
)

// busy reports whether timers may have been late.
func (l load) busy() bool { return l.others+l.steal >= tooBusy }

// newLoadMeter measures until it is stopped.
func newLoadMeter() *loadMeter {
	m := &loadMeter{stop: make(chan struct{}), done: make(chan struct{})}
	go m.run()
	return m
}

func (m *loadMeter) run() {
	defer close(m.done)
	last, err := readTicks()
	if err != nil {
		m.err = err
		return
	}
	ticker := time.NewTicker(loadWindow)
	defer ticker.Stop()
	began, ended := time.Now(), false
	for whole := false; !ended; whole = true {
		select {
		case <-ticker.C:
		case <-m.stop:
			ended = true
		}
		if ended && whole && time.Since(began) < loadWindow/2 {
			return // too short to tell, and there are others
		}
		now, err := readTicks()
		if err != nil {
			m.err = err
			return
		}
		l := now.since(last)
		l.window = time.Since(began)
		if l.others+l.steal > m.worst.others+m.worst.steal || m.worst.window == 0 {
			m.worst = l
		}
		began, last = time.Now(), now
	}
}

// result stops it, and returns the worst window.
func (m *loadMeter) result() (load, error) {
	select {
	case <-m.stop:
	default:
		close(m.stop)
	}
	<-m.done
	return m.worst, m.err
}

// ticks are times of processors, in the kernel's clock ticks.
type ticks struct{ all, busy, steal, own uint64 }

// since returns the load between two readings.
func (t ticks) since(last ticks) (l load) {
	all := float64(t.all - last.all)
	if all <= 0 {
		return l
	}
	l.others = max(0, float64(t.busy-last.busy)-float64(t.own-min(t.own, last.own))) / all
	l.steal = float64(t.steal-last.steal) / all
	return l
}

func readTicks() (t ticks, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	if t, err = parseTicks(string(text)); err != nil {
		return t, err
	}
	t.own, err = ownTicks()
	return t, err
}

// parseTicks takes the first line of /proc/stat. Time of interrupts is nobody's: our own packets
// make most of them.
func parseTicks(stat string) (t ticks, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	words := strings.Fields(line)
	const user, nice, system, steal = 1, 2, 3, 8
	if len(words) <= steal || words[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, word := range words[1 : steal+1] {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return t, err
		}
		t.all += n
		switch i + 1 {
		case user, nice, system:
			t.busy += n
		case steal:
			t.steal = n
		}
	}
	return t, nil
}

// ownTicks returns the time of this process, of all below it, and of those that have ended.
func ownTicks() (uint64, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	parents, times := make(map[int]int), make(map[int]uint64)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, parent, time, err := parseProcess(string(text))
		if err != nil {
			return 0, err
		}
		parents[pid], times[pid] = parent, time
	}
	self, sum := os.Getpid(), uint64(0)
	for pid := range times {
		for p, steps := pid, 0; p != 0 && steps < len(parents); p, steps = parents[p], steps+1 {
			if p == self {
				sum += times[pid]
				break
			}
		}
	}
	return sum, nil
}

// parseProcess takes the process, its parent, and the ticks that it and its children have used from
// /proc/PID/stat.
func parseProcess(stat string) (pid, parent int, used uint64, err error) {
	number, _, _ := strings.Cut(stat, " ")
	if pid, err = strconv.Atoi(number); err != nil {
		return 0, 0, 0, err
	}
	words := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // a name may have brackets
	const ppid, utime, cstime = 1, 11, 14                          // counted from the state
	if len(words) <= cstime {
		return 0, 0, 0, fmt.Errorf("/proc/%d/stat has %q", pid, stat)
	}
	if parent, err = strconv.Atoi(words[ppid]); err != nil {
		return 0, 0, 0, err
	}
	for _, word := range words[utime : cstime+1] {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, 0, 0, err
		}
		used += n
	}
	return pid, parent, used, nil
}
