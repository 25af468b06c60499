package supervisor

import (
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
)

// shares is how many of its descriptors a supervisor gives to each use. A letter is lost if it is
// read when none is left for the descriptors that come with it, and a connection with it; so no use
// may take all.
type shares struct {
	offers     int // that are kept, of two each
	relays     int // of two each
	introduced int // of introducedBring each, for clients, and as many for servers; 0 where there are few
	programs   int // a descriptor for a program is below this
	talks      int // the same for a talk
}

// sharesOf divides the descriptors that a process may have.
func sharesOf(limit uint64) shares {
	n := int(min(limit, math.MaxInt32))
	free := max(0, n-ownDescriptors)
	return shares{
		offers:     min(broker.MaxOffers, max(1, free/4)),
		relays:     min(broker.MaxRelays, max(1, free/16)),
		introduced: min(maxIntroduced, free/8/(2*introducedBring)),
		programs:   ownDescriptors + free/8,
		talks:      n - free/16,
	}
}

// ownLimit is how many descriptors this process may have.
func ownLimit() (uint64, error) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return limit.Cur, os.NewSyscallError("getrlimit", err)
}
