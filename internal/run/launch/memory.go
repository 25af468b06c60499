package launch

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sysinfo"
)

// defaultRingAfter is the default of [proto.EnvRingAfter]. With rings, a connection that
// carried 100 KiB and ended took 20 times as long as over TCP. That was in a virtual machine in which
// a page that is touched for the first time costs 30 us.
const defaultRingAfter = 256 << 10

// memoryShare is one over the part of the memory that the rings of one process may have. A program
// has pages of its own, other programs of its control group have rings, too, and beyond the group's
// limit the kernel kills.
const memoryShare = 4

// WithMemory is an environment that has [proto.EnvMemory] for a program that starts in the control group
// of this process, and [proto.EnvRingAfter], and [proto.EnvShortAfter].
func WithMemory(environ []string) []string {
	environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		return strings.HasPrefix(e, proto.EnvMemory+"=") || strings.HasPrefix(e, proto.EnvRingAfter+"=") ||
			strings.HasPrefix(e, proto.EnvShortAfter+"=")
	})
	environ = append(environ, proto.EnvRingAfter+"="+strconv.Itoa(defaultRingAfter),
		proto.EnvShortAfter+"="+strconv.Itoa(admission.DefaultAfter))
	if n := defaultMemory("/"); n > 0 {
		environ = append(environ, proto.EnvMemory+"="+strconv.FormatInt(n, 10))
	}
	return environ
}

// defaultMemory is the memory that [WithMemory] sets, in bytes; 0 if it is not known. root is where
// /proc and /sys are, for tests.
func defaultMemory(root string) int64 {
	var least int64
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		least = int64(uint64(info.Totalram)*uint64(info.Unit)) / memoryShare
	}
	if limit, ok := sysinfo.Memory(root); ok {
		if share := max(limit/memoryShare, 1); least == 0 || share < least { // 0 would be no bound
			least = share
		}
	}
	return least
}
