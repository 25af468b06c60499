// Package sysinfo tells gosmc the facts that it needs of the machine: its caches, its memory and
// the part that control groups allow, and its boot.
package sysinfo

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/pnet"
	"github.com/gosmc/smc/wire"
)

// Buffer is the size of a receive buffer, in bytes, when nobody says otherwise: twice the
// private (level 2) cache of a core, but not more than an eighth of the shared one, and
// 1 MiB to 4 MiB.
//
// In a ring that is larger than the writer's private cache the reader finds the bytes in
// the shared cache; in a smaller one each line has to be fetched, modified, out of the
// other core's cache, at a quarter of the speed. docs/architecture.md has the numbers.
var Buffer = sync.OnceValue(func() int {
	private, shared := caches()
	size := 2 << 20
	if private > 0 {
		size = 2 * private
	}
	if shared > 0 {
		size = min(size, shared/8)
	}
	return min(max(size, 1<<20), 4<<20)
})

// caches returns the sizes of a core's level 2 cache and of the level 3 cache, in bytes; 0
// where the system does not say.
func caches() (private, shared int) {
	entries, _ := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*")
	for _, entry := range entries {
		level, _ := os.ReadFile(filepath.Join(entry, "level"))
		text, _ := os.ReadFile(filepath.Join(entry, "size"))
		size, err := strconv.Atoi(strings.TrimSuffix(string(bytes.TrimSpace(text)), "K"))
		if err != nil {
			continue
		}
		switch string(bytes.TrimSpace(level)) {
		case "2":
			private = size << 10
		case "3":
			shared = size << 10
		}
	}
	return private, shared
}

// Budget is how many bytes of receive buffers a process may have when nobody says otherwise: twice
// the machine's memory. Buffers count with their full size, but only pages that have been written
// to are there, and a quiet connection gives those back.
//
// In a control group that has less it is half of the group's limit: beyond that limit the kernel
// ends a process instead of reclaiming, and the program wants memory too.
var Budget = sync.OnceValue(func() int64 {
	budget := int64(4 << 30)
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		budget = 2 * int64(uint64(info.Totalram)*uint64(info.Unit))
	}
	if limit, ok := Memory("/"); ok {
		budget = min(budget, limit/2)
	}
	return budget
})

// SEID returns the EID that all processes of this boot share.
func SEID() (wire.EID, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return wire.EID{}, err
	}
	boot, err := pnet.ParseBootID(string(text))
	if err != nil {
		return wire.EID{}, err
	}
	return pnet.SEID(boot), nil
}
