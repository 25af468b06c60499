package provider

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/uverbs"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// TestFind looks for an address among the GIDs of the named devices.
func TestFind(t *testing.T) {
	gid := func(addr string, kind uverbs.GIDType, index int, iface string) uverbs.GIDEntry {
		a := wire.GIDFromAddr(netip.MustParseAddr(addr))
		return uverbs.GIDEntry{Port: 1, Index: index, GID: a, Type: kind, Interface: iface}
	}
	list := []uverbs.Device{
		{Name: "rxe0", Ports: []uverbs.Port{{Number: 1, GIDs: []uverbs.GIDEntry{
			gid("192.0.2.1", uverbs.GIDTypeRoCEv1, 0, "eth0"),
			gid("192.0.2.1", uverbs.GIDTypeRoCEv2, 1, "eth0"),
			gid("fe80::1", uverbs.GIDTypeRoCEv2, 2, "eth0"),
			gid("192.0.2.9", uverbs.GIDTypeRoCEv1, 3, "eth0"),
		}}}},
		{Name: "rxe1", Ports: []uverbs.Port{{Number: 1, GIDs: []uverbs.GIDEntry{
			gid("192.0.2.1", uverbs.GIDTypeRoCEv2, 7, "eth1"),
			gid("fe80::1", uverbs.GIDTypeRoCEv2, 2, "eth1"),
			gid("192.0.2.3", uverbs.GIDTypeRoCEv2, 1<<8, "eth1"),
		}}}},
	}
	for _, tt := range []struct {
		names      []string
		addr, want string
		index      int
	}{
		{[]string{"rxe0", "rxe1"}, "192.0.2.1", "rxe0", 1},
		{[]string{"rxe1", "rxe0"}, "192.0.2.1", "rxe1", 7},
		{[]string{"rxe0", "rxe1"}, "fe80::1%eth1", "rxe1", 2},
		{[]string{"rxe0"}, "fe80::1%eth1", "", 0},
		{[]string{"rxe0"}, "192.0.2.9", "", 0}, // not of RoCEv2
		{[]string{"rxe1"}, "192.0.2.3", "", 0}, // MODIFY_QP has 8 bits for an index
		{[]string{"rxe2"}, "192.0.2.1", "", 0},
		{nil, "192.0.2.1", "", 0},
	} {
		d, e, ok := find(list, tt.names, netip.MustParseAddr(tt.addr))
		if d.Name != tt.want || ok != (tt.want != "") || ok && e.Index != tt.index {
			t.Errorf("%v at %s: %q index %d, %v; want %q index %d",
				tt.names, tt.addr, d.Name, e.Index, ok, tt.want, tt.index)
		}
	}
	if _, err := Open([]string{"none such"}, netip.MustParseAddr("192.0.2.1")); !errors.Is(err, ErrNoGID) {
		t.Errorf("Open: %v, want ErrNoGID", err)
	}
}

// TestEvents tells the difference between the present state and the state that was told last.
func TestEvents(t *testing.T) {
	d := &device{news: make(chan struct{}, 1)}
	poll := func(n int, want ...verbs.EventKind) {
		t.Helper()
		events := make([]verbs.Event, n)
		var got []verbs.EventKind
		for _, e := range events[:d.PollEvents(events)] {
			got = append(got, e.Kind)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	poll(4)
	d.set(func(s *state) { s.down = true })
	if len(d.news) != 1 {
		t.Error("nobody is told")
	}
	poll(4, verbs.EventInterfaceDown)
	poll(4)
	d.set(func(s *state) { s.down = false })
	d.set(func(s *state) { s.down = true })
	poll(4) // it has gone by
	d.set(func(s *state) { *s = state{gone: true, removed: true} })
	poll(2, verbs.EventDeviceRemoved, verbs.EventInterfaceUp)
	poll(2, verbs.EventAddressGone)
	d.set(func(s *state) { s.gone = false })
	poll(2, verbs.EventAddressBack)
}

// TestStatus has every status of the kernel end as an error, but for success.
func TestStatus(t *testing.T) {
	for s := range uverbs.Status(32) {
		if got := status(s); (got == verbs.StatusOK) != (s == uverbs.StatusOK) {
			t.Errorf("status %v is %v", s, got)
		}
	}
	if got := status(uverbs.StatusRetryExceeded); got != verbs.StatusRetryExceeded {
		t.Errorf("the end of retries is %v", got)
	}
}

// TestNames compares the numbers of operations with package verbs.
func TestNames(t *testing.T) {
	for op := verbs.OpSend; op <= verbs.OpWriteImm; op++ {
		if a, b := op.String(), uverbs.Op(op).String(); a != b {
			t.Errorf("operation %d is %s and %s", op, a, b)
		}
	}
	for op := verbs.CompletedSend; op <= verbs.ReceivedWriteImm; op++ {
		if a, b := op.String(), uverbs.CompletionOp(op).String(); a != b {
			t.Errorf("completion %d is %s and %s", op, a, b)
		}
	}
	if uverbs.Access(verbs.LocalWrite) != uverbs.LocalWrite ||
		uverbs.Access(verbs.RemoteWrite) != uverbs.RemoteWrite {
		t.Error("the bits of access are not the kernel's")
	}
}
