// Package tcpwatch watches the idle TCP sockets of connections that left TCP.
package tcpwatch

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// delay is how long, at most, a new connection stays unwatched after [Watcher.Soon].
const delay = 20 * time.Millisecond

// A Watcher reports events on the idle TCP sockets of SMC connections: a FIN, a reset, or
// bytes that do not belong there. One goroutine serves all sockets, so that ten thousand
// idle connections cost no goroutine each. The Go poller waits for the descriptor of its
// epoll instance. Goroutines may share a Watcher.
type Watcher struct {
	file *os.File
	raw  syscall.RawConn
	done chan struct{}

	mu      sync.Mutex
	next    int64
	watched map[int64]func(events uint32)
	soon    []Starter   // connections that will be watched when timer fires
	timer   *time.Timer // runs start while soon is not empty; nil before the first
	closed  bool
}

// A Starter is a connection whose watch begins a little later.
type Starter interface {
	// StartWatch calls [Watcher.Watch] with the connection's TCP socket, unless the connection
	// has ended. It runs on a goroutine of its own.
	StartWatch(w *Watcher)
}

// New starts a watcher. The caller closes it.
func New() (*Watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	w := &Watcher{file: file, raw: raw, done: make(chan struct{}), watched: make(map[int64]func(uint32))}
	go w.loop()
	return w, nil
}

// Watch calls event, from the watcher's goroutine, whenever something happened on conn; events are
// the flags of epoll. event must not block. The watch ends when conn is closed; call
// [Watcher.Forget] with the key before that.
func (w *Watcher) Watch(conn *net.TCPConn, event func(events uint32)) (key int64, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	w.next++
	key = w.next
	w.watched[key] = event
	w.mu.Unlock()
	var ctl error
	err = raw.Control(func(fd uintptr) {
		ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(key),
			Pad: int32(key >> 32)}
		closed := w.raw.Control(func(epfd uintptr) {
			ctl = unix.EpollCtl(int(epfd), unix.EPOLL_CTL_ADD, int(fd), &ev)
		})
		ctl = errors.Join(ctl, closed)
	})
	if err == nil {
		err = ctl
	}
	if err != nil {
		w.Forget(key)
		return 0, os.NewSyscallError("epoll_ctl", err)
	}
	return key, nil
}

// Soon calls c.StartWatch within 20 ms. Many connections end sooner and need no watch. The peering
// or the link reports the peer's death as well, and other events are reported when the watch begins.
func (w *Watcher) Soon(c Starter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.soon = append(w.soon, c)
	if len(w.soon) > 1 || w.closed {
		return
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(delay, w.start)
	} else {
		w.timer.Reset(delay)
	}
}

// start begins the watches that Soon has collected.
func (w *Watcher) start() {
	w.mu.Lock()
	conns := w.soon
	w.soon = nil
	w.mu.Unlock()
	for _, c := range conns {
		c.StartWatch(w)
	}
}

// Forget ends a watch. An event that is being delivered may still arrive.
func (w *Watcher) Forget(key int64) {
	w.mu.Lock()
	delete(w.watched, key)
	w.mu.Unlock()
}

func (w *Watcher) loop() {
	defer close(w.done)
	events := make([]unix.EpollEvent, 128)
	for {
		n := 0
		err := w.raw.Read(func(fd uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(fd), events, 0)
			return err != nil && err != unix.EINTR || n > 0
		})
		if err != nil {
			return // closed
		}
		for _, ev := range events[:max(n, 0)] {
			key := int64(uint32(ev.Fd)) | int64(ev.Pad)<<32
			w.mu.Lock()
			event := w.watched[key]
			w.mu.Unlock()
			if event != nil {
				event(ev.Events)
			}
		}
	}
}

// Close ends the watcher and waits for its goroutine.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed, w.soon = true, nil
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.file.Close()
	<-w.done
}
