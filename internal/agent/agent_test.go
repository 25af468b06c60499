package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// programs are the programs of child processes.
var programs = map[string]func(*smctest.Parent){"device": device, "claim": claimAs, "silent": silent, "crowd": crowd, "addresses": addresses, "leave": leave, "keeper": keeper}

const (
	half   = 1 << 20 // the memory to write from, before the memory to write to
	region = 2 * half
)

// An end is a device with all that a queue pair needs.
type end struct {
	dev *rdma.Device
	mr  *rdma.MR
	qp  *rdma.QP
	cq  *rdma.CQ
	psn wire.PSN
}

func newEnd(dev *rdma.Device) (e *end, err error) {
	e = &end{dev: dev, psn: rdma.RandomPSN()}
	pd, err := dev.NewPD()
	if err != nil {
		return nil, err
	}
	if e.cq, err = dev.NewCQ(256, nil); err != nil {
		return nil, err
	}
	if e.mr, err = pd.AllocMR(region, rdma.LocalWrite|rdma.RemoteWrite); err != nil {
		return nil, err
	}
	if e.qp, err = pd.NewQP(rdma.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 16, MaxRecv: 16}); err != nil {
		return nil, err
	}
	return e, e.qp.Init(rdma.LocalWrite | rdma.RemoteWrite)
}

// String has the values that the other end has to know, as connect takes them.
func (e *end) String() string {
	return fmt.Sprintf("%v %d %d %d %d", e.dev.Addr(), e.qp.QPN(), e.psn, e.mr.Addr(), e.mr.RKey())
}

// connect takes the queue pair to RTS, and returns where the other end's memory is.
func (e *end) connect(other string) (addr uint64, key wire.RKey, err error) {
	f := strings.Fields(other)
	if len(f) != 5 {
		return 0, 0, fmt.Errorf("the other end is %q", other)
	}
	ip, err := netip.ParseAddr(f[0])
	if err != nil {
		return 0, 0, err
	}
	var n [4]uint64
	for i := range n {
		if n[i], err = strconv.ParseUint(f[1+i], 10, 64); err != nil {
			return 0, 0, err
		}
	}
	if err := e.qp.ReadyToReceive(rdma.RTR{RemoteGID: wire.GIDFromAddr(ip), RemoteQPN: wire.QPN(n[0]), PathMTU: wire.MTU1024, RecvPSN: wire.PSN(n[1]), MinRNRTimer: 5}); err != nil {
		return 0, 0, err
	}
	return n[2], wire.RKey(n[3]), e.qp.ReadyToSend(rdma.RTS{SendPSN: e.psn, Timeout: 15, RetryCount: 7, RNRRetry: 7})
}

// write fills the second half of the other end's memory and waits until that is acknowledged.
func (e *end) write(addr uint64, key wire.RKey) error {
	err := e.qp.PostSend(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Signaled: true, Remote: addr + half, RKey: key, Local: [2]rdma.SGE{{MR: e.mr, Addr: e.mr.Addr(), Len: half}}})
	if err != nil {
		return err
	}
	var one [1]rdma.Completion
	for deadline := time.After(20 * time.Second); e.cq.Poll(one[:]) == 0; {
		select {
		case <-e.cq.Channel():
		case <-deadline:
			return fmt.Errorf("no completion: %+v %+v", e.qp.Stats(), e.dev.Stats())
		}
	}
	if one[0].Status != rdma.StatusOK {
		return fmt.Errorf("completion %+v", one[0])
	}
	return nil
}

// device is a process with a device on a shared port: it is given the directory and the address, and the other end.
func device(p *smctest.Parent) {
	dir, addr, _ := strings.Cut(p.Hear(), " ")
	g, err := port.Claim(context.Background(), dir, netip.MustParseAddr(addr), 0)
	p.Check(err)
	dev, err := rdma.Open(netip.MustParseAddr(addr), &rdma.Config{Share: &rdma.Share{Socket: g.Socket, First: g.First, Count: g.Count, Key: g.Key}})
	p.Check(err)
	e, err := newEnd(dev)
	p.Check(err)
	p.Say("first %d", g.First)
	p.Say("end %v", e)
	memory, key, err := e.connect(p.Hear())
	p.Check(err)
	for i := 0; p.Hear() == "write"; i++ {
		smctest.Pattern(e.mr.Bytes()[:half], uint64(i))
		p.Check(e.write(memory, key))
		p.Say("written %d", i)
	}
}

