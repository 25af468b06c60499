package host

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A host with Config.ReleaseIdle gives back its resources of the system when nobody uses it any
// more: the device with its peerings, the control socket, and all goroutines. The next use takes
// them again. It waits for idleLinger first, because one connection is often followed by another,
// which would have to make the acquaintance of its peer anew.

// hold keeps the host from being idle until letGo.
func (h *Host) hold() {
	h.mu.Lock()
	h.holders++
	h.holds++
	h.mu.Unlock()
}

func (h *Host) letGo() {
	h.mu.Lock()
	h.holders--
	h.checkIdleLocked()
	h.mu.Unlock()
}

// idleLocked reports whether nobody uses the host.
func (h *Host) idleLocked() bool { return h.holders == 0 && len(h.conns) == 0 && len(h.listeners) == 0 }

// checkIdleLocked is called when a user has gone.
func (h *Host) checkIdleLocked() {
	if h.cfg.ReleaseIdle && !h.lingering && !h.closing && h.idleLocked() {
		h.lingering = true
		go h.linger()
	}
}

// linger releases the host when it has been idle for idleLinger, and returns when it has, or is not idle.
func (h *Host) linger() {
	for {
		h.mu.Lock()
		holds := h.holds
		h.mu.Unlock()
		realSleep(idleLinger)
		if h.lingered(holds) {
			return
		}
	}
}

// lingered reports whether there is nothing left to wait for. holds is how often the host was held when the
// wait began.
func (h *Host) lingered(holds uint64) bool {
	h.releaseMu.Lock()
	defer h.releaseMu.Unlock()
	h.fabricMu.Lock()
	h.mu.Lock()
	over := h.closing || !h.idleLocked()
	wait := h.holds != holds || h.control != nil && h.control.Clients() > 0 // somebody looks at it
	if over || !wait {
		h.lingering = false
	}
	if over || wait {
		h.mu.Unlock()
		h.fabricMu.Unlock()
		return over
	}
	h.admission.Close()
	f, server := h.fabric, h.control
	h.fabric, h.control = nil, nil
	if server != nil {
		h.controlTried = false
	}
	h.sweeper.Reset()
	h.mu.Unlock()
	h.fabricMu.Unlock() // later users open others
	if server != nil {
		server.Close()
	}
	if f != nil {
		f.close()
	}
	for _, n := range h.networks {
		n.Close(false)
	}
	h.meeting.Release()
	h.pairing.Release()
	return true
}

// realSleep sleeps by the clock of the system. In a bubble of package synctest the one of package
// time stands still while a goroutine waits for the network, as some of those do that the host is
// about to end. It waits in the poller of the runtime, since a thread in a system call would keep
// its processor from other goroutines for a while.
func realSleep(d time.Duration) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil { // out of descriptors
		time.Sleep(d)
		return
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	defer f.Close()
	if unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}, nil) == nil {
		f.Read(make([]byte, 8))
	}
}
