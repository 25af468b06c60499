package provider

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/uverbs"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// A fakeContext is a kernel device that says what a test has it say.
type fakeContext struct {
	*uverbs.Context // nil: the methods that no test needs
	gids            []uverbs.GIDEntry
	port            uverbs.PortState
	events          chan uverbs.Event
	closed          chan struct{}
}

func newFakeContext() *fakeContext {
	return &fakeContext{events: make(chan uverbs.Event), closed: make(chan struct{}), port: uverbs.PortActive}
}

func (c *fakeContext) GIDs() ([]uverbs.GIDEntry, error) { return c.gids, nil }
func (c *fakeContext) NewPD() (*uverbs.PD, error)       { return nil, uverbs.ErrClosed }

func (c *fakeContext) QueryPort(uint8) (uverbs.PortAttr, error) {
	return uverbs.PortAttr{State: c.port, ActiveMTU: wire.MTU1024}, nil
}

func (c *fakeContext) NextEvent(time.Time) (uverbs.Event, error) {
	select {
	case e := <-c.events:
		return e, nil
	case <-c.closed:
		return uverbs.Event{}, uverbs.ErrClosed
	}
}

func (c *fakeContext) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return nil
}

func newFakeDevice(c *fakeContext) *device {
	return &device{
		c: c, addr: netip.MustParseAddr("fe80::1%eth0"), port: 1, ifindex: 2, news: make(chan struct{}, 1),
	}
}

// TestLook has a device find its GID and the state of its port. A GID of the same value on another
// interface is not the device's.
func TestLook(t *testing.T) {
	c := newFakeContext()
	d := newFakeDevice(c)
	at := func(index int, ifindex uint32) uverbs.GIDEntry {
		return uverbs.GIDEntry{Port: 1, Index: index, GID: d.GID(), Type: uverbs.GIDTypeRoCEv2, Ifindex: ifindex}
	}
	c.gids = []uverbs.GIDEntry{at(3, 7), at(4, 2)} // first that of a VLAN's interface
	d.lookForGID()
	d.lookAtPort()
	if d.index.Load() != 4 || d.state != (state{}) {
		t.Errorf("index %d, %+v", d.index.Load(), d.state)
	}
	c.gids, c.port = c.gids[:1], uverbs.PortActive-1
	d.lookForGID()
	d.lookAtPort()
	if d.state != (state{gone: true, down: true}) {
		t.Errorf("%+v, want gone and down", d.state)
	}
}

// TestWatchEnds has each event that ends a device close the context, for which the kernel waits, and
// tell the owner.
func TestWatchEnds(t *testing.T) {
	for _, kind := range []uverbs.EventKind{uverbs.EventRemoved, uverbs.EventDeviceFatal, uverbs.EventCQError} {
		c := newFakeContext()
		d := newFakeDevice(c)
		d.all.Go(d.watch)
		c.events <- uverbs.Event{Kind: uverbs.EventPortDown, Port: 2} // another port's
		c.events <- uverbs.Event{Kind: kind}
		<-c.closed
		d.all.Wait()
		events := make([]verbs.Event, 4)
		if n := d.PollEvents(events); n != 1 || events[0].Kind != verbs.EventDeviceRemoved {
			t.Errorf("%v: %v", kind, events[:n])
		}
		if _, err := d.NewPD(); !errors.Is(err, verbs.ErrRemoved) {
			t.Errorf("a domain after %v: %v", kind, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFailure compares the errors of package uverbs with their meaning.
func TestFailure(t *testing.T) {
	d := &device{}
	for _, tt := range []struct{ err, want error }{
		{fmt.Errorf("more: %w", uverbs.ErrExhausted), verbs.ErrExhausted},
		{uverbs.ErrArgument, verbs.ErrArgument},
		{uverbs.ErrClosed, verbs.ErrClosed},
		{os.ErrPermission, os.ErrPermission},
	} {
		if err := d.failure(tt.err); !errors.Is(err, tt.want) || !errors.Is(err, tt.err) || err.Error() != tt.err.Error() {
			t.Errorf("%v is %v, want %v", tt.err, err, tt.want)
		}
	}
	d.state.removed = true
	if err := d.failure(uverbs.ErrClosed); !errors.Is(err, verbs.ErrRemoved) || errors.Is(err, verbs.ErrClosed) {
		t.Errorf("after the removal: %v", err)
	}
}
