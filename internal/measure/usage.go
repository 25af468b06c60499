package measure

import (
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// CPUTime is the CPU time that this process has used.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// AvailableMemory is how much memory can be used without swapping, in bytes; 0 if not known.
func AvailableMemory() int64 {
	available := int64(math.MaxInt64)
	for line := range strings.Lines(readText("/proc/meminfo")) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemAvailable:" {
			if kib, err := strconv.ParseInt(fields[1], 10, 54); err == nil {
				available = kib << 10
			}
		}
	}
	limit, err := strconv.ParseInt(readLine("/sys/fs/cgroup/memory.max"), 10, 64)
	if err == nil {
		if used, err := strconv.ParseInt(readLine("/sys/fs/cgroup/memory.current"), 10, 64); err == nil {
			available = min(available, max(limit-used, 1))
		}
	}
	if available == math.MaxInt64 {
		return 0
	}
	return available
}
