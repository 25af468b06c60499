package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/smctest"
)

func (p *place) dial(t *testing.T) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(p.dir, port.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// TestUnfitRequests sends messages that are no requests. Each is answered in words, or hung up on,
// and costs nothing that stays.
func TestUnfitRequests(t *testing.T) {
	p := newPlace(t)
	before, err := smctest.UsageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	const ask = `{"version":1,"request":"port","address":`
	for _, tt := range []struct {
		request, want string
		files         int
	}{
		{"{", "the request", 0},
		{"[]", "the request", 0},
		{"null", "version 0", 0},
		{strings.Repeat(" ", port.MaxRequest+1), "longer than", 0},
		{`{"version":2,"request":"port"}`, "version 2", 0},
		{`{"version":1,"request":"dance"}`, "unknown request", 0},
		{`{"version":1,"request":"port"}`, "is not an address", 0},
		{ask + `"0.0.0.0"}`, "is not an address", 0},
		{ask + `"::"}`, "is not an address", 0},
		{ask + `"224.0.0.1"}`, "is not an address", 0},
		{ask + `"ff02::1"}`, "is not an address", 0},
		{ask + `"::ffff:127.0.0.1"}`, "is not an address", 0},
		{ask + `"127.0.0.1%lo"}`, "the request", 0},
		{ask + `"::1%lo"}`, "is not an address", 0},
		{ask + `"fe80::1%` + strings.Repeat("x", 40) + `"}`, "is not an address", 0},
		{ask + `"fe80::1%no-such"}`, "no-such", 0},
		{ask + `"192.0.2.99"}`, "192.0.2.99", 0},
		{ask + `"localhost"}`, "the request", 0},
		{ask + `7}`, "the request", 0},
		{`{"version":1,"request":"port","udp_port":70000}`, "the request", 0},
		{"{", "the request", 3},
		{`{"version":1,"request":"dance"}`, "unknown request", 200},
	} {
		c := p.dial(t)
		fds := make([]int, tt.files)
		for i := range fds {
			fds[i] = int(null.Fd())
		}
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		if _, _, err := c.WriteMsgUnix([]byte(tt.request), oob, nil); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, port.MaxAnswer)
		n, err := c.Read(b)
		if err != nil || !strings.Contains(string(b[:n]), tt.want) || !strings.Contains(string(b[:n]), `"error"`) {
			t.Errorf("%.60s: answered %q, %v; want %q", tt.request, b[:n], err, tt.want)
		}
		c.Close()
	}
	p.dial(t).Close() // without a word
	smctest.Eventually(t, 20*time.Second, "the agent to hold no more than before", func() bool {
		now, err := smctest.UsageOf(os.Getpid())
		return err == nil && len(now.Descriptors) <= len(before.Descriptors)+4 // the runtime's poller, and the test's own closed sockets
	})
	if s := p.status(t); s.Served.Granted != 0 || s.Served.Unfit < 10 || s.Served.Refused < 10 || len(s.Ports) != 0 {
		t.Errorf("%+v", s)
	}
}

// TestSilentClients has more clients than are served say nothing. Those behind them are served when they have had
// their time.
func TestSilentClients(t *testing.T) {
	p := newPlace(t)
	for range 2 * maxClients {
		p.dial(t)
	}
	var err error
	for range 10 { // each waits for two seconds
		var g *port.Grant
		if g, err = port.Claim(context.Background(), p.dir, netip.MustParseAddr("127.0.0.1"), 0); err == nil {
			g.Close()
			break
		}
	}
	if err != nil {
		t.Errorf("behind silent clients: %v", err)
	}
}

// silent is a process of another user, or of root, that connects many times and says nothing.
func silent(p *smctest.Parent) {
	path := p.Hear()
	if p.Args[0] != "0" {
		p.Check(syscall.Setgroups(nil))
		p.Check(syscall.Setresgid(4001, 4001, 4001))
		p.Check(syscall.Setresuid(4001, 4001, 4001))
	}
	var held []net.Conn
	for range 2 * maxClients {
		c, err := net.Dial("unixpacket", path)
		p.Check(err)
		held = append(held, c)
	}
	p.Say("connected")
	p.Hear()
	for _, c := range held {
		c.Close()
	}
}

// TestSilentUser has a user that may not even ask hold all that it can, and the root of a network
// namespace. Others do not wait for them.
func TestSilentUser(t *testing.T) {
	private, _ := smctest.EnterNamespace(t)
	for _, tt := range []struct {
		name, user string
		run        func(func())
	}{
		{"user", "4001", here},
		{"root of a network namespace", "0", private},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t)
			var child *smctest.Process
			tt.run(func() { child = smctest.Start(t, "silent", tt.user) })
			child.Say("%s", filepath.Join(p.dir, port.SocketName))
			child.Hear("connected")
			p.agent.mu.Lock()
			served := len(p.agent.conns)
			p.agent.mu.Unlock()
			if served > maxAccountClients {
				t.Errorf("%d of its requests are being served, want no more than %d", served, maxAccountClients)
			}
			p.claim(t, here, netip.MustParseAddr("127.0.0.1"))
			child.Say("done")
			child.Wait()
		})
	}
}

