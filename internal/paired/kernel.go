package paired

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/wire/clc"
)

// A Kernel has the pairing tokens of sockets. [AgentKernel] is the one of this machine.
type Kernel interface {
	// Ask asks for tokens on a socket that is neither connected nor listening, and reports whether it may get
	// them. dest is where it connects to, the zero value for a socket that is to listen.
	Ask(c syscall.RawConn, dest netip.AddrPort) bool

	// Read returns the tokens of a connected socket, or the reason why it has none.
	Read(c syscall.RawConn, remote netip.AddrPort) (Tokens, clc.Diagnosis)

	// Addresses returns where the agent may be reached from the network namespace of a socket, in
	// the order in which the addresses are tried. It may wait for a moment.
	Addresses(c syscall.RawConn) []string
}

// An AgentKernel is the kernel with the programs that 'gosmc agent' has attached. The zero value can
// be used, by several goroutines.
type AgentKernel struct {
	Dir string // the run directory, in which an agent of tests may be

	mu   sync.Mutex
	none time.Time                    // when there were no programs last
	lost map[netip.AddrPort]time.Time // servers to which a SYN with a token did not get through
}

// Ask implements [Kernel]. A socket asks only if the server can be on this machine, as far as its
// address says, and not after a SYN with a token was lost on the way to it: a firewall may drop it.
func (k *AgentKernel) Ask(c syscall.RawConn, dest netip.AddrPort) bool {
	now := time.Now()
	if !k.mayAsk(dest, now) {
		return false
	}
	err := errors.New("no socket")
	c.Control(func(fd uintptr) { err = pairing.Request(fd) })
	if errors.Is(err, pairing.ErrNoService) {
		k.mu.Lock()
		k.none = now
		k.mu.Unlock()
	}
	return err == nil
}

// mayAsk reports whether there is no reason against a token on the way to a server.
func (k *AgentKernel) mayAsk(dest netip.AddrPort, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	lost, found := k.lost[dest]
	return now.Sub(k.none) >= bureau.Pause && (!found || now.Sub(lost) >= lostTime) // rule: TestLostSYN: now.Sub(lost) >= lostTime -> now.Sub(lost) >= 0
}

// note remembers a server to which a SYN with a token was lost.
func (k *AgentKernel) note(cause pairing.Cause, remote netip.AddrPort) {
	if cause != pairing.SentAgain {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost == nil || len(k.lost) >= maxDests {
		k.lost = make(map[netip.AddrPort]time.Time)
	}
	k.lost[remote] = time.Now()
}

// causes are the reasons to give for the kernel's, where there is a better one than DiagNoToken.
var causes = map[pairing.Cause]clc.Diagnosis{
	pairing.Paired:      clc.DiagNone,
	pairing.FastOpen:    clc.DiagFastOpen,
	pairing.OtherKernel: clc.DiagOtherKernel,
	pairing.TooMany:     clc.DiagLimit,
}

// Read implements [Kernel].
func (k *AgentKernel) Read(c syscall.RawConn, remote netip.AddrPort) (Tokens, clc.Diagnosis) {
	var t pairing.Tokens
	var cause pairing.Cause
	err := errors.New("no socket")
	c.Control(func(fd uintptr) { t, cause, err = pairing.TokensOf(fd) })
	if err != nil {
		return Tokens{}, clc.DiagNoToken
	}
	k.note(cause, remote)
	why, ok := causes[cause]
	if !ok {
		why = clc.DiagNoToken
	}
	return Tokens{Mine: t.Mine, Theirs: t.Theirs}, why
}

// Addresses implements [Kernel]. The kernel vouches for the name that it has of the agent. The agent
// gets to know a network namespace when the first socket asks in it, so its name may come a moment
// later.
func (k *AgentKernel) Addresses(c syscall.RawConn) (list []string) {
	for end := time.Now().Add(bureau.NameTime); ; time.Sleep(bureau.NamePause) {
		var name string
		err := errors.New("no socket")
		c.Control(func(fd uintptr) { name, err = pairing.ServiceName(fd) })
		if err == nil {
			list = append(list, "@"+name)
		}
		if !errors.Is(err, pairing.ErrNoName) || time.Now().After(end) {
			return append(list, port.Paths(k.Dir)...)
		}
	}
}
