package host

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/rendezvous"
)

// A pacer says when a listener may accept. Most listeners accept on their own, whether the
// application waits or not. A listener with a socket that was inherited, or handed out with File,
// may not: the connection may be for another process, as in programs that fork their workers or
// restart without a pause. It accepts only for calls of Accept that wait, as the kernel does.
type pacer struct {
	shared   atomic.Bool   // the socket was made elsewhere, or File was called
	waiting  atomic.Int64  // calls of Accept
	underWay atomic.Int64  // connections that were accepted, and that no call of Accept has yet
	slow     atomic.Int64  // part of underWay: others do not wait for these
	changed  chan struct{} // has room for one; there may be reason to go on

	accepting sync.Mutex // held while the loop is in accept, or about to be
}

func (p *pacer) init() { p.changed = make(chan struct{}, 1) }

// may reports whether the loop may accept a connection now.
func (p *pacer) may() bool {
	return !p.shared.Load() || p.waiting.Load() > p.underWay.Load()-p.slow.Load()
}

// watch says that a handshake begins. If that takes longer than paceTime, as with a client that is
// stopped in the middle, the loop goes on without it. The caller calls end when it is over.
func (p *pacer) watch() (end func()) {
	if !p.shared.Load() {
		return func() {}
	}
	fired := make(chan struct{})
	timer := time.AfterFunc(paceTime, func() {
		p.slow.Add(1)
		p.poke()
		close(fired)
	})
	return func() {
		if !timer.Stop() {
			<-fired
			p.slow.Add(-1)
		}
	}
}

// poke makes the loop look again.
func (p *pacer) poke() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// await waits until the loop may accept. It reports false when the listener is closed.
func (l *Listener) await() bool {
	for {
		select {
		case <-l.closed:
			l.pace.poke() // drain, from which this may have taken a poke
			return false
		default:
		}
		if l.pace.may() {
			return true
		}
		select {
		case <-l.pace.changed:
		case <-l.closed:
		}
	}
}

// enter says that a call of Accept begins.
func (l *Listener) enter() {
	l.pace.waiting.Add(1)
	if l.pace.shared.Load() {
		l.cry()
		l.pace.poke()
	}
}

// leave says that a call of Accept ends.
func (l *Listener) leave() {
	l.pace.waiting.Add(-1)
	if l.pace.shared.Load() {
		if !l.pace.may() {
			l.stopAccepting()
		}
		l.hushLater()
	}
}

// stopAccepting returns when the loop is not in accept, which it does not enter again until it may.
func (l *Listener) stopAccepting() {
	l.tcp.SetDeadline(longAgo)
	l.pace.accepting.Lock()
	defer l.pace.accepting.Unlock()
}

// acceptTCP accepts a connection when it may. The error is net.ErrClosed once the listener is closed.
func (l *Listener) acceptTCP() (*net.TCPConn, error) {
	for {
		if !l.await() {
			return nil, net.ErrClosed
		}
		if tcp, err := l.tryAccept(); tcp != nil || err != nil {
			return tcp, err
		}
	}
}