// TestManyClients asks for more than there is.
func TestManyClients(t *testing.T) {
	p := newPlace(t)
	addr := netip.MustParseAddr("127.0.0.1")
	seen := make(map[string]bool)
	for i := range lastSlot - firstSlot + 1 {
		g := p.claim(t, here, addr)
		if first := fmt.Sprint(g.First); seen[first] || g.Count != 1<<16 || g.First < 1<<16 || uint64(g.First)+uint64(g.Count) > 0xff0000 {
			t.Fatalf("claim %d: numbers from %v", i, g.First)
		} else {
			seen[first] = true
		}
	}
	_, err := port.Claim(context.Background(), p.dir, addr, 0)
	refused(t, err)
	p.claim(t, here, netip.MustParseAddr("127.0.0.2")) // another address has its own
}

// TestAccountOf checks which users share a quota.
func TestAccountOf(t *testing.T) {
	const own, other = 1, 2
	for _, tt := range []struct {
		user    uint32
		netns   uint64
		want    account
		limited bool
	}{
		{0, own, account{}, false},
		{0, other, account{netns: other}, true},
		{1, own, account{user: 1}, true},
		{1, other, account{user: 1}, true},
		{65535, own, account{user: 65535}, true},
		{65536, own, account{user: 65536}, true},
		{100_000, own, account{user: 65536}, true},
		{131_071, other, account{user: 65536}, true},
		{131_072, other, account{user: 131_072}, true},
		{1<<32 - 1, own, account{user: 0xffff0000}, true},
	} {
		if got, limited := accountOf(tt.user, tt.netns, own); got != tt.want || limited != tt.limited {
			t.Errorf("accountOf(%d, %d) = %+v, %v; want %+v, %v", tt.user, tt.netns, got, limited, tt.want, tt.limited)
		}
	}
}

// addresses is a process that asks for the port of many addresses, as a user if one is named, from a number on if one is. It says how many it got,
// each time that it is told to ask.
func addresses(p *smctest.Parent) {
	dir, user, first := p.Args[0], 0, 0
	_, err := fmt.Sscan(p.Args[1], &user)
	p.Check(err)
	if len(p.Args) > 2 {
		_, err = fmt.Sscan(p.Args[2], &first)
		p.Check(err)
	}
	if user != 0 {
		p.Check(syscall.Setgroups(nil))
		p.Check(syscall.Setresgid(user, user, user))
		p.Check(syscall.Setresuid(user, user, user))
	}
	var held []*port.Grant
	defer func() {
		for _, g := range held {
			g.Close()
		}
	}()
	for p.Hear() == "ask" {
		n := 0
		for range 2 * maxAccountPorts {
			addr := netip.AddrFrom4([4]byte{127, byte(user % 251), byte(first + len(held)), 9})
			g, err := port.Claim(context.Background(), dir, addr, 0)
			if err != nil {
				break
			}
			held = append(held, g)
			n++
		}
		p.Say("granted %d", n)
	}
}

// TestPortQuota has users, and the root of a network namespace, ask for the port of more addresses than they may. Their number is
// the same after the agent was started again, and others get theirs.
func TestPortQuota(t *testing.T) {
	c := smctest.NewCables(t, 1)
	everyone := func(c *Config) { c.Policy.Everyone = true }
	p := newPlace(t, everyone)
	ask := func(child *smctest.Process) string {
		t.Helper()
		child.Say("ask")
		return child.Hear("granted")
	}
	full := fmt.Sprint(maxAccountPorts)
	user := smctest.Start(t, "addresses", p.dir, "4001")
	if got := ask(user); got != full {
		t.Errorf("a user has the port of %s addresses, want %s", got, full)
	}
	subordinate := smctest.Start(t, "addresses", p.dir, "100000")
	if got := ask(subordinate); got != full {
		t.Errorf("a subordinate user has the port of %s addresses, want %s", got, full)
	}
	var root *smctest.Process
	c.Run[0](func() { root = smctest.Start(t, "addresses", p.dir, "0") })
	if got := ask(root); got != full {
		t.Errorf("the root of a network namespace has the port of %s addresses, want %s", got, full)
	}
	for range 2 {
		for who, child := range map[string]*smctest.Process{"user": user, "subordinate user": subordinate, "root of a network namespace": root} {
			if got := ask(child); got != "0" {
				t.Errorf("the %s got the port of %s addresses more", who, got)
			}
		}
		if got := ask(smctest.Start(t, "addresses", p.dir, "100001")); got != "0" {
			t.Errorf("a subordinate user of the same range got the port of %s addresses", got)
		}
		p.claim(t, here, netip.MustParseAddr("127.0.0.1"))
		p.claim(t, c.Run[1], netip.MustParseAddr("127.0.0.1"))
		if got := ask(smctest.Start(t, "addresses", p.dir, "4002")); got != full {
			t.Errorf("another user has the port of %s addresses, want %s", got, full)
		}
		p.start(t, everyone)
	}
}
