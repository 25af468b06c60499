package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/test/interop/talk"
)

// Cases in which the only process of ours on UDP port 4791 ends without a word to the guest. Nobody
// has the port then, and 'gosmc agent' answers the guest's queue pair.

// leftWithin is the time in which the guest must notice. Its kernel tests a link that is silent
// for 30 seconds, and gives it up two seconds later.
const leftWithin = 20 * time.Second

// testsWithin is the time in which it notices without anything to send.
const testsWithin = time.Minute

// leftServer has the guest be the client of a process that is killed in the middle of a transfer.
func leftServer(ctx context.Context, l *lab) error {
	if err := l.readyWithAgent(ctx); err != nil {
		return err
	}
	lastPort++
	pid, finish, err := l.startOurs(ctx, "serve", fmt.Sprint(lastPort), "1")
	if err != nil {
		return err
	}
	err = try(ctx, "our process listens", func() (bool, error) {
		text, err := os.ReadFile("/proc/net/tcp")
		return strings.Contains(string(text), isListening(lastPort)), err
	})
	if err != nil {
		return err
	}
	guestEnds, err := l.vm.start(ctx, fmt.Sprintf("smcpeer dial %v duplex %d 1 1", netip.AddrPortFrom(ourAddr4, lastPort), 1<<30))
	if err != nil {
		return err
	}
	err = try(ctx, "a link group of our process", func() (bool, error) {
		groups, err := l.linkGroups(ctx)
		return len(groups) == 1 && groups[0].PID == pid && groups[0].Conns == 1, err
	})
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	finish() // it was killed
	return l.guestNotices("a process of ours is killed", guestEnds, false)
}

// leftClient has a process of ours dial the guest, and end as soon as it has closed its connection.
func leftClient(ctx context.Context, l *lab) error {
	if err := l.readyWithAgent(ctx); err != nil {
		return err
	}
	for tries := 1; ; tries++ {
		dest, guestEnds, err := l.guestServes(ctx, 1)
		if err != nil {
			return err
		}
		_, finish, err := l.startOurs(ctx, "dial", dest.String(), talk.Echo.String(), "100000", "1", "1")
		if err != nil {
			return err
		}
		if said, err := finish(); err != nil { // its standard input has ended: it does not wait
			return fmt.Errorf("our process: %w\n%s", err, said)
		}
		err = l.guestNotices("a process of ours ends right after Close", guestEnds, true)
		if !errors.Is(err, errLeftQuiet) || tries == maxTries {
			return err
		}
		// Once in some ten runs the process has acknowledged all before it ends: the guest has nothing to send, to which
		// the agent could answer, before it tests the link.
		if err := l.guestTestsLink(ctx); err != nil {
			return err
		}
	}
}

// errLeftQuiet means that a queue pair of the guest's kernel goes on, though nobody is at its other end.
var errLeftQuiet = errors.New("the guest has not noticed")

// guestTestsLink waits until the guest's kernel has tested the link of a process that has ended.
func (l *lab) guestTestsLink(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, testsWithin)
	defer cancel()
	return try(ctx, "the end of the guest's queue pair", func() (bool, error) {
		pairs, err := l.vm.run(ctx, commandTimeout, "/bin/rdma resource show qp")
		return !readyToSend(pairs), err
	})
}

// readyToSend reports whether the guest lists a reliable queue pair that can send. The device's own
// one, for management, always can.
func readyToSend(pairs string) bool {
	for line := range strings.Lines(pairs) {
		if strings.Contains(line, "type RC ") && strings.Contains(line, "state RTS ") {
			return true
		}
	}
	return false
}

// guestNotices checks that a program of the guest ends in time, well or not, and that no queue pair
// of its kernel goes on.
func (l *lab) guestNotices(what string, ends func() (string, error), well bool) error {
	began := time.Now()
	said, err := ends()
	took := time.Since(began)
	switch {
	case well && err != nil:
		return fmt.Errorf("%s: %w\n%s", what, err, said)
	case !well && err == nil:
		return fmt.Errorf("%s, and the guest's program ends well: %s", what, said)
	case took > leftWithin:
		return fmt.Errorf("%s, and the guest's program ends %.1f s later; want no more than %v", what, took.Seconds(), leftWithin)
	}
	left := took
	ctx, cancel := context.WithDeadline(context.Background(), began.Add(leftWithin))
	defer cancel()
	err = try(ctx, "the guest's queue pairs", func() (bool, error) {
		pairs, err := l.vm.run(ctx, commandTimeout, "/bin/rdma resource show qp")
		left = time.Since(began)
		return !readyToSend(pairs), err
	})
	l.note("%s: the guest's program ends after %.1f s, its queue pair within %.1f s", what, took.Seconds(), left.Seconds())
	if err != nil {
		return errors.Join(errors.New(what), errLeftQuiet, err)
	}
	return nil
}