// TestTwoProcesses has two processes share an address, and move data with a device elsewhere at the same time, while
// the agent comes and goes. The processes are killed in the end, and their numbers are free again.
func TestTwoProcesses(t *testing.T) {
	c := smctest.NewCables(t, 1)
	p := newPlace(t)
	var far *rdma.Device
	var err error
	c.Run[1](func() { far, err = rdma.Open(c.Addr[0][1], nil) })
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	type connection struct {
		child  *smctest.Process
		end    *end
		memory uint64
		key    wire.RKey
	}
	start := func() (n *connection, first string) {
		n = &connection{}
		c.Run[0](func() { n.child = smctest.Start(t, "device") })
		n.child.Say("%s %v", p.dir, c.Addr[0][0])
		first = n.child.Hear("first")
		if n.end, err = newEnd(far); err != nil {
			t.Fatal(err)
		}
		if n.memory, n.key, err = n.end.connect(n.child.Hear("end")); err != nil {
			t.Fatal(err)
		}
		n.child.Say("%v", n.end)
		return n, first
	}
	round := func(list []*connection, i int) {
		t.Helper()
		for _, n := range list {
			n.child.Say("write")
		}
		done := make(chan error)
		for _, n := range list {
			go func() { done <- n.end.write(n.memory, n.key) }()
		}
		for range list {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for _, n := range list {
			n.child.Hear("written")
			if err := smctest.CheckPattern(n.end.mr.Bytes()[half:], uint64(i)); err != nil {
				t.Errorf("round %d: %v", i, err)
			}
		}
	}
	a, first := start()
	b, second := start()
	if first == second {
		t.Fatalf("both have %s", first)
	}
	list := []*connection{a, b}
	round(list, 0)
	p.agent.Close()
	if _, err := port.Claim(context.Background(), p.dir, c.Addr[0][0], 0); !errors.Is(err, port.ErrNoAgent) {
		t.Errorf("without an agent: %v", err)
	}
	round(list, 1)
	p.start(t)
	if n := p.sockets(t); n != 2 {
		t.Errorf("the next agent finds %d sockets, want 2", n)
	}
	d, third := start()
	if third == first || third == second {
		t.Errorf("a third process has %s, as %s or %s", third, first, second)
	}
	round(list, 2)
	round([]*connection{d}, 0)
	a.child.Kill()
	if err := a.child.Wait(); err == nil {
		t.Error("not killed")
	}
	smctest.Eventually(t, 20*time.Second, "a killed process's number to be free", func() bool { return p.sockets(t) == 2 })
	b.child.Say("write")
	if err := b.end.write(b.memory, b.key); err != nil {
		t.Error(err)
	}
	b.child.Hear("written")
	for _, n := range []*connection{b, d} {
		n.child.Kill()
		n.child.Wait()
	}
	smctest.Eventually(t, 20*time.Second, "all numbers to be free", func() bool { return p.sockets(t) == 0 })
	if s := far.Stats(); s.BadICRC+s.Malformed+s.WrongPeer > 0 {
		t.Errorf("%+v", s)
	}
	p.start(t, briefly)
	smctest.Eventually(t, 20*time.Second, "no pins for nobody", func() bool {
		names, err := os.ReadDir(p.pins)
		return err == nil && len(names) == 0
	})
}

// TestSteering sends packets to a shared port from elsewhere: each socket gets the packets for its
// numbers, and no other.
func TestSteering(t *testing.T) {
	p := newPlace(t)
	for _, addr := range []netip.Addr{netip.MustParseAddr("127.81.82.83"), netip.IPv6Loopback()} {
		var conns []*net.UDPConn
		var grants []*port.Grant
		for range 5 {
			g := p.claim(t, here, addr)
			pc, err := net.FilePacketConn(g.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer pc.Close()
			pc.SetDeadline(time.Now().Add(20 * time.Second))
			conns, grants = append(conns, pc.(*net.UDPConn)), append(grants, g)
		}
		out, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		send := func(qpn wire.QPN, mark byte) {
			b := make([]byte, 20)
			if mark == 99 {
				b = b[:roce.MinPacketLen-1] // else it goes to one of the others
			}
			b[5], b[6], b[7], b[len(b)-1] = byte(qpn>>16), byte(qpn>>8), byte(qpn), mark
			if _, err := out.WriteToUDPAddrPort(b, netip.AddrPortFrom(addr, roce.Port)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatal(err)
			}
		}
		out.WriteToUDPAddrPort([]byte{1, 2, 3, 4, 5}, netip.AddrPortFrom(addr, roce.Port)) // too short to steer
		for mark := range byte(3) {
			for _, g := range grants {
				send(g.First+wire.QPN(mark)*32767, mark)
			}
			send(0x000012, 99) // rxe's numbers begin here
			send(0xffffff, 99)
		}
		for i, c := range conns {
			for mark := range byte(3) {
				b := make([]byte, 100)
				n, err := c.Read(b)
				if err != nil || n != 20 || b[19] != mark || b[5] != byte(grants[i].First>>16) {
					t.Errorf("%v: socket %d with numbers from %v has received %x, %v", addr, i, grants[i].First, b[:max(n, 0)], err)
				}
			}
			c.SetReadDeadline(time.Unix(1, 0))
			if n, err := c.Read(make([]byte, 100)); err == nil {
				t.Errorf("%v: socket %d has received %d bytes more", addr, i, n)
			}
		}
		for _, g := range grants[1:] {
			if g.Key != grants[0].Key || g.Key == (port.Key{}) {
				t.Errorf("keys %x and %x", g.Key, grants[0].Key)
			}
		}
		// A process that has a socket cannot steer for others.
		raw, _ := grants[0].Socket.SyscallConn()
		raw.Control(func(fd uintptr) {
			filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
			if err := unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &filter[0]}); err != unix.EPERM {
				t.Errorf("exchanged the steering: %v", err)
			}
		})
	}
}

