package host

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

var (
	loop1 = netip.MustParseAddr("127.0.0.1")
	loop2 = netip.MustParseAddr("127.0.0.2")
	loop3 = netip.MustParseAddr("127.0.0.3")
)

// rnicUse counts what its device tells.
type rnicUse struct {
	ends   atomic.Int32
	reason atomic.Value
}

func (u *rnicUse) rnicEvent(_ wire.MTU, reason error) {
	u.reason.Store(reason.Error())
	u.ends.Add(1)
}

func TestRNIC(t *testing.T) {
	smctest.CheckLeaks(t)
	cfg := Config{RDMA: rdma.Config{Port: smctest.FreePort(t, loop1)}}
	h, other := newTestHost(t, cfg), newTestHost(t, cfg)
	a, err := h.rnics.acquire(loop1)
	if err != nil {
		t.Fatal(err)
	}
	if a.route(loop2) != routeDirect || a.route(netip.MustParseAddr("192.0.2.1")) == routeDirect {
		t.Errorf("direct on the networks %v: not 127.0.0.2, or 192.0.2.1", a.nets)
	}
	b, err := h.rnics.acquire(loop1)
	if err != nil || a != b {
		t.Fatalf("the second use got another device, %v", err)
	}
	if _, err := other.rnics.acquire(loop1); err == nil || rnicReason(err) != clc.DiagPortInUse {
		t.Errorf("another host's device: %v, reason %v, want %v", err, rnicReason(err), clc.DiagPortInUse)
	}
	if _, err := h.rnics.acquire(netip.MustParseAddr("192.0.2.1")); err == nil || rnicReason(err) != clc.DiagNoSMCRDevice {
		t.Errorf("an address that we have not: %v, reason %v", err, rnicReason(err))
	}
	a.release()
	h.rnics.closeUnused()
	if c, err := h.rnics.acquire(loop1); err != nil || c != a {
		t.Fatalf("a device was closed that was in use: %v", err)
	}
	a.release()
	b.release()
	smctest.Eventually(t, patience, "the device is closed", func() bool {
		h.rnics.mu.Lock()
		defer h.rnics.mu.Unlock()
		return len(h.rnics.open) == 0
	})
	<-a.done
	h.Close()
	if _, err := h.rnics.acquire(loop1); !errors.Is(err, errHostClosed) {
		t.Errorf("acquire after Close = %v", err)
	}
}

// TestRNICDown takes a device's address and interface away.
func TestRNICDown(t *testing.T) {
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 1)
	h := newTestHost(t, Config{Namespace: cables.Run[0]})
	addr := cables.Addr[0][0]
	n, err := h.rnics.acquire(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer n.release()
	var use rnicUse
	if err := n.add(&use); err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct{ down, up, says string }{
		{"link set cable0 down", "link set cable0 up", rdma.EventInterfaceDown.String()},
		{"addr del " + addr.String() + "/24 dev cable0", "addr add " + addr.String() + "/24 dev cable0", rdma.EventAddressGone.String()},
	} {
		cables.IP(0, tt.down)
		smctest.Eventually(t, patience, tt.says, func() bool { return use.ends.Load() == int32(i+1) })
		if got := use.reason.Load().(string); !strings.Contains(got, tt.says) {
			t.Errorf("after %s links end for %q, want %q", tt.down, got, tt.says)
		}
		if _, err := h.rnics.acquire(addr); rnicReason(err) != clc.DiagRNICDown || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("after %s acquire = %v, reason %v", tt.down, err, rnicReason(err))
		}
		if err := n.add(&rnicUse{}); err == nil {
			t.Errorf("after %s a link can begin", tt.down)
		}
		cables.IP(0, tt.up)
		smctest.Eventually(t, patience, tt.up, func() bool {
			again, err := h.rnics.acquire(addr)
			if err == nil {
				again.release()
			}
			return err == nil
		})
	}
	n.remove(&use)
	cables.IP(0, "link set cable0 mtu 1280")
	cables.IP(0, "link set cable0 down")
	smctest.Eventually(t, patience, "down", func() bool { _, err := h.rnics.acquire(addr); return err != nil })
	if use.ends.Load() != 2 {
		t.Error("who had no more links there was told")
	}
}

// TestRNICDownTwice has an interface that goes down and loses its address, as it does with IPv6: it takes both to be back.
func TestRNICDownTwice(t *testing.T) {
	smctest.CheckLeaks(t)
	h := newTestHost(t, Config{RDMA: rdma.Config{Port: smctest.FreePort(t, loop1)}})
	n, err := h.rnics.acquire(loop1)
	if err != nil {
		t.Fatal(err)
	}
	defer n.release()
	for _, step := range []struct {
		kind rdma.EventKind
		down string
	}{
		{rdma.EventInterfaceDown, "interface down"},
		{rdma.EventAddressGone, "address gone"},
		{rdma.EventInterfaceUp, "address gone"},
		{rdma.EventAddressBack, ""},
		{rdma.EventAddressGone, "address gone"},
		{rdma.EventInterfaceDown, "interface down"},
		{rdma.EventAddressBack, "interface down"},
		{rdma.EventInterfaceUp, ""},
	} {
		n.event(&rdma.Event{Kind: step.kind})
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

// TestRNICFlaps has the interface of the only link go down and come back again and again, each time for less than it is waited for. That it
// is down again when the time of an earlier outage is over ends nothing; what ends the link is an outage that lasts.
func TestRNICFlaps(t *testing.T) {
	r := newSMCRRig(t, nil)
	var over []func() // the time of each outage
	r.client.rnics.patience = func(f func()) { over = append(over, f) }
	c, s := r.connect()
	checkSMCR(t, c, s)
	n := groupsOf(r.client)[0].rnic
	flap := func(kinds ...rdma.EventKind) {
		for _, kind := range kinds {
			n.event(&rdma.Event{Kind: kind})
		}
	}
	flap(rdma.EventInterfaceDown, rdma.EventInterfaceUp, rdma.EventInterfaceDown)
	over[0]()
	flap(rdma.EventInterfaceUp)
	over[1]()
	checkExchange(t, c, s)
	flap(rdma.EventInterfaceDown)
	over[2]()
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("read after an outage that lasted: %v", err)
	}
	checkEnd(t, r.client, endOfGroup, "link failed: "+errRNICDown.Error())
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
		h := newTestHost(t, Config{Namespace: cables.Run[0], SMCRDevices: tt.allowed})
		got, err := h.rnics.choose(tt.local, tt.remote)
		if got != tt.want || (err != nil) != !tt.want.IsValid() {
			t.Errorf("allowed %v: choose(%v, %v) = %v, %v, want %v", tt.allowed, tt.local, tt.remote, got, err, tt.want)
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
	h := newTestHost(t, Config{Dir: dir})
	_, err = h.rnics.acquire(loop1)
	if err == nil || rnicReason(err) != clc.DiagPortInUse || !strings.Contains(err.Error(), "not you") {
		t.Errorf("acquire = %v, reason %v", err, rnicReason(err))
	}
}

// TestRNICCloseDuringChange has interfaces change while a device is closed, with the lock that is held then: the device's goroutine, for whose end the closer
// waits, does not wait for the closer.
func TestRNICCloseDuringChange(t *testing.T) {
	h := newTestHost(t, Config{UEIDs: []string{"GOSMC.TEST"}})
	h.rnics.mu.Lock()
	told := make(chan struct{})
	go func() {
		h.rnics.othersChanged()
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(patience):
		t.Error("who tells of a change waits for who closes devices")
	}
	h.rnics.mu.Unlock()
	<-told
}
