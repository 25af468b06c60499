package conn

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/wire/cdc"
)

// The TCP socket of an SMC connection is idle: it ends, is reset, or has bytes that break the protocol.

// StartWatch implements [tcpwatch.Starter]: w reports the events of the TCP socket of l.
func (l *life) StartWatch(w *tcpwatch.Watcher) {
	if err := l.watch(w); err != nil {
		l.env.Logger.Warn("the TCP connection is not watched", "peer", l.RemoteAddr(), "err", err)
	}
}

func (l *life) watch(w *tcpwatch.Watcher) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tcpEnded {
		return nil // the peer has died already
	}
	key, err := w.Watch(l.tcp, l.onTCP)
	if err == nil {
		l.watcher, l.watchKey = w, key
	}
	return err
}

// peerFinished reports whether the peer has said that nothing more will come. l.mu is held.
func (l *life) peerFinished() bool {
	return l.holds && l.data.PeerFlags()&(cdc.Closed|cdc.Abort) != 0
}

// doubt has the peer asked whether it is there, unless its flags come soon: TCP's FIN overtakes
// them. Bytes that were on their way count for a sign of life, and so the peer is asked again, in
// longer and longer intervals, but not for ever: one that keeps its half of the connection may have
// ended its half of TCP in good order, as Linux net/smc does. l.mu is held.
func (l *life) doubt(after time.Duration) {
	if after > suspectUntil {
		l.awaitWord()
		return
	}
	time.AfterFunc(after, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.holds || l.peerFinished() {
			return
		}
		l.binding.Suspect()
		l.doubt(2 * after)
	})
}

// awaitWord looks now and then for the last word of a peer that has ended TCP, and lives. Such a
// peer has said before that it writes no more, or has closed. Linux net/smc says so once. A message
// that was on its way over a link that failed is lost. No message makes Linux say that again, and
// both ends would wait for ever. So where a link has failed the connection is reset. l.mu is held.
func (l *life) awaitWord() {
	if !l.traits.Overtaken || l.awaitsWord {
		return
	}
	l.awaitsWord = true
	lost := false
	var look func()
	look = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case !l.holds || l.tcpEnded || l.data.PeerFlags()&(cdc.DoneWriting|cdc.Closed|cdc.Abort) != 0:
			return
		case lost:
			l.env.Logger.Warn("connection is reset", "peer", l.RemoteAddr(), "err", errWordLost)
			l.broken = errWordLost
			l.eventLocked(core.ConnEvent{Kind: core.EventTCPReset}) // rule: internal/host TestSMCRWordLost
			return
		}
		lost = l.binding.MayMiss() // rule: internal/host TestSMCRWordLost: l.binding.MayMiss() -> true
		time.AfterFunc(l.env.WordTime, look)
	}
	time.AfterFunc(l.env.WordTime, look)
}

var errWordLost = errors.New("the peer has ended TCP, and what it said before was lost with a link")

// onTCP runs when something happened on the TCP socket of an SMC connection.
func (l *life) onTCP(events uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tcpEnded {
		return
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0 && !l.peerFinished() {
		if events&unix.EPOLLERR != 0 {
			l.binding.Suspect() // before the outputs that release it
		}
		l.doubt(suspectAfter)
	}
	switch {
	case events&unix.EPOLLERR != 0 && socketError(l.tcp) != nil: // rule: internal/host TestTCPReset
		l.reset()
	case events&unix.EPOLLIN != 0 && !l.peerFinished() && hasBytes(l.tcp):
		l.env.Logger.Warn("bytes on the idle TCP connection", "peer", l.RemoteAddr())
		l.broken = errTCPBytes
		l.eventLocked(core.ConnEvent{Kind: core.EventProtocolViolation})
	case events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0:
		l.eventLocked(core.ConnEvent{Kind: core.EventTCPFin})
	}
}

// reset takes a reset of TCP. One may have overtaken the bytes that the peer wrote before, and its
// Abort, which have a moment to come. l.mu is held.
func (l *life) reset() {
	if l.traits.Overtaken && !l.peerFinished() && !l.tcpReset { // rule: internal/host TestSMCRResetOvertakes: l.traits.Overtaken -> false
		l.tcpReset = true
		time.AfterFunc(l.env.ResetPatience, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if !l.tcpEnded {
				l.eventLocked(core.ConnEvent{Kind: core.EventTCPReset})
			}
		})
		return
	}
	l.eventLocked(core.ConnEvent{Kind: core.EventTCPReset})
}

var errTCPBytes = errors.New("bytes on the idle TCP connection")

// socketError takes the pending error of a socket, nil if there is none.
func socketError(tcp *net.TCPConn) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var errno int
	if cerr := raw.Control(func(fd uintptr) {
		errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	}); cerr != nil {
		return cerr
	}
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

// hasBytes reports whether there is something to read, without reading it.
func hasBytes(tcp *net.TCPConn) bool {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err == nil && n > 0
}
