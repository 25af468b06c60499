package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rdma/netdev"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// nextEvent waits for an event of the device itself.
func nextEvent(t testing.TB, d *Device) (e Event) {
	t.Helper()
	deadline := time.After(patience)
	for {
		var one [1]Event
		if d.PollEvents(one[:]) == 1 {
			if one[0].Kind != EventOthersChanged {
				return one[0]
			}
			continue
		}
		select {
		case <-d.Events():
		case <-deadline:
			t.Fatal("no event")
		}
	}
}

// noEvent fails the test if there is one.
func noEvent(t testing.TB, d *Device) {
	t.Helper()
	var one [1]Event
	if d.PollEvents(one[:]) != 0 && one[0].Kind != EventOthersChanged {
		t.Errorf("event %+v, want none", one[0])
	}
}

// TestInterfaceEvents changes an interface in the ways that occur in practice.
func TestInterfaceEvents(t *testing.T) {
	for _, six := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %v", six), func(t *testing.T) {
			c := smctest.NewCables(t, 2)
			addr, bits, bystander := c.Addr[0][0], 24, c.Addr[1][0]
			if six {
				addr, bits, bystander = c.Six[0][0], 64, c.Six[1][0]
			}
			d, other := openAt(t, c, 0, addr), openAt(t, c, 0, bystander)
			if err := d.Unwatched(); err != nil {
				t.Fatal(err)
			}
			expect := func(after string, want ...Event) {
				t.Helper()
				for _, want := range want {
					if got := nextEvent(t, d); got != want {
						t.Fatalf("after %s: event %+v, want %+v", after, got, want)
					}
				}
				noEvent(t, d)
			}
			address := fmt.Sprintf("addr add %v/%d dev cable0", addr, bits)
			if six {
				address += " nodad"
			}
			c.IP(1, "link set cable0 down")
			expect("the carrier is lost", Event{Kind: EventInterfaceDown})
			c.IP(1, "link set cable0 up")
			expect("it has come back", Event{Kind: EventInterfaceUp})
			c.IP(0, fmt.Sprintf("addr del %v/%d dev cable0", addr, bits))
			expect("the address is deleted", Event{Kind: EventAddressGone})
			c.IP(0, strings.Replace(address, "cable0", "cable1", 1))
			c.IP(0, "link set cable0 mtu 9000") // and it asks for addresses
			expect("jumbo frames, and another interface has the address", Event{Kind: EventMTUChanged, MTU: wire.MTU4096})
			c.IP(0, fmt.Sprintf("addr del %v/%d dev cable1", addr, bits))
			c.IP(0, address)
			expect("it is there again", Event{Kind: EventAddressBack})
			if got := d.MTU(); got != wire.MTU4096 {
				t.Errorf("MTU() = %v", got)
			}
			c.IP(0, "link set cable0 mtu 1500")
			expect("short frames", Event{Kind: EventMTUChanged, MTU: wire.MTU1024})
			c.IP(0, "link set cable0 name renamed")
			c.IP(0, "link del renamed")
			got := []EventKind{nextEvent(t, d).Kind}
			for !slices.Contains(got, EventInterfaceDown) || !slices.Contains(got, EventAddressGone) {
				got = append(got, nextEvent(t, d).Kind)
			}
			noEvent(t, other)
		})
	}
}

// TestDownFromTheStart opens a device whose interface has no carrier.
func TestDownFromTheStart(t *testing.T) {
	c := smctest.NewCables(t, 1)
	c.IP(1, "link set cable0 down")
	for _, addr := range []netip.Addr{c.Addr[0][0], c.Six[0][0]} { // the second is opened when the kernel has told all of it
		if got := nextEvent(t, openAt(t, c, 0, addr)); got != (Event{Kind: EventInterfaceDown}) {
			t.Errorf("event %+v, want that the interface is down", got)
		}
	}
}

// TestEventsCoalesce has much happen while nobody looks.
func TestEventsCoalesce(t *testing.T) {
	var e events
	good := netdev.State{Up: true, Address: true, MTU: wire.MTU1024}
	e.init(good)
	for range 1000 {
		e.setPort(netdev.State{})
		e.setPort(netdev.State{Up: true, Address: true, MTU: wire.MTU4096})
		e.sendsRefused(unix.EPERM, 3)
		e.othersChanged()
	}
	e.sendsRefused(unix.EHOSTUNREACH, 1)
	q, gone := new(QP), new(QP)
	for range 1000 {
		e.qpFailed(gone, failure{status: StatusRetryExceeded})
		e.qpFailed(q, failure{nak: roce.NakRemoteAccess})
	}
	e.drop(gone)
	if len(e.news) != 1 {
		t.Errorf("%d values in the channel, want 1", len(e.news))
	}
	all := make([]Event, 2)
	n := e.poll(all)
	all = append(all[:n], make([]Event, 5)...)
	all = all[:n+e.poll(all[n:])]
	want := []Event{
		{Kind: EventMTUChanged, MTU: wire.MTU4096},
		{Kind: EventOthersChanged},
		{Kind: EventQPFailed, QP: q, Nak: roce.NakRemoteAccess},
		{Kind: EventSendsRefused, Err: unix.EHOSTUNREACH, Count: 3001},
	}
	if !slices.Equal(all, want) {
		t.Errorf("events %+v, want %+v", all, want)
	}
	e.setPort(netdev.State{MTU: wire.MTU1024})
	e.setPort(netdev.State{Up: true, Address: true, MTU: wire.MTU4096})
	if n := e.poll(all); n != 0 {
		t.Errorf("%+v is told of what has gone by", all[:n])
	}
	for k := EventInterfaceDown; k <= verbs.EventDeviceRemoved+1; k++ {
		if unknown := strings.HasPrefix(k.String(), "event("); unknown != (k > verbs.EventDeviceRemoved) {
			t.Errorf("kind %d is %q", k, k)
		}
	}
}

