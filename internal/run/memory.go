package run

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/sysinfo"
)

// EnvMemory is the variable with the memory that a program's rings may have if the policy does not
// set it, in bytes.
const EnvMemory = "GOSMC_RUN_MEMORY"

// EnvRingAfter is the variable with how many bytes a direction carries in-band before it may have a
// ring only to carry more, where the policy does not say it; defaultRingAfter is that number. A
// connection that carried 100 KiB and ended took 20 times as long with rings as over TCP, in a
// virtual machine in which a page that is touched for the first time costs 30 us.
const (
	EnvRingAfter     = "GOSMC_RUN_RING_AFTER"
	defaultRingAfter = 256 << 10
)

// memoryShare is one over the part of the memory that the rings of one process may have. A program
// has pages of its own, other programs of its control group have rings, too, and beyond the group's
// limit the kernel kills.
const memoryShare = 4

// WithMemory is an environment that has [EnvMemory] for a program that starts in the control group
// of this process, and [EnvRingAfter], and [EnvShortAfter].
func WithMemory(environ []string) []string {
	environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		return strings.HasPrefix(e, EnvMemory+"=") || strings.HasPrefix(e, EnvRingAfter+"=") || strings.HasPrefix(e, EnvShortAfter+"=")
	})
	environ = append(environ, EnvRingAfter+"="+strconv.Itoa(defaultRingAfter), EnvShortAfter+"="+strconv.Itoa(admission.DefaultAfter))
	if n := defaultMemory("/"); n > 0 {
		environ = append(environ, EnvMemory+"="+strconv.FormatInt(n, 10))
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
