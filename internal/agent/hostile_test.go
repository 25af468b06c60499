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

// TestUnfitRequests sends what is no request. Each is answered in words, or hung up on, and costs nothing that stays.
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
		return err == nil && len(now.Descriptors) <= len(before.Descriptors)+4 // the runtime's poller, and those of the test's own closed sockets
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

// silent is a process of another user that connects many times and says nothing.
func silent(p *smctest.Parent) {
	path := p.Hear()
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setresgid(4001, 4001, 4001))
	p.Check(syscall.Setresuid(4001, 4001, 4001))
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

// TestSilentUser has a user who may not even ask hold all that it can. Others do not wait for it.
func TestSilentUser(t *testing.T) {
	p := newPlace(t)
	child := smctest.Start(t, "silent")
	child.Say("%s", filepath.Join(p.dir, port.SocketName))
	child.Hear("connected")
	p.claim(t, here, netip.MustParseAddr("127.0.0.1"))
	child.Say("done")
	child.Wait()
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
