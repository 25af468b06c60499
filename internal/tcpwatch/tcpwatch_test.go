package tcpwatch

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// tcpPair returns the two ends of a TCP connection, which the test closes.
func tcpPair(t *testing.T) (ours, theirs *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// starter is a connection whose watch reports on a channel.
type starter struct {
	conn   *net.TCPConn
	events chan uint32
	key    chan int64
}

func (s *starter) StartWatch(w *Watcher) {
	key, err := w.Watch(s.conn, func(events uint32) { s.events <- events })
	if err != nil {
		panic(err)
	}
	s.key <- key
}

func TestSoon(t *testing.T) {
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var list []*starter
	var peers []*net.TCPConn
	for range 3 {
		ours, theirs := tcpPair(t)
		s := &starter{ours, make(chan uint32, 16), make(chan int64, 1)}
		w.Soon(s)
		list, peers = append(list, s), append(peers, theirs)
	}
	w.Forget(<-list[1].key)
	for _, p := range peers {
		p.CloseWrite()
	}
	for _, i := range []int{0, 2} {
		for events := uint32(0); events&unix.EPOLLRDHUP == 0; {
			events = <-list[i].events
		}
	}
	select {
	case events := <-list[1].events:
		t.Errorf("an event %#x of a watch that was forgotten", events)
	default:
	}
}

// After Close no watch begins, and Soon returns.
func TestClosed(t *testing.T) {
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ours, _ := tcpPair(t)
	w.Close()
	w.Soon(&starter{conn: ours})
	if w.timer != nil {
		t.Error("a timer runs after Close")
	}
	if _, err := w.Watch(ours, func(uint32) {}); err == nil {
		t.Error("Watch after Close succeeds")
	}
}
