package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gosmc/smc/internal/sockdiag"
)

// strangers returns the listeners at the address of ours that programs of others have by
// SO_REUSEPORT: the kernel shares connections out between all of them. Our own programs may have
// some there that are about to be announced.
func (l *Listeners) strangers(ours listener) ([]sockdiag.Socket, error) {
	now, err := sockdiag.Listeners(ours.Local.Port())
	if err != nil {
		return nil, err
	}
	now = slices.DeleteFunc(now, func(s sockdiag.Socket) bool { return s.Cookie == ours.Cookie || !sameAddress(s, ours) })
	if len(now) == 0 {
		return nil, nil
	}
	if l.Programs == nil {
		return now, nil
	}
	return withoutThoseOf(l.Programs(), now), nil
}

// sameAddress reports whether two listeners get the same connections, some at least.
func sameAddress(s sockdiag.Socket, ours listener) bool {
	a, b := s.Local.Addr(), ours.Local.Addr()
	return a == b || a.IsUnspecified() && b.IsUnspecified()
}

// withoutThoseOf leaves out the sockets for which some of these processes have a descriptor.
func withoutThoseOf(pids []int, list []sockdiag.Socket) []sockdiag.Socket {
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			target, _ := os.Readlink(filepath.Join(dir, e.Name()))
			list = slices.DeleteFunc(list,
				func(s sockdiag.Socket) bool { return target == fmt.Sprintf("socket:[%d]", s.Inode) })
			if len(list) == 0 {
				return nil
			}
		}
	}
	return list
}
