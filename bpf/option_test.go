package bpf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/smctest"
)

// asking returns the Control function of a socket that asks for the option, or does not.
func asking(ask bool) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		if ask {
			return option.AskConn(c)
		}
		return nil
	}
}

func (p *place) listen(t testing.TB, addr string, ask bool) *net.TCPListener {
	t.Helper()
	var l net.Listener
	var err error
	p.run(func() {
		lc := net.ListenConfig{Control: asking(ask)}
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp", addr)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// A pair is the two ends of a connection.
type pair struct{ client, server *net.TCPConn }

// connect makes a connection, and has a byte go each way.
func (p *place) connect(t testing.TB, l *net.TCPListener, to string, ask bool, also ...func(fd uintptr)) pair {
	t.Helper()
	var c net.Conn
	var err error
	p.run(func() {
		d := net.Dialer{Control: func(network, address string, raw syscall.RawConn) error {
			for _, f := range also {
				raw.Control(f)
			}
			return asking(ask)(network, address, raw)
		}}
		d.SetMultipathTCP(false)
		c, err = d.Dial("tcp", to)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Write([]byte("a")); err != nil { // for Fast Open this is when the SYN goes
		t.Fatal(err)
	}
	s, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	pr := pair{c.(*net.TCPConn), s}
	pr.check(t)
	return pr
}

// check reads the byte that the client has written, and sends a byte back.
func (pr pair) check(t testing.TB) {
	t.Helper()
	var b [1]byte
	if _, err := io.ReadFull(pr.server, b[:]); err != nil || b[0] != 'a' {
		t.Fatalf("read %q, %v", b, err)
	}
	if _, err := pr.server.Write([]byte("b")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(pr.client, b[:]); err != nil || b[0] != 'b' {
		t.Fatalf("read %q, %v", b, err)
	}
}

// A fate is the outcome of a socket's wish.
type fate struct {
	state  option.State
	reason option.Reason
}

func fateOf(t testing.TB, c syscall.Conn) (f fate) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		f.state, f.reason, err = option.ReadConn(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (pr pair) want(t testing.TB, client, server fate) {
	t.Helper()
	if got := fateOf(t, pr.client); got != client {
		t.Errorf("client: %v %v, want %v %v", got.state, got.reason, client.state, client.reason)
	}
	if got := fateOf(t, pr.server); got != server {
		t.Errorf("server: %v %v, want %v %v", got.state, got.reason, server.state, server.reason)
	}
}

func ports(pr pair) (client, server uint16) {
	return pr.client.LocalAddr().(*net.TCPAddr).AddrPort().Port(), pr.server.LocalAddr().(*net.TCPAddr).AddrPort().Port()
}

var (
	both     = fate{option.Both, option.NoReason}
	notAsked = fate{option.NotAsked, option.NoReason}
	silent   = fate{option.Alone, option.PeerSilent}
)

// TestOptionOnWire looks at the segments of connections whose ends have asked or not: the option is
// on the SYN of the clients that asked, on the SYN-ACK if both did, and nowhere else.
func TestOptionOnWire(t *testing.T) {
	p := newPlace(t)
	for _, network := range []struct{ name, listen, dial string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1"},
		{"IPv4 any", "0.0.0.0:0", "127.0.0.1"},
		{"IPv6", "[::1]:0", "::1"},
		{"IPv6 any", "[::]:0", "::1"},
		{"IPv4 to IPv6", "[::]:0", "127.0.0.1"},
	} {
		for _, tt := range []struct {
			clientAsks, serverAsks bool
			client, server         fate
		}{
			{true, true, both, both},
			{true, false, silent, notAsked},
			{false, true, notAsked, silent},
			{false, false, notAsked, notAsked},
		} {
			t.Run(fmt.Sprintf("%s/%v,%v", network.name, tt.clientAsks, tt.serverAsks), func(t *testing.T) {
				l := p.listen(t, network.listen, tt.serverAsks)
				wire := p.tap(t)
				pr := p.connect(t, l, net.JoinHostPort(network.dial, fmt.Sprint(l.Addr().(*net.TCPAddr).Port)), tt.clientAsks)
				checkWire(t, wire.segments(ports(pr)), tt.clientAsks, tt.clientAsks && tt.serverAsks)
				pr.want(t, tt.client, tt.server)
			})
		}
	}
	c, err := p.option.Counters()
	if want := (OptionCounters{SYNSent: 10, SYNACKSent: 5, ClientBoth: 5, ClientAlone: 5, ServerBoth: 5, ServerAlone: 5}); err != nil || c != want {
		t.Errorf("counters %+v, %v; want %+v", c, err, want)
	}
}

// TestOptionWithout has connections whose option cannot be, though both ends asked. They are plain TCP for both.
func TestOptionWithout(t *testing.T) {
	p := newPlace(t)
	t.Run("SYN cookie", func(t *testing.T) {
		p.sysctl(t, "net.ipv4.tcp_syncookies", "2")
		defer p.sysctl(t, "net.ipv4.tcp_syncookies", "1")
		l := p.listen(t, "127.0.0.1:0", true)
		wire := p.tap(t)
		pr := p.connect(t, l, l.Addr().String(), true)
		checkWire(t, wire.segments(ports(pr)), true, false)
		pr.want(t, silent, silent)
	})
	t.Run("Fast Open", func(t *testing.T) {
		p.sysctl(t, "net.ipv4.tcp_fastopen", "3")
		l := p.listen(t, "127.0.0.1:0", true)
		raw, _ := l.SyscallConn()
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_FASTOPEN, 16) })
		for range 2 { // first a cookie is asked for, and then it is used
			wire := p.tap(t)
			pr := p.connect(t, l, l.Addr().String(), true, func(fd uintptr) {
				if err := unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_FASTOPEN_CONNECT, 1); err != nil {
					t.Error(err)
				}
			})
			checkWire(t, wire.segments(ports(pr)), false, false)
			pr.want(t, fate{option.Alone, option.FastOpen}, silent)
		}
	})
	t.Run("multipath TCP", func(t *testing.T) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
		if err != nil {
			t.Skipf("no multipath TCP: %v", err)
		}
		defer unix.Close(fd)
		if err := option.Ask(uintptr(fd)); !errors.Is(err, option.ErrNoAgent) {
			t.Errorf("asked on such a socket: %v", err)
		}
	})
}

// TestOptionTooLate asks on sockets that listen or are connected, and takes a wish back in time.
func TestOptionTooLate(t *testing.T) {
	p := newPlace(t)
	l := p.listen(t, "127.0.0.1:0", false)
	pr := p.connect(t, l, l.Addr().String(), false)
	for name, c := range map[string]syscall.Conn{"listener": l, "client": pr.client, "server": pr.server} {
		raw, _ := c.SyscallConn()
		if err := option.AskConn(raw); !errors.Is(err, option.ErrTooLate) {
			t.Errorf("%s: Ask = %v, want ErrTooLate", name, err)
		}
		if got := fateOf(t, c); got != notAsked {
			t.Errorf("%s: %v", name, got)
		}
	}
	asked := p.listen(t, "127.0.0.1:0", true)
	if got := fateOf(t, asked); got.state != option.Listening {
		t.Errorf("a socket that asked and listens: %v", got)
	}
	pr = p.connect(t, asked, asked.Addr().String(), true, func(fd uintptr) {
		if err := option.Ask(fd); err != nil {
			t.Error(err)
		}
		if s, _, err := option.Read(fd); s != option.Asked || err != nil {
			t.Errorf("after Ask: %v, %v", s, err)
		}
		if err := option.Withdraw(fd); err != nil {
			t.Error(err)
		}
		if s, _, err := option.Read(fd); s != option.NotAsked || err != nil {
			t.Errorf("after Withdraw: %v, %v", s, err)
		}
	})
	pr.want(t, both, both) // connect asks after the functions
}

// TestOptionWithdrawn has both ends ask, and take that back before they listen or connect.
func TestOptionWithdrawn(t *testing.T) {
	p := newPlace(t)
	withdraw := func(fd uintptr) {
		if err := errors.Join(option.Ask(fd), option.Withdraw(fd)); err != nil {
			t.Error(err)
		}
	}
	var l net.Listener
	var err error
	p.run(func() {
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error { return c.Control(withdraw) }}
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, asks := range []bool{false, true} {
		wire := p.tap(t)
		pr := p.connect(t, l.(*net.TCPListener), l.Addr().String(), asks, func(fd uintptr) {
			if !asks {
				withdraw(fd)
			}
		})
		checkWire(t, wire.segments(ports(pr)), asks, false)
		if asks {
			pr.want(t, silent, notAsked)
		} else {
			pr.want(t, notAsked, notAsked)
		}
	}
}

// TestOptionOfOthers has another program that wants to write options on every socket that listens: those that did
// not ask answer nothing all the same, and its callbacks stay on.
func TestOptionOfOthers(t *testing.T) {
	p := newPlace(t)
	const flag = 1 << 6 // BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R0, asm.R6, 0, asm.Word),  // op
			asm.JNE.Imm(asm.R0, 11, "end"),            // BPF_SOCK_OPS_TCP_LISTEN_CB
			asm.LoadMem(asm.R2, asm.R6, 84, asm.Word), // bpf_sock_ops_cb_flags
			asm.Or.Imm(asm.R2, flag),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.FnSockOpsCbFlagsSet.Call(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer other.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: p.group, Attach: ebpf.AttachCGroupSockOps, Program: other})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, asks := range []bool{false, true} {
		server := p.listen(t, "127.0.0.1:0", asks)
		wire := p.tap(t)
		pr := p.connect(t, server, server.Addr().String(), true)
		checkWire(t, wire.segments(ports(pr)), true, asks)
		if asks {
			pr.want(t, both, both)
		} else {
			pr.want(t, silent, notAsked)
		}
	}
}

// TestOptionTwice has the programs attached twice, as by an agent for all control groups and one for some. The option is
// written once, and both say so.
func TestOptionTwice(t *testing.T) {
	p := newPlace(t)
	second, err := AttachOption(p.group, mountPins(t))
	if err != nil {
		t.Fatal(err)
	}
	l := p.listen(t, "127.0.0.1:0", true)
	wire := p.tap(t)
	pr := p.connect(t, l, l.Addr().String(), true)
	list := wire.segments(ports(pr))
	checkWire(t, list, true, true)
	for _, s := range list[:2] {
		if n := bytes.Count(s.options, []byte{0xe2, 0xd4, 0xc3, 0xd9}); n != 1 {
			t.Errorf("%d times in %x", n, s.options)
		}
	}
	pr.want(t, both, both)
	for _, o := range []*Option{p.option, second} {
		if c, err := o.Counters(); err != nil || c.ClientBoth != 1 || c.ServerBoth != 1 || c.SYNNoRoom+c.SYNACKNoRoom > 0 {
			t.Errorf("counters %+v, %v", c, err)
		}
	}
	second.Close() // and with its pins it is gone
}

// TestForeignOptions has socket options of others pass through the programs as they are, also
// options longer than the part that a program is shown.
func TestForeignOptions(t *testing.T) {
	p := newPlace(t)
	l := p.listen(t, "127.0.0.1:0", false)
	raw, _ := l.SyscallConn()
	raw.Control(func(fd uintptr) {
		for _, size := range []int{4, 4096, 4097, 65536} {
			value := make([]byte, size)
			value[1] = 32 // 8192
			if err := unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, string(value)); err != nil {
				t.Errorf("set %d bytes: %v", size, err)
			}
			for i := range value {
				value[i] = 0xff
			}
			length := uint32(size)
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_RCVBUF, uintptr(pointer(&value[0])), uintptr(pointer(&length)), 0)
			if errno != 0 || length != 4 || value[0] != 0 || value[1] != 64 || value[2] != 0 { // the kernel doubles it
				t.Errorf("get %d bytes: %v, %d bytes %x", size, errno, length, value[:4])
			}
		}
		for name, f := range map[string]func() error{
			"another option of SOL_SMC": func() error { return unix.SetsockoptInt(int(fd), option.Level, 1, 1) },
			"another level":             func() error { return unix.SetsockoptInt(int(fd), 287, int(option.Name), 1) },
		} {
			if err := f(); err != unix.ENOPROTOOPT {
				t.Errorf("%s: %v, want ENOPROTOOPT", name, err)
			}
		}
	})
	var udp net.PacketConn
	p.run(func() { udp, _ = net.ListenPacket("udp", "127.0.0.1:0") })
	defer udp.Close()
	raw, _ = udp.(*net.UDPConn).SyscallConn()
	if err := option.AskConn(raw); !errors.Is(err, option.ErrNoAgent) {
		t.Errorf("Ask of a UDP socket: %v", err)
	}
}

