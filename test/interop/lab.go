package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
)

// conditions are those under which a case runs.
type conditions struct {
	jumbo   bool           // jumbo frames, else Ethernet's own
	loss    bool           // the data network loses, delays and reorders packets
	lossy   bool           // it loses one packet of a hundred, and no more
	twin    bool           // both sides have a second interface on the data network
	ipv6    bool           // GIDs are IPv6 addresses
	headers udp.HeaderMode // of our device
	guard   bool           // the case must not lose, and does: the checks have to object
	device  bool           // the guest's programs use this library, on the guest's rxe device
}

// The netem settings of a network that loses. In both directions one packet of fifty is lost; those
// that the guest sends are also delayed, and some overtake others.
const (
	netemFromGuest = "netem limit 20000 loss 2% delay 1ms reorder 25% 50%"
	netemToGuest   = "netem limit 20000 loss 2%"
	netemLossy     = "netem limit 20000 loss 1%"
)

// A lab has the machine, the network and the files that a case works with.
type lab struct {
	conditions
	vm      *vm
	dir     string // the prepared files, and files that the case leaves
	verbose bool
	notes   []string          // for the line about a case that passed
	ours    map[string]uint64 // counters of our queue pairs and devices, added up
	close   []func() error    // closes things that the case has opened, last first
	finds   []string          // of the case
	mayFind []string          // the same
	drops   *dropMeter        // since the case began
	environ []string          // of processes of ours, beside this one's
	journal journal           // of our hosts
	again   bool              // the case runs once more, since the kernel of its guest panicked
}

func (l *lab) note(format string, args ...any) {
	l.notes = append(l.notes, fmt.Sprintf(format, args...))
}

func (l *lab) atEnd(f func() error) { l.close = append(l.close, f) }

