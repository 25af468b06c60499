package main

import (
	"context"
	"strings"
)

// limited returns a case in which two processes in the guest, which use the library, come to a
// limit of the kernel. setup is a shell script that sets it, undo is one that takes it back, and
// args are the arguments of guest/limits.
func limited(setup, args, undo string) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		l.atEnd(func() error {
			_, err := l.vm.run(context.WithoutCancel(ctx), commandTimeout, undo)
			return err
		})
		if _, err := l.vm.run(ctx, commandTimeout, "set -e; "+setup); err != nil {
			return err
		}
		said, err := l.vm.run(ctx, caseTimeout, "export GOSMC_DIR=/tmp/limits; limits "+args)
		if err != nil {
			return err
		}
		l.note("%s", strings.TrimSpace(said))
		return nil
	}
}

// The limits that are tried. The guest has 512 MiB.
var (
	// The runtime maps 64 MiB for its heap in each process, all of which counts.
	strictOvercommit = limited(
		"echo 90 >/proc/sys/vm/overcommit_ratio; echo 2 >/proc/sys/vm/overcommit_memory",
		"-reason MEMORY -max 300",
		"echo 0 >/proc/sys/vm/overcommit_memory")
	fewMappings = limited(
		"echo 300 >/proc/sys/vm/max_map_count",
		"-reason MAPPINGS,MEMORY -max 300",
		"echo 65530 >/proc/sys/vm/max_map_count")
	smallGroup = limited(
		"mkdir -p /tmp/cg; mount -t cgroup2 cgroup2 /tmp/cg; echo +memory >/tmp/cg/cgroup.subtree_control; "+
			"mkdir /tmp/cg/small; echo 64M >/tmp/cg/small/memory.max",
		"-max 60 -buffer 2097152 -cgroup /tmp/cg/small",
		"rmdir /tmp/cg/small; umount /tmp/cg")
)
