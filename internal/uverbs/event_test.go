package uverbs

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestEvents reads events, of objects that are there and of others, and ends.
func TestEvents(t *testing.T) {
	f := newFake(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	f.c.events, f.c.node = reader, "" // a directory of sysfs that may be there
	if inode, err := nodeInode(""); err == nil {
		f.c.inode = inode
	} else {
		t.Log("no RDMA on this machine: every check says that the device is gone")
	}
	for _, test := range []struct {
		element uint64
		kind    EventKind
		want    Event
	}{
		{1, EventPortDown, Event{Kind: EventPortDown, Port: 1}},
		{1 << 40, EventPortActive, Event{Kind: EventPortActive}},
		{5, EventQPAccess, Event{Kind: EventQPAccess, QP: f.qp}},
		{6, EventQPFatal, Event{Kind: EventQPFatal}},
		{5, EventKind(77), Event{Kind: 77}},
	} {
		if _, err := writer.Write(words(test.element, uint32(test.kind), uint32(0))); err != nil {
			t.Fatal(err)
		}
		if got, err := f.c.NextEvent(time.Time{}); err != nil || got != test.want {
			t.Errorf("NextEvent() = %+v, %v, want %+v", got, err, test.want)
		}
	}
	if _, err := writer.Write(zeros(asyncEventLen - 1)); err != nil {
		t.Fatal(err)
	}
	if e, err := f.c.NextEvent(time.Time{}); !errors.Is(err, ErrKernel) {
		t.Errorf("part of an event: %+v, %v", e, err)
	}
	f.c.node = "uverbs-none"
	if e, err := f.c.NextEvent(time.Time{}); err != nil || e.Kind != EventRemoved || !f.c.Removed() {
		t.Errorf("device that is gone: %+v, %v", e, err)
	}
	reader.Close()
	if e, err := f.c.NextEvent(time.Time{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %+v, %v", e, err)
	}
	f.c.events = nil
}
