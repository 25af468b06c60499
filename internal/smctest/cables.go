package smctest

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Cables are two network namespaces joined by cables, each with an interface at either end: cable0,
// cable1 and so on. All addresses of a family are of one subnet, so that every cable leads to every address.
// They are gone with the test.
type Cables struct {
	Run  [2]func(f func()) // calls f on a thread that is in the namespace
	Addr [][2]netip.Addr   // IPv4, by cable and end
	Six  [][2]netip.Addr   // IPv6, not link-local

	t  testing.TB
	ns [2]string // of the namespaces, as files
}

// NewCables makes n cables. The test is skipped where that is not permitted.
func NewCables(t testing.TB, n int) *Cables {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("needs iproute2: %v", err)
	}
	c := &Cables{t: t}
	ns := &c.ns
	for end := range c.Run {
		c.Run[end], ns[end] = EnterNamespace(t)
		c.IP(end, "link set lo up")
		// Another cable may be the shorter way back.
		c.Sysctl(end, "net/ipv4/conf/all/rp_filter", "0")
		c.Sysctl(end, "net/ipv4/conf/default/rp_filter", "0")
		c.Sysctl(end, "net/ipv6/conf/default/accept_dad", "0") // nobody else has the addresses
	}
	for i := range n {
		c.IP(0, fmt.Sprintf("link add cable%d type veth peer name peer%d", i, i))
		c.IP(0, fmt.Sprintf("link set peer%d netns %s", i, ns[1]))
		c.IP(1, fmt.Sprintf("link set peer%d name cable%d", i, i))
		var four, six [2]netip.Addr
		for end := range 2 {
			host := byte(2*i + end + 1)
			four[end] = netip.AddrFrom4([4]byte{10, 99, 0, host})
			six[end] = netip.AddrFrom16([16]byte{0: 0xfd, 15: host})
			c.IP(end, fmt.Sprintf("addr add %v/24 dev cable%d", four[end], i))
			c.IP(end, fmt.Sprintf("addr add %v/64 dev cable%d nodad", six[end], i))
			c.IP(end, fmt.Sprintf("link set cable%d up", i))
		}
		c.Addr, c.Six = append(c.Addr, four), append(c.Six, six)
		for _, run := range c.Run {
			AwaitCarrier(t, run, fmt.Sprintf("cable%d", i))
		}
	}
	return c
}

// Visit calls f on a thread of its own that is in the namespace of an end, also from within Run.
func (c *Cables) Visit(end int, f func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := os.Open(c.ns[end])
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		c.t.Errorf("entering the namespace: %v", err)
	}
}

// IP runs ip(8) at an end, with arguments that have no spaces.
func (c *Cables) IP(end int, args string) {
	c.t.Helper()
	var out []byte
	var err error
	c.Run[end](func() { out, err = exec.Command("ip", strings.Fields(args)...).CombinedOutput() })
	if err != nil {
		c.t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// Sysctl writes a value below /proc/sys at an end.
func (c *Cables) Sysctl(end int, name, value string) {
	c.t.Helper()
	var err error
	c.Run[end](func() { err = os.WriteFile("/proc/sys/"+name, []byte(value), 0) })
	if err != nil {
		c.t.Fatalf("sysctl: %v", err)
	}
}
