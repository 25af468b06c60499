package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){
		"host-no-netlink": childNoNetlink,
		"host-bound":      childBound,
	})
}

// childNoNetlink serves and dials without netlink sockets.
func childNoNetlink(p *smctest.Parent) {
	p.Check(smctest.DenySocket(unix.AF_NETLINK))
	h, err := New(Config{Dir: p.Args[0]})
	p.Check(err)
	c := h.Status().Capabilities.SMCDv2
	p.Say("capability %v %s", c.Available, c.Why)
	p.Check(h.Close())
	serveAndDial(p, p.Args[0])
}

// TestNoNetlink has a process that may make no netlink sockets. Nobody waits for it: it announces
// nothing, and says why.
func TestNoNetlink(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	child := smctest.Start(t, "host-no-netlink", dir)
	if got, want := child.Hear("capability"), "false "+clc.Lookup(clc.DiagNoSockDiag, clc.OSUnspecified).Sentence; got != want {
		t.Errorf("capability of SMC-D: %q, want %q", got, want)
	}
	addr, reason, _ := strings.Cut(child.Hear("listening"), " ")
	if !strings.HasPrefix(reason, "NO_SOCK_DIAG") {
		t.Errorf("the listener is not announced because of %s, want NO_SOCK_DIAG", reason)
	}
	if folders, err := os.ReadDir(rundir.Path(dir, rundir.Listen)); err != nil || len(folders) > 0 {
		t.Errorf("announced are %v, %v; want nothing", folders, err)
	}
	client := newTestHost(t, Config{Dir: dir})
	c, err := client.Dial(boundedContext(t), "tcp", addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagNoListener {
		t.Errorf("its client: %v, %v; want TCP, %v", c.Mode(), c.Reason().Tag, clc.DiagNoListener)
	}
	// It cannot be a client either.
	l := mustListen(t, client, "127.0.0.1:0")
	go serveEcho(l.Accept)
	child.Say("%v", l.Addr())
	if got := child.Hear("dialled"); got != "TCP NO_SOCK_DIAG" {
		t.Errorf("as a client: %s, want TCP NO_SOCK_DIAG", got)
	}
}

// childBound connects within a network namespace of its own from sockets, and to listeners, that are
// bound to an interface, and to link-local addresses.
func childBound(p *smctest.Parent) {
	if len(p.Args) == 1 {
		cmd := exec.Command("/proc/self/exe", p.Args[0], "inside")
		cmd.Env = append(os.Environ(), "GOSMC_TEST_CHILD=host-bound")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		p.Check(cmd.Run())
		return
	}
	for _, args := range []string{
		"link set lo up", "link add gosmc0 type veth peer name gosmc1", "addr add 10.99.0.1/24 dev gosmc0",
		"addr add fe80::99/64 dev gosmc0 nodad", "link set gosmc0 up", "link set gosmc1 up",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			p.Check(fmt.Errorf("ip %s: %w: %s", args, err, out))
		}
	}
	server, err := New(Config{Dir: p.Args[0]})
	p.Check(err)
	client, err := New(Config{Dir: p.Args[0]})
	p.Check(err)
	bind := func(raw syscall.RawConn) (err error) {
		raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "gosmc0") })
		return err
	}
	for _, tt := range []struct {
		name             string
		address          string
		listener, dialer bool // bound
	}{
		{"neither", "10.99.0.1:0", false, false},
		{"dialer", "10.99.0.1:0", false, true},
		{"listener", "10.99.0.1:0", true, false},
		{"both", "10.99.0.1:0", true, true},
		{"link-local", "[fe80::99%gosmc0]:0", false, false},
		{"link-local at any", "[::]:0", false, false},
	} {
		var lo ListenOptions
		if tt.listener {
			lo.Net.Control = func(_, _ string, raw syscall.RawConn) error { return bind(raw) }
		}
		var do DialOptions
		if tt.dialer {
			do.Control = func(_ context.Context, _, _ string, raw syscall.RawConn) error { return bind(raw) }
		}
		l, err := server.Listen(context.Background(), "tcp", tt.address, lo)
		p.Check(err)
		go serveEcho(l.Accept)
		to := l.Addr().(*net.TCPAddr).AddrPort()
		if to.Addr().Is6() {
			to = netip.AddrPortFrom(netip.MustParseAddr("fe80::99%gosmc0"), to.Port())
		}
		c, err := client.Dial(context.Background(), "tcp", to.String(), do)
		p.Check(err)
		p.Check(echo(c))
		p.Say("%s: %v %v", tt.name, c.Mode(), c.Reason().Tag)
		c.Close()
		l.Close()
	}
	p.Check(client.Close())
	p.Check(server.Close())
	p.Say("done")
}

// TestBoundToInterface has sockets that are bound to an interface, by their program or by a
// link-local address: the kernel finds those only if it is told the interface.
func TestBoundToInterface(t *testing.T) {
	needRoot(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip(8)")
	}
	child := smctest.Start(t, "host-bound", t.TempDir())
	for _, name := range []string{"neither", "dialer", "listener", "both", "link-local", "link-local at any"} {
		if got := child.Hear(name + ":"); got != "SMC-D " {
			t.Errorf("bound: %s: %s, want SMC-D", name, got)
		}
	}
	child.Hear("done")
}
