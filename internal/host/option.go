package host

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/wire/clc"
)

// An optionSource is TCP option 254 on sockets, as package option has it.
type optionSource interface {
	Ask(c syscall.RawConn) error
	Read(c syscall.RawConn) (option.State, option.Reason, error)
}

// agentOption is the option with the help of gosmc agent.
type agentOption struct{}

func (agentOption) Ask(c syscall.RawConn) error { return option.AskConn(c) }
func (agentOption) Read(c syscall.RawConn) (option.State, option.Reason, error) {
	return option.ReadConn(c)
}

// epoch has a reading of the monotonic clock, which nobody sets back.
var epoch = time.Now()

// optionAsker asks for the option on the sockets of a host that can do SMC with another machine:
// with a UEID, or in version 1.
type optionAsker struct {
	source optionSource
	pause  atomic.Int64 // until when nobody asks, as there is no agent; nanoseconds after epoch
}

// wantsOption reports whether sockets of h are to have the option.
func (h *Host) wantsOption() bool {
	return (len(h.ueids) > 0 || h.cfg.SMCRv1) && !h.cfg.Disabled // rule: TestSMCRv1Option: || h.cfg.SMCRv1 -> || false
}

// askOption asks for it on a socket that is about to connect, and reports whether it may have it.
// Without an agent it does not ask again for a while.
func (h *Host) askOption(c syscall.RawConn) bool {
	if !h.wantsOption() || int64(time.Since(epoch)) < h.option.pause.Load() {
		return false
	}
	err := h.option.source.Ask(c)
	if errors.Is(err, option.ErrNoAgent) {
		h.option.pause.Store(int64(time.Since(epoch) + fabricRetry))
	}
	return err == nil
}

// readOption reports whether both ends of a connection have it: CLC has to follow. Otherwise the
// reason is why not.
func (h *Host) readOption(tcp *net.TCPConn) (both bool, why clc.Diagnosis) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false, clc.DiagNone
	}
	state, reason, err := h.option.source.Read(raw)
	switch {
	case err != nil:
	case state == option.Both:
		return true, clc.DiagNone
	case reason == option.FastOpen:
		return false, clc.DiagFastOpen
	case state == option.Alone:
		return false, clc.DiagPeerNoSMC
	}
	return false, clc.DiagNone
}

// optionStatus says whether sockets of this process can have the option: by asking on one.
func (h *Host) optionStatus() control.Capability {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return control.Capability{Why: err.Error()}
	}
	defer unix.Close(fd)
	if err := h.option.source.Ask(socketFD(fd)); err != nil {
		return control.Capability{Why: err.Error()}
	}
	return control.Capability{Available: true}
}

// A socketFD is a descriptor as a [syscall.RawConn], to ask for the option on.
type socketFD int

func (s socketFD) Control(f func(fd uintptr)) error         { f(uintptr(s)); return nil }
func (s socketFD) Read(func(fd uintptr) (done bool)) error  { return syscall.ENOSYS }
func (s socketFD) Write(func(fd uintptr) (done bool)) error { return syscall.ENOSYS }
