package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	smc "github.com/gosmc/smc"
	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/test/interop/talk"
)

// The cases of SMC-R: programs on this library here, on AF_SMC sockets of the guest's kernel there. Every
// connection must be SMC-R on both sides, unless the case is about one that is not.

// ueid is what both sides have in common: a stock kernel has SMC-R version 2 with rxe, which asks for one.
const ueid = "GOSMC.INTEROP"

// guestSMCR has the guest speak SMC-R, once for each boot.
const guestSMCR = "smcpeer ueid del " + ueid + " >/dev/null; smcpeer ueid add " + ueid

// withOption puts TCP option 254 on the segments of sockets of this process that ask for it.
func (l *lab) withOption() error {
	root, err := bpf.CgroupRoot()
	if err != nil {
		return err
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	home := root
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			home = filepath.Join(root, strings.TrimSpace(path))
		}
	}
	enter := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	name := "gosmc-interop-" + strconv.Itoa(os.Getpid())
	group, pins := filepath.Join(root, name), filepath.Join(filepath.Dir(bpf.DefaultPins), name)
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	l.atEnd(func() error { return os.Remove(group) })
	if err := enter(group); err != nil {
		return err
	}
	l.atEnd(func() error { return enter(home) })
	if err := bpf.PreparePins(pins); err != nil {
		return err
	}
	l.atEnd(func() error { return os.Remove(pins) })
	o, err := bpf.AttachOption(group, pins)
	if err != nil {
		return err
	}
	l.atEnd(func() error { o.Close(); return bpf.DetachOption(pins) })
	return nil
}

// host makes a host of ours.
func (l *lab) host(eid string) (*smc.Host, error) {
	dir, err := os.MkdirTemp("", "gosmc-interop-run-")
	if err != nil {
		return nil, err
	}
	l.atEnd(func() error { return os.RemoveAll(dir) })
	h, err := smc.NewHost(&smc.Config{
		Dir: dir, UEIDs: []string{eid}, SMCRPeers: []string{guestAddr4.String() + "/32"},
	})
	if err != nil {
		return nil, err
	}
	l.atEnd(h.Close)
	return h, nil
}

// ready prepares a case: the guest's kernel, the option, and a host of ours.
func (l *lab) ready(ctx context.Context) (*smc.Host, error) {
	if _, err := l.vm.run(ctx, commandTimeout, guestSMCR); err != nil {
		return nil, err
	}
	if err := l.withOption(); err != nil {
		return nil, err
	}
	return l.host(ueid)
}

func askOption(c syscall.RawConn) error {
	if err := option.AskConn(c); err != nil {
		return fmt.Errorf("TCP option 254: %w", err)
	}
	return nil
}

// guestPort is the port of the guest's servers, another one for each: a port waits after its connections.
var guestPort uint16 = 9000

// A conversation is a script, and how often.
type conversation struct {
	talk.Script
	conns int
}

func says(kind talk.Kind, n int) conversation {
	return conversation{talk.Script{Kind: kind, N: n, Seed: 1, Soft: true}, 1}
}

func (c conversation) times(conns int) conversation { c.conns = conns; return c }

func (c conversation) String() string {
	return fmt.Sprintf("%v %d B, %d connections", c.Kind, c.N, c.conns)
}

// smcrClient has the guest serve and us dial, for each of the conversations in turn with one host.
func smcrClient(list ...conversation) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		h, err := l.ready(ctx)
		if err != nil {
			return err
		}
		for _, c := range list {
			if err := l.dialGuest(ctx, h, c); err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
		}
		return nil
	}
}

func (l *lab) dialGuest(ctx context.Context, h *smc.Host, c conversation) error {
	dest, finish, err := l.guestServes(ctx, c.conns)
	if err != nil {
		return err
	}
	began := time.Now()
	ours := all(c.conns, func(i int) error {
		conn, err := l.dial(ctx, h, smc.RequireSMCR, dest)
		if err != nil {
			return err
		}
		s := c.Script
		s.Seed += uint64(i) << 32
		return talk.Client(conn, s)
	})
	said, err := finish()
	if err := errors.Join(ours, err); err != nil {
		return fmt.Errorf("%w\nthe guest says:\n%s", err, said)
	}
	if err := allSMCR(said, c); err != nil {
		return err
	}
	l.note("%v: %.1f s", c, time.Since(began).Seconds())
	return nil
}

// smcrServer has the guest dial and us serve.
func smcrServer(list ...conversation) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		h, err := l.ready(ctx)
		if err != nil {
			return err
		}
		listener, err := l.listen(ctx, h, smc.RequireSMCR)
		if err != nil {
			return err
		}
		for _, c := range list {
			if err := l.serveGuest(ctx, listener, c); err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
		}
		return nil
	}
}

func (l *lab) serveGuest(ctx context.Context, listener *smc.Listener, c conversation) error {
	began := time.Now()
	finish, err := l.vm.start(ctx, fmt.Sprintf("smcpeer dial %v %v %d %d %d", listener.Addr(), c.Kind, c.N, c.Rounds, c.conns))
	if err != nil {
		return err
	}
	type report struct {
		said string
		err  error
	}
	reports := make(chan report, 1)
	go func() {
		said, err := finish()
		if err != nil {
			listener.SetDeadline(time.Now()) // nobody comes any more
		}
		reports <- report{said, err}
	}()
	var served sync.WaitGroup
	errs := make(chan error, c.conns)
	for range c.conns {
		conn, err := listener.AcceptSMC()
		if err != nil {
			errs <- err
			continue
		}
		served.Go(func() {
			stop := context.AfterFunc(ctx, func() { conn.SetLinger(0); conn.Close() })
			defer stop()
			if mode := conn.State().Mode; mode != smc.ModeSMCR {
				errs <- fmt.Errorf("a connection with mode %v", mode)
			}
			_, err := talk.Serve(conn)
			errs <- err
		})
	}
	served.Wait()
	close(errs)
	var ours []error
	for err := range errs {
		ours = append(ours, err)
	}
	r := <-reports
	listener.SetDeadline(time.Time{})
	if err := errors.Join(append(ours, r.err)...); err != nil {
		return fmt.Errorf("%w\nthe guest says:\n%s", err, r.said)
	}
	if err := allSMCR(r.said, c); err != nil {
		return err
	}
	l.note("%v: %.1f s", c, time.Since(began).Seconds())
	return nil
}

// all runs f n times at the same time.
func all(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// allSMCR checks what the guest says of the connections.
func allSMCR(said string, c conversation) error {
	want := fmt.Sprintf("ok %v mode=smc-r", c.Kind)
	good := 0
	for line := range strings.Lines(said) {
		if strings.TrimSpace(line) == want {
			good++
		}
	}
	if good != c.conns {
		return fmt.Errorf("%d times %q from the guest, want %d:\n%s", good, want, c.conns, said)
	}
	return nil
}
