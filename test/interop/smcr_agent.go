package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/test/interop/talk"
)

// Two processes of ours on one address, which know nothing of each other: 'gosmc agent' puts the
// option on their segments, and shares UDP port 4791 between them. The guest's kernel sees two
// hosts.

// processes is how many there are.
const processes = 2

// withAgent starts an agent, for processes that are started from now on, until the case ends.
func (l *lab) withAgent(ctx context.Context) error {
	group, pins, err := l.ownCgroup()
	if err != nil {
		return err
	}
	socket := filepath.Join(l.dir, "agent.sock")
	l.environ = append(l.environ, port.EnvSocket+"="+socket)
	agent := exec.Command(filepath.Join(l.dir, "gosmc"), "agent", "--socket", socket, "--cgroup", group, "--pins", pins)
	var remarks strings.Builder
	agent.Stderr = &remarks
	agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := agent.Start(); err != nil {
		return err
	}
	l.atEnd(func() error { return os.RemoveAll(pins) }) // with the pins of ports without a process
	l.atEnd(func() error {
		agent.Process.Signal(syscall.SIGINT)
		kill := time.AfterFunc(killDelay, func() { agent.Process.Kill() })
		defer kill.Stop()
		if err := agent.Wait(); err != nil {
			return fmt.Errorf("gosmc agent: %w\n%s", err, remarks.String())
		}
		_, err := l.gosmc(context.WithoutCancel(ctx), "agent", "--detach", "--socket", socket, "--cgroup", group, "--pins", pins)
		return err
	})
	starting, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return try(starting, "gosmc agent", func() (bool, error) {
		_, err := l.gosmc(starting, "agent", "--status", "--socket", socket)
		return err == nil, nil
	})
}

// startOurs starts a process of ours: see gosmcpeer. finish lets it end when it has done its part,
// and returns its output.
func (l *lab) startOurs(ctx context.Context, args ...string) (pid int, finish func() (string, error), err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.dir, "gosmcpeer"), args...)
	cmd.Env = append(os.Environ(), append(l.environ, "GOSMC_DIR="+l.runDir(), "GOSMC_UEIDS="+ueid, "GOSMC_CONFIG=/dev/null")...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); close(ended) }()
	l.atEnd(func() error {
		cmd.Process.Kill()
		<-ended
		return nil
	})
	return cmd.Process.Pid, func() (string, error) {
		stdin.Close()
		err := <-ended
		return said.String(), err
	}, nil
}

// sharedServer has the guest dial two processes of ours at the same time, and again.
func sharedServer(ctx context.Context, l *lab) error {
	if err := l.readyWithAgent(ctx); err != nil {
		return err
	}
	talks := []conversation{says(talk.Duplex, 3_000_000).times(4), says(talk.Echo, 100_000).times(4)}
	conns := 0
	for _, c := range talks {
		conns += c.conns
	}
	var dests [processes]netip.AddrPort
	var pids [processes]int
	var finish [processes]func() (string, error)
	for i := range processes {
		lastPort++
		dests[i] = netip.AddrPortFrom(ourAddr4, lastPort)
		var err error
		if pids[i], finish[i], err = l.startOurs(ctx, "serve", fmt.Sprint(lastPort), fmt.Sprint(conns)); err != nil {
			return err
		}
		err = try(ctx, "our process listens", func() (bool, error) {
			text, err := os.ReadFile("/proc/net/tcp")
			return strings.Contains(string(text), isListening(lastPort)), err
		})
		if err != nil {
			return err
		}
	}
	for round, c := range talks {
		if round > 0 { // both have link groups, in which there is room
			if err := l.shareAddress(ctx, pids); err != nil {
				return err
			}
		}
		began := time.Now()
		err := all(processes, func(i int) error {
			said, err := l.vm.run(ctx, commandTimeout, fmt.Sprintf("smcpeer dial %v %v %d %d %d", dests[i], c.Kind, c.N, c.Rounds, c.conns))
			if err != nil {
				return err
			}
			return allSMCR(said, c)
		})
		if err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		l.note("%v to each: %.1f s", c, time.Since(began).Seconds())
	}
	return all(processes, func(i int) error {
		said, err := finish[i]()
		if err != nil {
			return fmt.Errorf("our process: %w\n%s", err, said)
		}
		return errors.Join(allSMCR(said, talks[0]), allSMCR(said, talks[1]))
	})
}

// sharedClient has two processes of ours dial the guest at the same time.
func sharedClient(ctx context.Context, l *lab) error {
	if err := l.readyWithAgent(ctx); err != nil {
		return err
	}
	c := says(talk.Duplex, 6_000_000).times(4)
	dest, guestEnds, err := l.guestServes(ctx, processes*c.conns)
	if err != nil {
		return err
	}
	began := time.Now()
	var pids [processes]int
	var finish [processes]func() (string, error)
	for i := range processes {
		pids[i], finish[i], err = l.startOurs(ctx, "dial", dest.String(), c.Kind.String(), fmt.Sprint(c.N), "1", fmt.Sprint(c.conns))
		if err != nil {
			return err
		}
	}
	if err := l.shareAddress(ctx, pids); err != nil {
		return err
	}
	said, err := guestEnds()
	if err != nil {
		return err
	}
	took := time.Since(began)
	if err := allSMCR(said, c.times(processes*c.conns)); err != nil {
		return err
	}
	l.note("%v from each: %.1f s", c, took.Seconds())
	return all(processes, func(i int) error {
		said, err := finish[i]()
		if err != nil {
			return fmt.Errorf("our process: %w\n%s", err, said)
		}
		return allSMCR(said, c)
	})
}

func (l *lab) readyWithAgent(ctx context.Context) error {
	if err := l.readyGuest(ctx); err != nil {
		return err
	}
	return l.withAgent(ctx)
}

// shareAddress waits until each of the processes has a link group, and checks that their queue
// pairs are at one address, and of different ranges.
func (l *lab) shareAddress(ctx context.Context, pids [processes]int) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	ranges := make(map[int]uint32) // the upper 8 bits of queue pair numbers, by process
	err := try(ctx, "link groups of each process", func() (bool, error) {
		groups, err := l.linkGroups(ctx)
		if err != nil {
			return false, err
		}
		clear(ranges)
		for _, g := range groups {
			for _, link := range g.Links {
				if g.Mode != "SMC-R" || link.Device != ourAddr4.String() {
					return false, fmt.Errorf("link group %+v; want SMC-R at %v", g, ourAddr4)
				}
				if link.LocalQPN != 0 {
					ranges[g.PID] = link.LocalQPN >> 16
				}
			}
		}
		return len(ranges) == processes, nil
	})
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if _, ok := ranges[pid]; !ok {
			return fmt.Errorf("process %d has no link group: %v", pid, ranges)
		}
	}
	if ranges[pids[0]] == ranges[pids[1]] || ranges[pids[0]] == 0 || ranges[pids[1]] == 0 {
		return fmt.Errorf("queue pair numbers of two processes begin with %v; want two that the agent gave", ranges)
	}
	return nil
}