// TestQPFailedEvent ends queue pairs in each way: by the peer's request, by silence, and by the
// owner, which need not be told.
func TestQPFailedEvent(t *testing.T) {
	s, peer := victim(t)
	bad := s.write([]byte{1})
	bad.RETH.RKey ^= 1
	peer.sendPacket(&bad)
	if got, want := nextEvent(t, s.dev), (Event{Kind: EventQPFailed, QP: s.qp, Nak: roce.NakRemoteAccess}); got != want {
		t.Errorf("after a bad request: event %+v, want %+v", got, want)
	}
	if got := s.qp.State(); got != StateError {
		t.Errorf("state %v when it is told", got)
	}

	a := newSide(t, randomLoopback(), nil, nil)
	fail := func() *QP {
		q := must1(a.pd.NewQP(QPConfig{SendCQ: a.cq, RecvCQ: a.cq, MaxSend: 4, MaxRecv: 4}))(t)
		t.Cleanup(func() { q.Close() })
		nobody := randomLoopback()
		if err := errors.Join(q.Init(RemoteWrite),
			q.ReadyToReceive(RTR{RemoteGID: wire.GIDFromAddr(nobody), RemoteQPN: 77, PathMTU: wire.MTU1024}),
			q.ReadyToSend(RTS{Timeout: 1}),
			q.PostSend(SendWR{Op: OpWrite, Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr(), Len: 1}}})); err != nil {
			t.Fatal(err)
		}
		return q
	}
	q := fail()
	if got, want := nextEvent(t, a.dev), (Event{Kind: EventQPFailed, QP: q, Status: StatusRetryExceeded}); got != want {
		t.Errorf("without an answer: event %+v, want %+v", got, want)
	}
	q = fail()
	<-a.dev.Events() // it has failed, and is closed before anyone asks
	q.Close()
	q = must1(a.pd.NewQP(QPConfig{SendCQ: a.cq, RecvCQ: a.cq}))(t)
	if err := errors.Join(q.Init(0), q.Fail(), q.Reset(), q.Init(0), q.Close()); err != nil {
		t.Fatal(err)
	}
	noEvent(t, a.dev)
}

// TestSendsRefusedEvent takes away the interface, and the size of frames, that sending needs.
func TestSendsRefusedEvent(t *testing.T) {
	c := smctest.NewCables(t, 1)
	pair := pairAt(t, c, c.Addr[0])
	s, d := pair[0], pair[0].dev
	s.writeTo(t, pair[1])
	noEvent(t, d)
	for _, tt := range []struct {
		reason       unix.Errno
		change, undo string
	}{
		{unix.ENETUNREACH, "link set cable0 down", "link set cable0 up"},
		{unix.EMSGSIZE, "link set cable0 mtu 1000", "link set cable0 mtu 1500"},
	} {
		c.IP(0, tt.change)
		if err := s.qp.PostSend(SendWR{Op: OpWrite, Signaled: true, Remote: pair[1].mr.Addr(), RKey: pair[1].mr.RKey(), Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 5000}}}); err != nil {
			t.Fatal(err)
		}
		for e := nextEvent(t, d); e.Kind != EventSendsRefused || e.Err != tt.reason || e.Count == 0; e = nextEvent(t, d) {
			if e.Kind == EventQPFailed {
				t.Fatalf("%s: event %+v", tt.change, e)
			}
		}
		c.IP(0, tt.undo)
		if got := s.await(t); got.Status != StatusOK {
			t.Fatalf("%s: completion %+v", tt.change, got)
		}
	}
}

// TestWithoutNetlink runs itself in a process that may not have an AF_NETLINK socket, as services under
// systemd's RestrictAddressFamilies.
func TestWithoutNetlink(t *testing.T) {
	const marker = "GOSMC_TEST_WITHOUT_NETLINK"
	if os.Getenv(marker) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestWithoutNetlink$", "-test.v")
		cmd.Env = append(os.Environ(), marker+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestWithoutNetlink") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	smctest.DenyFamily(t, unix.AF_NETLINK)
	for _, addr := range []netip.Addr{randomLoopback(), netip.IPv6Loopback()} {
		if addr.Is6() && !hasIPv6() {
			continue
		}
		a := newSide(t, addr, nil, nil)
		if err := a.dev.Unwatched(); !errors.Is(err, unix.EAFNOSUPPORT) || !strings.Contains(err.Error(), "AF_NETLINK") {
			t.Errorf("Unwatched() = %v", err)
		}
		if got := a.dev.Interface(); got != "lo" || a.dev.MTU() != wire.MTU4096 {
			t.Errorf("device %v is on %q, MTU %v", addr, got, a.dev.MTU())
		}
		b := newSideOn(t, a.dev, nil)
		connect(t, a, b, wire.MTU1024)
		a.writeTo(t, b)
		noEvent(t, a.dev)
	}
	if _, err := Open(netip.MustParseAddr("192.0.2.1"), nil); !errors.Is(err, ErrArgument) {
		t.Errorf("Open of an address of nobody: %v, want %v", err, ErrArgument)
	}
}

func hasIPv6() bool {
	_, err := os.Stat("/proc/self/net/if_inet6")
	return err == nil
}
