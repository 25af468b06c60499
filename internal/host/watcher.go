package host

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A watcher tells when something happens on the idle TCP sockets of SMC connections: a
// FIN, a reset, or bytes that do not belong there. One goroutine serves all of them, so
// that ten thousand idle connections cost no goroutine each. The descriptor of its epoll
// instance is itself waited for in the Go poller.
type watcher struct {
	file *os.File
	raw  syscall.RawConn
	done chan struct{}

	mu      sync.Mutex
	next    int64
	watched map[int64]func(events uint32)
	soon    []*Conn     // to be watched
	timer   *time.Timer // runs watchNow while there are some; nil before the first
	closed  bool
}

func newWatcher() (*watcher, error) {
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
	w := &watcher{file: file, raw: raw, done: make(chan struct{}), watched: make(map[int64]func(uint32))}
	go w.loop()
	return w, nil
}

// watch calls event, from the watcher's goroutine, whenever something happened on conn.
// event must not block. The watch ends when conn is closed, after forget.
func (w *watcher) watch(conn *net.TCPConn, event func(events uint32)) (key int64, err error) {
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
		ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(key), Pad: int32(key >> 32)}
		closed := w.raw.Control(func(epfd uintptr) {
			ctl = unix.EpollCtl(int(epfd), unix.EPOLL_CTL_ADD, int(fd), &ev)
		})
		ctl = errors.Join(ctl, closed)
	})
	if err == nil {
		err = ctl
	}
	if err != nil {
		w.forget(key)
		return 0, os.NewSyscallError("epoll_ctl", err)
	}
	return key, nil
}

// watchSoon watches the TCP socket of a connection within watchDelay, unless it has ended by then: many are
// over sooner. The peer's death is learned from the peering or the link as well, and what else happens on the socket
// can wait: it is told when the watch begins.
func (w *watcher) watchSoon(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.soon = append(w.soon, c)
	if len(w.soon) > 1 || w.closed {
		return
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(watchDelay, w.watchNow)
	} else {
		w.timer.Reset(watchDelay)
	}
}

// watchNow watches those for whom it has been soon.
func (w *watcher) watchNow() {
	w.mu.Lock()
	conns := w.soon
	w.soon = nil
	w.mu.Unlock()
	for _, c := range conns {
		if err := c.watch(w); err != nil {
			c.host.cfg.Logger.Warn("the TCP connection is not watched", "peer", c.RemoteAddr(), "err", err)
		}
	}
}

// forget ends a watch. An event that is being delivered may still arrive.
func (w *watcher) forget(key int64) {
	w.mu.Lock()
	delete(w.watched, key)
	w.mu.Unlock()
}

func (w *watcher) loop() {
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

func (w *watcher) close() {
	w.mu.Lock()
	w.closed, w.soon = true, nil
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.file.Close()
	<-w.done
}