// programs are the programs of child processes.
var programs = map[string]func(*smctest.Parent){"nobody": nobody, "flood": flood, "crowd": crowdOfListeners, "acceptor": acceptor, "tokencrowd": tokenCrowd, "asker": asker}

// nobody is a process without privileges, which asks and reads.
func nobody(p *smctest.Parent) {
	for _, f := range []func() error{
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setresgid(65534, 65534, 65534) },
		func() error { return syscall.Setresuid(65534, 65534, 65534) },
	} {
		p.Check(f())
	}
	lc := net.ListenConfig{Control: asking(true)}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	p.Check(err)
	d := net.Dialer{Control: asking(true)}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", l.Addr().String())
	p.Check(err)
	s, err := l.Accept()
	p.Check(err)
	for _, end := range []net.Conn{c, s} {
		raw, err := end.(*net.TCPConn).SyscallConn()
		p.Check(err)
		state, reason, err := option.ReadConn(raw)
		p.Check(err)
		p.Say("state %v %v", state, reason)
	}
}

// TestUnprivileged has a process of no privileges use the option.
func TestUnprivileged(t *testing.T) {
	p := newPlace(t)
	var child *smctest.Process
	p.run(func() { child = smctest.Start(t, "nobody") })
	for range 2 {
		if got := child.Hear("state"); got != "both " && got != "both" {
			t.Errorf("state %q, want both", got)
		}
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}