func (l *lab) closeAll() error {
	var errs []error
	for len(l.close) != 0 {
		f := l.close[len(l.close)-1]
		l.close = l.close[:len(l.close)-1]
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// mtu returns the path MTU that both ends of a case use.
func (l *lab) mtu() wire.MTU {
	if l.jumbo {
		return wire.MTU4096
	}
	return wire.MTU1024
}

func (l *lab) ourAddr() netip.Addr {
	if l.ipv6 {
		return ourAddr6
	}
	return ourAddr4
}

func (l *lab) guestGID() wire.GID {
	if l.ipv6 {
		return wire.GIDFromAddr(guestAddr6)
	}
	return wire.GIDFromAddr(guestAddr4)
}

// gidIndex returns the place of the guest's GID in the table of rxe0.
func (l *lab) gidIndex(ctx context.Context) (int, error) {
	want := hexGID(l.guestGID())
	table, err := l.vm.run(ctx, commandTimeout, "cd /sys/class/infiniband/rxe0/ports/1/gids; for i in 0 1 2 3 4 5 6 7; do cat $i; done")
	if err != nil {
		return 0, err
	}
	index := 0
	for line := range strings.Lines(table) {
		if strings.ReplaceAll(strings.TrimSpace(line), ":", "") == want {
			return index, nil
		}
		index++
	}
	return 0, fmt.Errorf("rxe0 has no GID %s:\n%s", want, table)
}

// newRXE makes the guest's device, as guest/init.sh does.
const newRXE = "/bin/rdma link add rxe0 type rxe netdev eth0; echo 0 >/sys/class/infiniband/rxe0/ports/1/hw_counters/lifespan"

// setNetwork makes the network as the conditions say. Jumbo frames need the rxe device to be made
// anew: it takes its MTU from the interface when it is made.
func (l *lab) setNetwork(ctx context.Context) error {
	// A case that failed may have left a program.
	if _, err := l.vm.run(ctx, commandTimeout, "for p in $(pidof ibv_rc_pingpong verbspeer); do kill -9 $p; done; true"); err != nil {
		return err
	}
	mtu := standardMTU
	if l.jumbo {
		mtu = jumboMTU
	}
	if l.vm.mtu != mtu {
		if _, err := run(ctx, "ip", "link", "set", dataTap, "mtu", strconv.Itoa(mtu)); err != nil {
			return err
		}
		script := fmt.Sprintf("set -e; /bin/rdma link del rxe0; /bin/ip link set ifb0 mtu %[1]d; /bin/ip link set eth0 mtu %[1]d; "+newRXE, mtu)
		if _, err := l.vm.run(ctx, commandTimeout, script); err != nil {
			return err
		}
		l.vm.mtu = mtu
	}
	if l.loss || l.lossy {
		from, to := netemFromGuest, netemToGuest
		if l.lossy {
			from, to = netemLossy, netemLossy
		}
		script := "set -e; /bin/tc qdisc add dev eth0 root " + from + "; /bin/tc qdisc add dev ifb0 root " + to + "; " +
			"/bin/tc qdisc add dev eth0 ingress; /bin/tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0"
		if _, err := l.vm.run(ctx, commandTimeout, script); err != nil {
			return err
		}
		l.atEnd(func() error {
			_, err := l.vm.run(context.WithoutCancel(ctx), commandTimeout,
				"/bin/tc qdisc del dev eth0 ingress; /bin/tc qdisc del dev eth0 root; /bin/tc qdisc del dev ifb0 root")
			return err
		})
	}
	return nil
}

// retryEvery is the time between tries of a step that the guest is not ready for yet.
const retryEvery = 10 * time.Millisecond

// try calls f until it reports that it is done, or fails.
func try(ctx context.Context, what string, f func() (done bool, err error)) error {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		done, err := f()
		if done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
	}
}

// startServer starts a program in the guest that listens on a TCP port of the control network, and
// connects to it. The end of ctx closes the connection. program waits for the end of the program.
func (l *lab) startServer(ctx context.Context, script string, port uint16) (conn net.Conn, program func() (string, error), err error) {
	ctx, cancel := context.WithCancel(ctx)
	l.atEnd(func() error { cancel(); return nil })
	if program, err = l.vm.start(ctx, script); err != nil {
		return nil, nil, err
	}
	dialing, stop := context.WithTimeout(ctx, commandTimeout)
	defer stop()
	address := netip.AddrPortFrom(guestControl, port).String()
	var last error
	err = try(dialing, "connecting to "+address, func() (bool, error) {
		conn, last = new(net.Dialer).DialContext(dialing, "tcp", address)
		return last == nil, nil
	})
	if err != nil {
		cancel()
		_, programErr := program()
		return nil, nil, errors.Join(err, last, programErr)
	}
	l.closeWith(ctx, conn)
	return conn, program, nil
}

// closeWith closes a connection when the case ends, or ctx.
func (l *lab) closeWith(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	l.atEnd(func() error {
		stop()
		conn.Close()
		return nil
	})
}

// panicOnce has the kernel of the guest panic, and nothing when it is run again: the case runs to its
// end only where a guest that panics is replaced.
func panicOnce(ctx context.Context, l *lab) error {
	if l.again {
		return nil
	}
	_, err := l.vm.run(ctx, commandTimeout, "echo c >/proc/sysrq-trigger")
	return errors.Join(errors.New("the guest's kernel was told to panic"), err)
}

// A testCase is one line of the result.
type testCase struct {
	name, what string
	conditions
	provokes  []string // counters of errors that have to count
	tolerates []string // those that may; all others must not
	finds     []string // kinds of problems that gosmc dump has to find where SMC-R is spoken
	mayFind   []string // those that it may; no others
	run       func(context.Context, *lab) error
}

// runCase runs a case, and checks the counters that it left.
func runCase(ctx context.Context, l *lab, c testCase) (err error) {
	ctx, cancelTimeout := context.WithTimeoutCause(ctx, caseTimeout, fmt.Errorf("took longer than %v", caseTimeout))
	defer cancelTimeout()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-l.vm.done:
			cancel(errors.New("the guest ended"))
		case <-ctx.Done():
		}
	}()
	defer func() { err = errors.Join(err, l.closeAll()) }()
	l.conditions, l.ours, l.finds, l.mayFind = c.conditions, make(map[string]uint64), c.finds, c.mayFind
	if err := l.setNetwork(ctx); err != nil {
		return err
	}
	before, err := l.guestCounters(ctx)
	if err != nil {
		return err
	}
	l.drops, err = newDropMeter(func() ([]dropCount, error) {
		here, err := dropsHere()
		if err != nil {
			return nil, err
		}
		guests, err := l.dropsInGuest(context.WithoutCancel(ctx))
		return append(here, guests...), err
	})
	if err != nil {
		return err
	}
	busy := newLoadMeter()
	defer busy.result()
	runErr := c.run(ctx, l)
	load, err := busy.result()
	if err != nil {
		return errors.Join(runErr, err)
	}
	after, err := l.guestCounters(ctx)
	if err != nil {
		return errors.Join(runErr, err)
	}
	closeErr := l.closeAll() // this adds up our counters
	counted := make(map[string]uint64)
	for name, n := range after {
		if n >= before[name] { // or the device was made anew
			n -= before[name]
		}
		counted["guest "+name] = n
	}
	for name, n := range l.ours {
		counted[name] = n
	}
	if l.verbose || runErr != nil || closeErr != nil && !c.guard {
		fmt.Printf("      %s: %s\n", c.name, showCounters(counted))
	}
	if closeErr != nil {
		if !c.guard || runErr != nil || !errors.Is(closeErr, errFindings) {
			return errors.Join(runErr, closeErr)
		}
		l.note("as it must, gosmc dump objects")
	} else if c.guard && runErr == nil {
		return errors.New("gosmc dump has not objected to losses")
	}
	if runErr != nil {
		return runErr
	}
	lost, err := l.drops.take()
	if err != nil {
		return err
	}
	if lost != 0 {
		l.note("this machine was too busy for %d packets: %v", lost, l.drops)
	}
	if load.busy() {
		l.note("this machine was busy: %v", load)
	}
	err = checkCounters(counted, c, excuse{lost: lost != 0, late: load.busy()})
	switch {
	case !c.guard:
		return err
	case lost != 0:
		return nil // it proves nothing
	case err == nil:
		return fmt.Errorf("losses have counted nothing to object to: %s", showCounters(counted))
	}
	l.note("as it must, the check of counters objects")
	return nil
}
