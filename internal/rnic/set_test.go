package rnic

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

var (
	loop1 = netip.MustParseAddr("127.0.0.1")
	loop2 = netip.MustParseAddr("127.0.0.2")
)

// patience bounds how long a test waits.
const patience = 10 * time.Second

// newSet returns a Set that is closed after the test.
func newSet(t *testing.T, cfg Config) *Set {
	t.Helper()
	if cfg.Namespace == nil {
		cfg.Namespace = func(f func()) { f() }
	}
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.Logger, cfg.Diagnose = slog.New(slog.DiscardHandler), error.Error
	s := New(cfg)
	t.Cleanup(func() { s.Close(true) })
	return s
}

// rnicUse counts the events of its device.
type rnicUse struct {
	ends   atomic.Int32
	reason atomic.Value
}

func (u *rnicUse) Critical() bool { return false }

func (u *rnicUse) RNICEvent(_ wire.MTU, reason error) {
	u.reason.Store(reason.Error())
	u.ends.Add(1)
}

func TestRNIC(t *testing.T) {
	smctest.CheckLeaks(t)
	cfg := Config{RDMA: rdma.Config{Port: smctest.FreePort(t, loop1)}}
	h, other := newSet(t, cfg), newSet(t, cfg)
	a, err := h.Acquire(loop1)
	if err != nil {
		t.Fatal(err)
	}
	if a.Route(loop2) != RouteDirect || a.Route(netip.MustParseAddr("192.0.2.1")) == RouteDirect {
		t.Errorf("direct on the networks %v: not 127.0.0.2, or 192.0.2.1", a.nets)
	}
	b, err := h.Acquire(loop1)
	if err != nil || a != b {
		t.Fatalf("the second use got another device, %v", err)
	}
	if _, err := other.Acquire(loop1); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another host's device: %v, want %v", err, unix.EADDRINUSE)
	}
	if _, err := h.Acquire(netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("a device on an address of another machine")
	}
	a.Release()
	h.closeUnused()
	if c, err := h.Acquire(loop1); err != nil || c != a {
		t.Fatalf("a device was closed that was in use: %v", err)
	}
	a.Release()
	b.Release()
	smctest.Eventually(t, patience, "the device is closed", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.open) == 0
	})
	<-a.done
	h.Close(true)
	if _, err := h.Acquire(loop1); !errors.Is(err, ErrClosed) {
		t.Errorf("acquire after Close = %v", err)
	}
}

// TestRNICDown takes a device's address and interface away.
func TestRNICDown(t *testing.T) {
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 1)
	h := newSet(t, Config{Namespace: cables.Run[0]})
	addr := cables.Addr[0][0]
	n, err := h.Acquire(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	var use rnicUse
	if err := n.AddUser(&use); err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct{ down, up, says string }{
		{"link set cable0 down", "link set cable0 up", verbs.EventInterfaceDown.String()},
		{"addr del " + addr.String() + "/24 dev cable0", "addr add " + addr.String() + "/24 dev cable0", verbs.EventAddressGone.String()},
	} {
		cables.IP(0, tt.down)
		smctest.Eventually(t, patience, tt.says, func() bool { return use.ends.Load() == int32(i+1) })
		if got := use.reason.Load().(string); !strings.Contains(got, tt.says) {
			t.Errorf("after %s links end for %q, want %q", tt.down, got, tt.says)
		}
		if _, err := h.Acquire(addr); !errors.Is(err, ErrDown) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("after %s Acquire = %v", tt.down, err)
		}
		if err := n.AddUser(&rnicUse{}); err == nil {
			t.Errorf("after %s a link can begin", tt.down)
		}
		cables.IP(0, tt.up)
		smctest.Eventually(t, patience, tt.up, func() bool {
			again, err := h.Acquire(addr)
			if err == nil {
				again.Release()
			}
			return err == nil
		})
	}
	n.RemoveUser(&use)
	cables.IP(0, "link set cable0 mtu 1280")
	cables.IP(0, "link set cable0 down")
	smctest.Eventually(t, patience, "down", func() bool { _, err := h.Acquire(addr); return err != nil })
	if use.ends.Load() != 2 {
		t.Error("who had no more links there was told")
	}
}