// TestSteeringToOthers sends packets to numbers of nobody, or of a process that has ended: the
// first of the others gets them, so that somebody answers. A datagram that is too short for a
// packet is refused, so that its sender learns that the process has ended.
func TestSteeringToOthers(t *testing.T) {
	p := newPlace(t)
	addr := netip.MustParseAddr("127.81.82.84")
	grants := []*port.Grant{p.claim(t, here, addr), p.claim(t, here, addr), p.claim(t, here, addr)}
	slices.SortFunc(grants, func(a, b *port.Grant) int { return cmp.Compare(a.First, b.First) })
	c, err := net.FilePacketConn(grants[0].Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	ended := grants[2].First + 5
	for _, g := range grants[2:] {
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// The agent may still hold the socket that it has just given away.
	smctest.Eventually(t, 20*time.Second, "the ended process's numbers to be nobody's", func() bool { return p.sockets(t) == 2 })
	out, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, roce.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	out.SetDeadline(time.Now().Add(20 * time.Second))
	send := func(qpn wire.QPN, n int) {
		t.Helper()
		b := make([]byte, n)
		b[5], b[6], b[7] = byte(qpn>>16), byte(qpn>>8), byte(qpn)
		if _, err := out.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	send(ended, roce.MinPacketLen-1)
	if n, err := out.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("what is too short was answered with %d bytes, %v", n, err)
	}
	for _, qpn := range []wire.QPN{ended, 0x12, 0xffffff} {
		send(qpn, roce.MinPacketLen)
		b := make([]byte, 100)
		if n, _, err := c.ReadFrom(b); err != nil || n != roce.MinPacketLen || wire.QPN(b[5])<<16|wire.QPN(b[6])<<8|wire.QPN(b[7]) != qpn {
			t.Errorf("for %v of nobody, the first of the others got %x, %v", qpn, b[:max(n, 0)], err)
		}
	}
	send(grants[1].First, roce.MinPacketLen) // of a living one
	c.SetDeadline(time.Unix(1, 0))
	if n, _, err := c.ReadFrom(make([]byte, 100)); err == nil {
		t.Errorf("got %d bytes that are for another process", n)
	}
}

// TestNamespaces has processes of two network namespaces ask one agent: each gets a socket in its own.
func TestNamespaces(t *testing.T) {
	c := smctest.NewCables(t, 1)
	p := newPlace(t)
	for end := range 2 {
		for _, addr := range []netip.Addr{c.Addr[0][end], c.Six[0][end], netip.MustParseAddr("127.0.0.1")} {
			g := p.claim(t, c.Run[end], addr)
			var want uint64
			c.Run[end](func() { want, _ = netnsCookie() })
			raw, _ := g.Socket.SyscallConn()
			raw.Control(func(fd uintptr) {
				if got, err := unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil || got != want || got == 0 {
					t.Errorf("a socket of namespace %d, %v; want %d", got, err, want)
				}
			})
		}
	}
	if n := len(p.status(t).Ports); n != 6 {
		t.Errorf("%d ports, want 6", n)
	}
	var err error
	c.Run[0](func() { _, err = port.Claim(context.Background(), p.dir, c.Addr[0][1], 0) })
	refused(t, err) // the other end's
	// A thread of another namespace is not the one that asks, whatever is said.
	var others int
	c.Run[1](func() { others = unix.Gettid() })
	var socket *os.File
	c.Run[0](func() {
		_, socket, err = port.Ask(context.Background(), port.Paths(p.dir), port.Request{Request: "port", Address: c.Addr[0][1], Thread: others})
	})
	refused(t, err)
	if socket != nil {
		socket.Close()
		t.Error("got a socket in another namespace")
	}
}

// TestLinkLocal shares the port of an address that needs its interface.
func TestLinkLocal(t *testing.T) {
	c := smctest.NewCables(t, 1)
	p := newPlace(t)
	const addr = "fe80::5:1"
	c.IP(0, "addr add "+addr+"/64 dev cable0 nodad")
	local := netip.MustParseAddr(addr + "%cable0")
	for range 2 {
		g := p.claim(t, c.Run[0], local)
		var d *rdma.Device
		var err error
		c.Run[0](func() {
			d, err = rdma.Open(local, &rdma.Config{Share: &rdma.Share{Socket: g.Socket, First: g.First, Count: g.Count, Key: g.Key}})
		})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
	}
	if s := p.status(t); len(s.Ports) != 1 || len(s.Ports[0].Sockets) != 2 || s.Ports[0].Address != "[fe80::5:1%cable0]:4791" {
		t.Errorf("%+v", s.Ports)
	}
	p.start(t)
	if s := p.status(t); len(s.Ports) != 1 || s.Ports[0].Address != "[fe80::5:1%cable0]:4791" {
		t.Errorf("the next agent: %+v", s.Ports)
	}
}

// TestHalfRemoved has pins of a port that are not all there, or another version's. They are made
// anew, and other things in the directory stay.
func TestHalfRemoved(t *testing.T) {
	p := newPlace(t)
	addr := netip.MustParseAddr("127.0.0.1")
	for _, name := range []string{"sockets", "owners", "secrets"} {
		p.claim(t, here, addr)
		entries, err := filepath.Glob(filepath.Join(p.pins, "port-*", name))
		if err != nil || len(entries) != 1 {
			t.Fatalf("pins %q, %v", entries, err)
		}
		for _, replace := range []bool{false, true} {
			if err := os.Remove(entries[0]); err != nil {
				t.Fatal(err)
			}
			if replace {
				other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 12, ValueSize: 20, MaxEntries: 5})
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				if err := other.Pin(entries[0]); err != nil {
					t.Fatal(err)
				}
			}
			p.start(t)
			p.claim(t, here, addr) // until the end, so that there is something to find
		}
		if err := os.MkdirAll(filepath.Join(p.pins, "port-of-call"), 0o700); err != nil {
			t.Fatal(err)
		}
		p.start(t)
		p.claim(t, here, addr).Close()
		if _, err := os.Stat(filepath.Join(p.pins, "port-of-call")); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(filepath.Join(p.pins, "port-of-call")); err != nil {
		t.Error(err)
	}
}

// claimAs is a process of another user.
func claimAs(p *smctest.Parent) {
	f := strings.Fields(p.Hear()) // directory, address, user, group, supplementary group
	id := func(i int) int { n, err := strconv.Atoi(f[i]); p.Check(err); return n }
	p.Check(syscall.Setgroups([]int{id(4)}))
	p.Check(syscall.Setresgid(id(3), id(3), id(3)))
	p.Check(syscall.Setresuid(id(2), id(2), id(2)))
	var held []*port.Grant
	for {
		g, err := port.Claim(context.Background(), f[0], netip.MustParseAddr(f[1]), 0)
		if err != nil {
			p.Say("error %v", err)
			break
		}
		held = append(held, g)
		if len(held) == 1 || p.Hear() != "more" {
			p.Say("granted %d", len(held))
		}
	}
	p.Hear()
}

// TestPolicy has other users ask.
func TestPolicy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy Policy
		who    string // user, group, supplementary group
		ok     bool
	}{
		{"nobody else", Policy{}, "4001 4002 4003", false},
		{"root", Policy{}, "0 4002 4003", true},
		{"user", Policy{Users: []uint32{5000, 4001}}, "4001 4002 4003", true},
		{"another user", Policy{Users: []uint32{5000, 4002, 4003}}, "4001 4002 4003", false},
		{"group", Policy{Groups: []uint32{4002}}, "4001 4002 4003", true},
		{"supplementary group", Policy{Groups: []uint32{4003}}, "4001 4002 4003", true},
		{"another group", Policy{Groups: []uint32{4001}}, "4001 4002 4003", false},
		{"everyone", Policy{Everyone: true}, "4001 4002 4003", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t, func(c *Config) { c.Policy = tt.policy })
			child := smctest.Start(t, "claim")
			child.Say("%s 127.0.0.1 %s", p.dir, tt.who)
			if tt.ok {
				child.Hear("granted")
				if owner := p.status(t).Ports[0].Sockets[0]; int(owner.Process) != child.PID() || fmt.Sprint(owner.User) != strings.Fields(tt.who)[0] {
					t.Errorf("the socket's owner is %+v", owner)
				}
			} else if reason := child.Hear("error"); !strings.Contains(reason, "may not share") {
				t.Errorf("refused with %q", reason)
			}
			child.Kill()
			child.Wait()
		})
	}
}

