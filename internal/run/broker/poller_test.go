package broker

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestPoller has a number used again between the event and its turn.
func TestPoller(t *testing.T) {
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	open := func() (int, int) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Add(pair[0], unix.EPOLLIN); err != nil {
			t.Fatal(err)
		}
		unix.Write(pair[1], []byte("x"))
		return pair[0], pair[1]
	}
	a, b := open()
	defer unix.Close(b)
	events := make([]unix.EpollEvent, 4)
	if n, err := p.wait(events, -1); n != 1 || err != nil || !p.Current(events[0]) || int(events[0].Fd) != a {
		t.Fatalf("%d events, %+v, %v; want one of %d", n, events[0], err, a)
	}
	p.Remove(a)
	unix.Close(a)
	if p.Current(events[0]) {
		t.Error("an event of a closed descriptor is taken for one that is watched")
	}
	c, d := open()
	defer unix.Close(c)
	defer unix.Close(d)
	if c != a {
		t.Fatalf("the number %d was not used again, but %d", a, c)
	}
	if p.Current(events[0]) {
		t.Error("an event of a closed descriptor is taken for one of the descriptor that has its number")
	}
}
