package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// uverbsDevice makes an rxe device on the guest's second interface, which no other case uses now, and takes it away
// when the case ends.
func (l *lab) uverbsDevice(ctx context.Context) error {
	l.atEnd(func() error {
		return l.inGuest(context.WithoutCancel(ctx), "kill -9 $(pidof uverbs) 2>/dev/null; "+
			"[ ! -d /sys/class/infiniband/rxe1 ] || /bin/rdma link del rxe1; "+
			"/bin/ip addr flush dev eth2; /bin/ip link set eth2 down")
	})
	script := fmt.Sprintf("set -e; /bin/ip addr add %v%s dev eth2; /bin/ip link set eth2 up; "+newRXE1,
		guestSecond, prefix4)
	return l.inGuest(ctx, script)
}

// uverbsResources are the objects of a device that the kernel has.
func (l *lab) uverbsResources(ctx context.Context) (string, error) {
	text, err := l.vm.run(ctx, commandTimeout, "/bin/rdma resource show rxe1")
	return strings.TrimSpace(text), err
}

// uverbsCase returns a case that runs test/interop/guest/uverbs in the guest. Afterwards the kernel must have the
// objects of before, and no other.
func uverbsCase(args string, gone bool) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		if err := l.uverbsDevice(ctx); err != nil {
			return err
		}
		before, err := l.uverbsResources(ctx)
		if err != nil {
			return err
		}
		said, err := l.vm.run(ctx, caseTimeout, "uverbs "+args)
		if err != nil {
			return err
		}
		l.note("%s", strings.ReplaceAll(strings.TrimSpace(said), "\n", "; "))
		if gone {
			return nil
		}
		after, err := l.uverbsResources(ctx)
		if err != nil {
			return err
		}
		if before == "" || after != before {
			return fmt.Errorf("the kernel has %q, and had %q", after, before)
		}
		return nil
	}
}

// uverbsListed checks the list of devices: both of the guest, of which one is down.
func uverbsListed(ctx context.Context, l *lab) error {
	if err := l.uverbsDevice(ctx); err != nil {
		return err
	}
	if err := l.inGuest(ctx, "/bin/ip link set eth2 down"); err != nil {
		return err
	}
	said, err := l.vm.run(ctx, commandTimeout, "uverbs list")
	if err != nil {
		return err
	}
	// The order of GIDs, and the numbers of uverbs, depend on the cases before.
	for _, want := range []string{
		`(?m)^rxe0 uverbs\d driver=rxe abi=2 .* unused=""$`,
		`(?m)^rxe1 uverbs\d driver=rxe abi=2 .* unused="no port is active"$`,
		`(?m)^rxe0 port=1 active=true gid=\d+ ` + regexp.QuoteMeta(guestAddr4.String()) + ` RoCE v2 eth0$`,
	} {
		if !regexp.MustCompile(want).MatchString(said) {
			return fmt.Errorf("the list has no line %s:\n%s", want, said)
		}
	}
	return nil
}