// TestRNICDownTwice has an interface that goes down and loses its address, as it does with IPv6: it takes both to be back.
func TestRNICDownTwice(t *testing.T) {
	smctest.CheckLeaks(t)
	h := newSet(t, Config{RDMA: rdma.Config{Port: smctest.FreePort(t, loop1)}})
	n, err := h.Acquire(loop1)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	for _, step := range []struct {
		kind verbs.EventKind
		down string
	}{
		{verbs.EventInterfaceDown, "interface down"},
		{verbs.EventAddressGone, "address gone"},
		{verbs.EventInterfaceUp, "address gone"},
		{verbs.EventAddressBack, ""},
		{verbs.EventAddressGone, "address gone"},
		{verbs.EventInterfaceDown, "interface down"},
		{verbs.EventAddressBack, "interface down"},
		{verbs.EventInterfaceUp, ""},
	} {
		n.HandleEvent(&verbs.Event{Kind: step.kind})
		n.mu.Lock()
		if n.down != step.down {
			t.Errorf("after %v it is down for %q, want %q", step.kind, n.down, step.down)
		}
		n.mu.Unlock()
	}
	if got := n.outages.Load(); got != 2 {
		t.Errorf("%d outages, want 2", got)
	}
}

// TestRNICRemoved has a device that was removed stay down, whatever comes after. A new device takes its
// place when nobody uses it any more. Names of devices that this machine does not have change nothing.
func TestRNICRemoved(t *testing.T) {
	smctest.CheckLeaks(t)
	h := newSet(t, Config{Kernel: []string{"none"}, RDMA: rdma.Config{Port: smctest.FreePort(t, loop1)}})
	n, err := h.Acquire(loop1)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []verbs.EventKind{
		verbs.EventDeviceRemoved, verbs.EventInterfaceUp, verbs.EventAddressGone, verbs.EventAddressBack,
	} {
		n.HandleEvent(&verbs.Event{Kind: kind})
		if !n.IsDown() {
			t.Errorf("it is up after %v", kind)
		}
	}
	n.Release()
	for {
		again, err := h.Acquire(loop1)
		if err == nil {
			again.Release()
			if again == n {
				t.Error("the removed device is used again")
			}
			return
		}
		if !errors.Is(err, ErrDown) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestRNICChoice looks at which of a machine's addresses is used.
func TestRNICChoice(t *testing.T) {
	cables := smctest.NewCables(t, 2)
	first, second := cables.Addr[0][0], cables.Addr[1][0]
	remote := cables.Addr[1][1]
	cables.IP(0, "route add "+remote.String()+"/32 dev cable1 src "+second.String())
	for _, tt := range []struct {
		allowed       []string
		local, remote netip.Addr
		want          netip.Addr
	}{
		{nil, first, remote, first},
		{nil, second, netip.Addr{}, second},
		{[]string{"10.99.0.0/16"}, first, netip.Addr{}, first},
		{[]string{"10.99.0.0/16"}, first, remote, second}, // where the route goes
		{[]string{first.String()}, first, remote, first},
		{[]string{second.String()}, first, netip.Addr{}, second},
		{[]string{"192.0.2.0/24"}, first, remote, netip.Addr{}},
		{[]string{"fd00::/8"}, first, remote, netip.Addr{}},
		{[]string{"fd00::/8"}, cables.Six[0][0], cables.Six[0][1], cables.Six[0][0]},
	} {
		h := newSet(t, Config{Namespace: cables.Run[0], Allowed: prefixes(t, tt.allowed)})
		got, err := h.Choose(tt.local, tt.remote)
		if got != tt.want || (err != nil) != !tt.want.IsValid() {
			t.Errorf("allowed %v: Choose(%v, %v) = %v, %v, want %v", tt.allowed, tt.local, tt.remote, got, err, tt.want)
		}
	}
}

// TestRNICAgent has an agent that refuses its part of the port.
func TestRNICAgent(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(port.EnvSocket, "")
	l, err := net.Listen("unixpacket", filepath.Join(dir, port.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, port.MaxRequest))
			c.Write([]byte(`{"version":1,"error":"not you"}`))
			c.Close()
		}
	}()
	h := newSet(t, Config{Dir: dir})
	_, err = h.Acquire(loop1)
	if !errors.As(err, new(*port.RefusedError)) || !strings.Contains(err.Error(), "not you") {
		t.Errorf("Acquire = %v", err)
	}
}

// TestRNICCloseDuringChange has interfaces change while a device is closed, with the lock that is held then: the device's goroutine, for whose end the closer
// waits, does not wait for the closer.
func TestRNICCloseDuringChange(t *testing.T) {
	h := newSet(t, Config{})
	h.mu.Lock()
	told := make(chan struct{})
	go func() {
		h.othersChanged()
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(patience):
		t.Error("who tells of a change waits for who closes devices")
	}
	h.mu.Unlock()
	<-told
}

func prefixes(t *testing.T, list []string) (out []netip.Prefix) {
	t.Helper()
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			addr := netip.MustParseAddr(text)
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		out = append(out, p)
	}
	return out
}