// tryAccept accepts a connection if it may. It returns nil and no error if it may not, or not any more.
func (l *Listener) tryAccept() (*net.TCPConn, error) {
	l.pace.accepting.Lock()
	defer l.pace.accepting.Unlock()
	if !l.pace.may() { // stopAccepting was faster
		return nil, nil
	}
	tcp, err := l.tcp.AcceptTCP()
	switch {
	case err == nil:
		l.pace.underWay.Add(1)
		return tcp, nil
	case isTimeout(err):
		l.tcp.SetDeadline(time.Time{})
		return nil, nil
	}
	return nil, err
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// settled says that a connection which was accepted has reached the application, or come to nothing.
func (l *Listener) settled() {
	l.pace.underWay.Add(-1)
	l.pace.poke()
}

// File returns a copy of the listening socket. From then on the listener accepts only while a call of Accept
// waits, and is not announced where none does.
func (l *Listener) File() (*os.File, error) {
	f, err := l.tcp.File()
	if err != nil {
		return nil, err
	}
	if !l.pace.shared.Swap(true) {
		if p := l.programs.Swap(nil); p != nil {
			p.broker.Share(p.announcement)
		}
		l.hush()
	}
	if !l.pace.may() {
		l.stopAccepting()
	}
	return f, nil
}

// A crier knows whether a shared listener is announced. It is while its application calls Accept: a
// client that asks for SMC waits until its connection is accepted, and would wait in vain for one
// that does not.
type crier struct {
	mu     sync.Mutex // held while the announcement changes
	silent bool       // it is not announced
	calls  uint64     // of Accept that began
	looks  bool       // a timer runs, after which it may fall silent
}

// cry announces a listener that was silent: a call of Accept waits.
func (l *Listener) cry() {
	l.crier.mu.Lock()
	defer l.crier.mu.Unlock()
	l.crier.calls++
	if !l.crier.silent {
		return
	}
	select {
	case <-l.closed:
		return
	default:
	}
	l.crier.silent = false
	if l.host.rules.refusesListener(l.addr) { // rule: TestPolicyListen
		l.refused.Store(true)
		return
	}
	l.refused.Store(false)
	l.host.hold()
	defer l.host.letGo()
	meeting, err := l.host.meeting.Listen(l.tcp)
	if meeting == nil {
		return // the host is closed
	}
	if err != nil {
		l.host.cfg.Logger.Warn("listener is not announced, clients will use TCP", "addr", l.addr, "err", err)
	}
	l.replaceMeeting(meeting)
}

// hush withdraws the announcement unless a call of Accept waits.
func (l *Listener) hush() {
	l.crier.mu.Lock()
	defer l.crier.mu.Unlock()
	l.hushLocked()
}

func (l *Listener) hushLocked() {
	if l.crier.silent || l.pace.waiting.Load() > 0 {
		return
	}
	l.crier.silent = true
	l.meeting.Load().Close()                       // once more does nothing
	time.AfterFunc(quietTime, l.host.meeting.Poll) // for clients that found it just before
}

// hushLater withdraws the announcement when Accept was not called for quietTime. Nobody ever stops
// a timer: in a bubble of package synctest only those inside may.
func (l *Listener) hushLater() {
	l.crier.mu.Lock()
	defer l.crier.mu.Unlock()
	l.hushLaterLocked()
}

func (l *Listener) hushLaterLocked() {
	if l.crier.silent || l.crier.looks {
		return
	}
	l.crier.looks = true
	calls := l.crier.calls
	time.AfterFunc(quietTime, func() {
		l.crier.mu.Lock()
		defer l.crier.mu.Unlock()
		l.crier.looks = false
		switch {
		case l.pace.waiting.Load() > 0: // which ends with hushLater
		case l.crier.calls != calls:
			l.hushLaterLocked()
		default:
			l.hushLocked()
		}
	})
}

// replaceMeeting puts a new announcement in the place of the one before.
func (l *Listener) replaceMeeting(m *rendezvous.Listening) {
	l.meeting.Swap(m).Close()
	select {
	case <-l.closed: // Close may not have seen it
		m.Close()
	default:
	}
}

// announceLate announces a listener that the policy has kept from that, if it does not any more.
func announceLate(l *Listener) {
	if !l.refused.Load() || l.host.rules.refusesListener(l.addr) { // rule: TestReloadLoosens
		return
	}
	l.crier.mu.Lock()
	defer l.crier.mu.Unlock()
	if l.crier.silent || !l.refused.Swap(false) {
		return // the next call of Accept announces one that is silent
	}
	h := l.host
	h.hold()
	defer h.letGo()
	meeting, err := h.meeting.Listen(l.tcp)
	if meeting == nil {
		return // the host is closed
	}
	l.replaceMeeting(meeting)
	if err != nil {
		h.cfg.Logger.Warn("listener is not announced, clients will use TCP",
			"addr", l.addr, "err", err)
		return
	}
	if l.pace.shared.Load() {
		return
	}
	l.announceToPrograms()
	select {
	case <-l.closed: // Close may not have seen it
		l.withdrawFromPrograms()
	default:
	}
}