// TestUserLimit has a user that is let in ask for all there is.
func TestUserLimit(t *testing.T) {
	p := newPlace(t, func(c *Config) { c.Policy.Everyone = true })
	child := smctest.Start(t, "claim")
	child.Say("%s 127.0.0.1 4001 4001 4001", p.dir)
	child.Hear("granted")
	for range maxAccountSlots - 1 {
		child.Say("more")
	}
	child.Say("more")
	if reason := child.Hear("error"); !strings.Contains(reason, "has 64 sockets") {
		t.Errorf("refused with %q", reason)
	}
	p.claim(t, here, netip.MustParseAddr("127.0.0.1")) // there is room for others
	child.Kill()
	child.Wait()
}

// crowd is a process of another user that asks many times at once.
func crowd(p *smctest.Parent) {
	dir := p.Hear()
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setresgid(4001, 4001, 4001))
	p.Check(syscall.Setresuid(4001, 4001, 4001))
	type result struct {
		grant *port.Grant
		err   error
	}
	results := make(chan result)
	for range 5 * maxAccountClients {
		go func() {
			g, err := port.Claim(context.Background(), dir, netip.MustParseAddr("127.0.0.1"), 0)
			results <- result{g, err}
		}()
	}
	var held []*port.Grant
	for range 5 * maxAccountClients {
		r := <-results
		p.Check(r.err)
		held = append(held, r.grant)
	}
	p.Say("granted")
	p.Hear()
	runtime.KeepAlive(held)
}

