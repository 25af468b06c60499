package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// agent returns the connection to the agent, or the reason why there is none. It waits for the agent's
// first answer, or until the bureau is closed. A supervisor has no device, so a name is made up.
func (n *introduced) agent() (*introduce.Client, clc.Diagnosis) {
	dial := bureau.At(addresses, n.users)
	named := func(ctx context.Context, _ wire.ISMGID) (*introduce.Client,
		error) {
		return dial(ctx, newGID())
	}
	return n.bureau.Get(context.Background(), wire.ISMGID{}, named)
}

// newGID is a name for the agent of a supervisor, which has no device.
func newGID() wire.ISMGID {
	var uuid [16]byte
	rand.Read(uuid[:])
	return wire.ISMGIDFromUUID(uuid)
}

// addresses are where the agent may be reached. The kernel vouches for the name that it has of the
// agent. The agent gets to know a network namespace when the first socket asks in it, so its name
// may come a moment later.
//
// The kernel is asked by a socket of our own. One that a program has sent may be of another network
// namespace, whose name somebody has taken in ours, to hand our challenge on to that namespace's agent.
// And its user may have a system call of its own wait in it: then others wait for ever.
func addresses() (list []string) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return port.Paths("")
	}
	defer unix.Close(fd)
	for end := time.Now().Add(bureau.NameTime); ; time.Sleep(bureau.NamePause) {
		name, err := pairing.ServiceName(uintptr(fd))
		if err == nil {
			list = append(list, "@"+name)
		}
		if !errors.Is(err, pairing.ErrNoName) || time.Now().After(end) {
			return append(list, port.Paths("")...)
		}
	}
}
