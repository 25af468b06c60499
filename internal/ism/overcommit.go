package ism

import (
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Under vm.overcommit_memory=2 the kernel promises no memory that it does not have. The pages of a
// memfd are not promised when it is made or mapped, but each at its first access; one that is
// refused raises SIGBUS, which ends the process. So there every memory is reserved as a whole
// before anybody touches it, no page is given back, and memory that a peer hands over is reserved
// again: the peer may have been careless. In the other modes the kernel ends some process when
// memory runs out, shared memory or not.
//
// The owner of memory can punch holes into it at any time, and no seal that leaves it writable
// forbids that. A process of the same user has easier ways to end us; processes of other users are
// therefore no peers in this mode, whatever Config.AnyUser says.

// overcommitAge is how long the kernel's setting is believed.
const overcommitAge = time.Second

// overcommit is the setting of the kernel that this process runs on.
var overcommit = overcommitMode{file: "/proc/sys/vm/overcommit_memory"}

type overcommitMode struct {
	file string

	mu     sync.Mutex
	read   time.Time // zero: never
	strict bool
	unread bool // the file could not be read so far
	told   bool // strict is by somebody who can read it
}

// isStrict reports whether pages may be refused. A mode that could never be read is taken for
// strict: that costs memory, and the other mistake costs the process.
func (o *overcommitMode) isStrict() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.read.IsZero() || now.Sub(o.read) > overcommitAge {
		text, err := os.ReadFile(o.file)
		switch {
		case err == nil:
			o.strict = len(text) == 0 || text[0] == '2'
			o.unread = false
		case o.told: // rule: TestIntroducedStrict
		case o.read.IsZero():
			o.strict, o.unread = true, true
		default: // out of descriptors, for example: the mode that was read last
		}
		o.read = now
	}
	return o.strict
}

// reserveTries is how often a reservation is begun again that a signal has interrupted. The kernel
// then gives up the pages that it had; the runtime's own signals come at most every 10 ms, and a
// reservation of the largest memory takes less.
const reserveTries = 100

// commitSpared is how much of the memory that the kernel may promise is left to others, as a
// fraction, and at most: Go's runtime, ours included, ends its process when it is refused a page.
const (
	commitSpared    = 16
	maxCommitSpared = 64 << 20 // bytes
)

// commitRoom returns how many bytes more may be promised, by the text of /proc/meminfo, if it says
// so. Less than 0: the spared part has begun.
func commitRoom(meminfo string) (room int64, ok bool) {
	var limit, used int64 = -1, -1
	for line := range strings.Lines(meminfo) {
		fmt.Sscanf(line, "CommitLimit: %d kB", &limit)
		fmt.Sscanf(line, "Committed_AS: %d kB", &used)
	}
	if limit < 0 || used < 0 || limit > math.MaxInt64>>10 || used > math.MaxInt64>>10 {
		return 0, false
	}
	limit, used = limit<<10, used<<10
	return limit - used - min(limit/commitSpared, maxCommitSpared), true
}

// reserveMemory takes all pages of a memfd from the system now. An error matches the kernel's
// error: ENOSPC or ENOMEM when it has no room.
func reserveMemory(fd, size int) error {
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if room, ok := commitRoom(string(text)); ok && room < int64(size) {
			return fmt.Errorf("reserving %d bytes (vm.overcommit_memory=2): %w: %d may be taken", size, unix.ENOMEM, max(room, 0))
		}
	}
	for try := 1; ; try++ {
		err := unix.Fallocate(fd, 0, 0, int64(size))
		if err == nil {
			return nil
		}
		if err != unix.EINTR || try == reserveTries {
			return fmt.Errorf("reserving %d bytes (vm.overcommit_memory=2): %w", size, err)
		}
	}
}