// TestCrowd has more processes of a user ask at once than are served: they ask again.
func TestCrowd(t *testing.T) {
	p := newPlace(t, func(c *Config) { c.Policy.Everyone = true })
	child := smctest.Start(t, "crowd")
	child.Say("%s", p.dir)
	child.Hear("granted")
	if n := p.sockets(t); n != 5*maxAccountClients {
		t.Errorf("%d sockets, want %d", n, 5*maxAccountClients)
	}
	child.Kill()
	child.Wait()
}

// TestNoPorts asks an agent that shares no ports: a process opens its port by itself, as without one.
func TestNoPorts(t *testing.T) {
	p := newPlace(t, func(c *Config) { c.NoPort = true })
	if _, err := port.Claim(context.Background(), p.dir, netip.MustParseAddr("127.0.0.1"), 0); !errors.Is(err, port.ErrNoAgent) || !strings.Contains(err.Error(), "shares no ports") {
		t.Errorf("error %v", err)
	}
	if s := p.status(t); s.Ports == nil || s.Option.Enabled {
		t.Errorf("%+v", s)
	}
}

// TestPortTaken asks for a port that a process has alone.
func TestPortTaken(t *testing.T) {
	p := newPlace(t)
	addr := netip.MustParseAddr("127.84.85.86")
	alone, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, roce.Port)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = port.Claim(context.Background(), p.dir, addr, 0)
	refused(t, err)
	if !strings.Contains(err.Error(), "belongs to") {
		t.Errorf("error %v", err)
	}
	alone.Close()
	g := p.claim(t, here, addr)
	if _, err := rdma.Open(addr, nil); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port that is shared was opened alone: %v", err)
	}
	g.Close()
}

// TestOneAgent starts a second one for the same socket, and one after another was killed.
func TestOneAgent(t *testing.T) {
	p := newPlace(t)
	if second, err := Start(p.agent.cfg); err == nil {
		second.Close()
		t.Error("two agents serve one socket")
	}
	p.claim(t, here, netip.MustParseAddr("127.0.0.1"))
	// A killed agent leaves its socket, and perhaps one in the making.
	p.agent.listener.Close()
	p.agent.lock.Close()
	if _, err := port.Claim(context.Background(), p.dir, netip.MustParseAddr("127.0.0.1"), 0); !errors.Is(err, port.ErrNoAgent) {
		t.Errorf("a dead agent: %v", err)
	}
	old := p.agent
	p.agent = nil
	p.start(t)
	old.Close() // does not remove the next one's socket
	p.claim(t, here, netip.MustParseAddr("127.0.0.1"))
	if n := p.sockets(t); n != 2 {
		t.Errorf("%d sockets, want 2", n)
	}
}
