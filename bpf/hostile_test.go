package bpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/smctest"
)

// A local user has only sockets and network namespaces, and these tests have it use as many as it can. Whatever it
// does, connections of others have the option at both ends, or at neither.

// floodSYNs is how many SYNs with the option an attacker sends: more than the 65,536 entries of a table that earlier versions
// had for the whole machine.
const floodSYNs = 70_000

// floodStep is how many it sends at a time: fewer than the interface's queue holds (net.core.netdev_max_backlog).
const floodStep = 500

// flood is a process that sends SYNs to a listening socket of its own, which asked. It is told when to send more.
func flood(p *smctest.Parent) {
	p.Check(smctest.Up("lo"))
	p.Check(os.WriteFile("/proc/sys/net/ipv4/tcp_syncookies", []byte("0"), 0)) // each request has an answer of its own
	l, err := listenAsking("127.0.0.1:0")
	p.Check(err)
	defer l.Close()
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	p.Check(err)
	p.Say("listening")
	to := l.Addr().(*net.TCPAddr).AddrPort()
	options := []byte{2, 4, 5, 0xb4, 1, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9}
	for i := 0; ; i++ {
		if i%floodStep == 0 {
			if i > 0 {
				p.Say("sent")
			}
			p.Hear()
		}
		// Nobody has the sender's port, so the kernel resets the request when it has been answered.
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 14), 1}), uint16(2000+i&0x3fff))
		p.Check(unix.Sendto(raw, segmentFrom(from, to, 1000, 0, flagSYN, options), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}))
	}
}

func listenAsking(addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: asking(true)}
	lc.SetMultipathTCP(false)
	return lc.Listen(context.Background(), "tcp", addr)
}

// TestFloodOfSYNs has a user flood a socket of its own in a private network namespace, while the segment that ends
// somebody's handshake is under way. Both ends of that connection have the option. The server defers accept, so that the kernel
// does not send its SYN-ACK again meanwhile, however slow the machine is.
func TestFloodOfSYNs(t *testing.T) {
	p := newPlace(t)
	for name, start := range map[string]func() *smctest.Process{
		"root of a network namespace": func() (c *smctest.Process) {
			private, _ := smctest.EnterNamespace(t)
			private(func() { c = smctest.Start(t, "flood") })
			return c
		},
		"root of a user namespace": func() *smctest.Process { return smctest.StartRootless(t, 4001, "flood") },
	} {
		t.Run(name, func(t *testing.T) {
			attacker := start()
			attacker.Hear("listening")
			answered := func() uint64 {
				c, err := p.option.Counters()
				if err != nil {
					t.Error(err)
				}
				return c.SYNACKSent
			}
			r := newRoad(t, p)
			flooded, before := uint64(0), answered()
			r.pass = func(s segment, toServer bool) bool {
				if toServer && s.data > 0 && flooded == 0 {
					for range 10 * floodSYNs / floodStep { // the kernel drops some
						attacker.Say("more")
						attacker.Hear("sent")
						if flooded = answered() - before; flooded > floodSYNs {
							break
						}
					}
				}
				return true
			}
			r.connect(t, setTCP(t, unix.TCP_DEFER_ACCEPT, 120), nil).want(t, both, both)
			r.checkOption(t, true, true)
			if flooded <= floodSYNs {
				t.Errorf("%d SYN-ACKs had the option during the flood, want more than %d", flooded, floodSYNs)
			}
			attacker.Kill()
		})
	}
}

// crowdOfListeners is a process, of another user if one is named, whose sockets ask and listen: it is given the number
// of the first and how many, and the user. It says how many had been too many.
func crowdOfListeners(p *smctest.Parent) {
	var n [3]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(p.Args[i])
		p.Check(err)
	}
	first, count, user := n[0], n[1], n[2]
	if user != 0 {
		p.Check(syscall.Setgroups(nil))
		p.Check(syscall.Setresgid(user, user, user))
		p.Check(syscall.Setresuid(user, user, user))
	} else {
		p.Check(smctest.Up("lo"))
	}
	tooMany := 0
	for i := first; i < first+count; i++ {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		p.Check(err)
		p.Check(option.Ask(uintptr(fd)))
		p.Check(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 2, byte(i / 50_000), 1}, Port: 10_000 + i%50_000}))
		p.Check(unix.Listen(fd, 1))
		state, reason, err := option.Read(uintptr(fd))
		switch {
		case err == nil && state == option.Listening:
		case err == nil && reason == option.TooMany:
			tooMany++
		default:
			p.Check(fmt.Errorf("socket %d: %v %v, %w", i, state, reason, err))
		}
	}
	p.Say("refused %d", tooMany)
	p.Hear()
}

// TestCrowdOfListeners has one user listen on 100,000 sockets that asked, and others in a user namespace, and a root of
// a network namespace. Each has its quota, and none of them keeps others from listening. When they end all is as it was.
func TestCrowdOfListeners(t *testing.T) {
	p := newPlace(t)
	works := func() {
		t.Helper()
		l := p.listen(t, "127.0.0.1:0", true)
		p.connect(t, l, l.Addr().String(), true).want(t, both, both)
		l.Close()
		var child *smctest.Process
		p.run(func() { child = smctest.Start(t, "nobody") })
		for range 2 {
			if got := child.Hear("state"); got != "both " && got != "both" {
				t.Errorf("another user: %q, want both", got)
			}
		}
		child.Wait()
	}
	var all []*smctest.Process
	// crowd has processes listen on so many sockets, no more of them in one than it may have descriptors.
	crowd := func(start func(args ...string) *smctest.Process, count, user int) (refused int) {
		t.Helper()
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		step := min(int(limit.Max)-100, 10_000)
		for first := 0; first < count; first += step {
			c := start(fmt.Sprint(first), fmt.Sprint(min(step, count-first)), fmt.Sprint(user))
			all = append(all, c)
			n, err := strconv.Atoi(c.Hear("refused"))
			if err != nil {
				t.Fatal(err)
			}
			refused += n
		}
		return refused
	}
	within := func(run func(func())) func(args ...string) *smctest.Process {
		return func(args ...string) (c *smctest.Process) {
			run(func() { c = smctest.Start(t, "crowd", args...) })
			return c
		}
	}
	rootless := func(user int) func(args ...string) *smctest.Process {
		return func(args ...string) *smctest.Process { return smctest.StartRootless(t, user, "crowd", args...) }
	}
	private, _ := smctest.EnterNamespace(t)
	var lo error
	private(func() { lo = smctest.Up("lo") })
	if lo != nil {
		t.Fatal(lo)
	}
	for _, tt := range []struct {
		who     string
		start   func(args ...string) *smctest.Process
		user    int // that the process becomes; 0 for the one that it is
		sockets int
		quota   int
	}{
		{"a user", within(p.run), 4001, 100_000, userQuota},
		{"the same user as root of a user namespace", rootless(4001), 0, 100, 0},
		{"a subordinate user", rootless(100_000), 0, 2000, userQuota},
		{"a subordinate user of the same range", rootless(100_001), 0, 100, 0},
		{"root of a network namespace", within(private), 0, 20_000, namespaceQuota},
	} {
		if n := crowd(tt.start, tt.sockets, tt.user); n != tt.sockets-tt.quota {
			t.Errorf("%s: %d of %d sockets were too many, want %d", tt.who, n, tt.sockets, tt.sockets-tt.quota)
		}
		works()
	}
	for _, c := range all {
		c.Kill()
	}
	checkQuotas(t, p)
}

// Quotas of option.bpf.c.
const userQuota, namespaceQuota = 1024, 16384

// checkQuotas checks that nobody listens any more.
func checkQuotas(t *testing.T, p *place) {
	t.Helper()
	listeners, err := ebpf.LoadPinnedMap(p.pins+"/listeners", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer listeners.Close()
	var place [32]byte
	var sockets [2]uint64
	for it := listeners.Iterate(); it.Next(&place, &sockets); {
		t.Errorf("%d sockets listen at %x", sockets[0], place)
	}
	quotas, err := ebpf.LoadPinnedMap(p.pins+"/quotas", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer quotas.Close()
	var user uint32
	var count uint64
	for it := quotas.Iterate(); it.Next(&user, &count); {
		if count != 0 {
			t.Errorf("user %d has %d", user, count)
		}
	}
}

// TestSelfConnect has sockets that ask be connected to themselves: there is no server, so they are
// TCP for good, and written bytes come back.
func TestSelfConnect(t *testing.T) {
	p := newPlace(t)
	crossed := fate{option.Alone, option.Crossed}
	for i := range 1000 {
		var err error
		var got fate
		p.run(func() {
			var fd int
			if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
				return
			}
			defer unix.Close(fd)
			self := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 10_000 + i}
			b := make([]byte, 10)
			var n int
			err = errors.Join(option.Ask(uintptr(fd)), unix.Bind(fd, self), unix.Connect(fd, self))
			if err == nil {
				_, err = unix.Write(fd, []byte("hello"))
			}
			if err == nil {
				n, err = unix.Read(fd, b)
			}
			if err == nil && string(b[:n]) != "hello" {
				err = fmt.Errorf("read %q", b[:n])
			}
			if err == nil {
				got.state, got.reason, err = option.Read(uintptr(fd))
			}
		})
		if err != nil || got != crossed {
			t.Fatalf("socket %d: %v %v, %v; want alone, crossed", i, got.state, got.reason, err)
		}
	}
	checkQuotas(t, p)
	checkTables(t, p)
}

// TestListenersComeAndGo has sockets at one endpoint begin and end to listen at the same time. None is forgotten while it listens,
// and none is remembered after.
func TestListenersComeAndGo(t *testing.T) {
	p := newPlace(t)
	const workers, rounds = 8, 300
	done := make(chan error)
	for range workers {
		run, err := sameNamespace(p)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			done <- run(func() error {
				late := 0
				for range rounds {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					err = errors.Join(option.Ask(uintptr(fd)), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
						unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 77}), unix.Listen(fd, 1))
					state, reason, rerr := option.Read(uintptr(fd))
					unix.Close(fd)
					// The program waits for one that was preempted while it removes an entry, but not for long; the
					// socket is none of the port's then, for others, too.
					if rerr == nil && (reason == option.TooMany || reason == option.Mixed) && late < rounds/10 {
						late++
						continue
					}
					if err = errors.Join(err, rerr); err != nil || state != option.Listening {
						return fmt.Errorf("%v %v, %v; want listening", state, reason, err)
					}
				}
				return nil
			})
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	checkQuotas(t, p)
}
