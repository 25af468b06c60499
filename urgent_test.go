package smc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

// An urgentConn has the methods that a Conn and a socket of the kernel have in common.
type urgentConn interface {
	net.Conn
	CloseWrite() error
	WriteUrgent(b []byte) (int, error)
	WaitUrgent() error
	ReadUrgent() (byte, error)
	AtUrgentMark() (bool, error)
	SetUrgentInline(bool) error
}

// A kernelConn is a TCP socket with MSG_OOB, and none of ours. It waits by trying again.
type kernelConn struct{ *net.TCPConn }

func (k kernelConn) control(f func(fd int) error) (err error) {
	raw, err := k.SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { err = f(int(fd)) })
	}
	return err
}

func (k kernelConn) WriteUrgent(b []byte) (n int, err error) {
	err = k.control(func(fd int) (err error) {
		n, err = unix.SendmsgN(fd, b, nil, nil, unix.MSG_OOB)
		return err
	})
	return n, err
}

func (k kernelConn) WaitUrgent() error {
	return k.control(func(fd int) error {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}
		for n := 0; n <= 0; {
			n, _ = unix.Poll(fds, -1)
		}
		return nil
	})
}

func (k kernelConn) ReadUrgent() (value byte, err error) {
	err = k.control(func(fd int) error {
		b := make([]byte, 1)
		_, _, err := unix.Recvfrom(fd, b, unix.MSG_OOB|unix.MSG_DONTWAIT)
		value = b[0]
		return err
	})
	return value, err
}

func (k kernelConn) AtUrgentMark() (at bool, err error) {
	err = k.control(func(fd int) error {
		n, err := unix.IoctlGetInt(fd, unix.SIOCATMARK)
		at = n != 0
		return err
	})
	return at, err
}

func (k kernelConn) SetUrgentInline(bool) error {
	return k.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
}

// urgentScripts are the actions of one end and the results that the other one sees, over a socket
// of the kernel as over every mode of a Conn. "!abU" writes urgent data, "+ab" other, "." ends
// writing; "wait", "mark", "oob" and "inline" are the methods, and a number reads so many bytes at
// most.
var urgentScripts = []struct{ name, script, want string }{
	{"read first", "!abcU wait mark 10 mark oob mark +def 10 mark", "false abc true U true def false"},
	{"urgent first", "!abcU wait oob mark 10 mark +def 10 mark", "U false abc true def false"},
	{"alone", "!U wait mark oob mark +x 10 mark", "true U true x false"},
	{"skipped", "!abU wait 10 mark +cd 10 mark", "ab true cd false"},
	{"a byte at a time", "!abcU wait 1 mark 1 mark 1 mark oob +d 1 mark", "a false b false c true U d false"},
	{"exact read", "!abcU wait 3 mark +def 3", "abc true def"},
	{"inline", "inline !abU wait mark oob 10 mark 10 mark +cd 10", "false EINVAL ab true U false cd"},
	{"inline alone", "inline !U wait mark 10 mark +cd 10", "true U false cd"},
	{"inline a byte at a time", "inline !abU wait 1 mark 1 mark 1 mark", "a false b true U false"},
	{"several", "!aU wait oob 10 !bV wait mark 10 oob mark +c 10", "U a false b V true c"},
	{"several inline", "inline !aU wait 10 10 !bV wait 10 mark 10", "a U b true V"},
	{"ordinary data before", "+ab !cU wait 10 mark oob", "abc true U"},
	{"end", "!abU . wait oob 10 10", "U ab EOF"},
	{"end, skipped", "!abU . wait 10 10", "ab EOF"},
	{"end inline", "inline !abU . wait 10 10 10", "ab U EOF"},
}

// playUrgent plays a script, and returns the results that were seen.
func playUrgent(a, b urgentConn, script string) string {
	var seen []string
	see := func(what any, err error) {
		switch {
		case err == io.EOF:
			what = "EOF"
		case errors.Is(err, syscall.EINVAL):
			what = "EINVAL"
		case err != nil:
			what = err
		}
		seen = append(seen, fmt.Sprint(what))
	}
	for _, step := range strings.Fields(script) {
		switch {
		case step[0] == '!':
			if n, err := a.WriteUrgent([]byte(step[1:])); n != len(step)-1 || err != nil {
				see(fmt.Sprintf("WriteUrgent = %d", n), err)
			}
		case step[0] == '+':
			if n, err := a.Write([]byte(step[1:])); n != len(step)-1 || err != nil {
				see(fmt.Sprintf("Write = %d", n), err)
			}
		case step == ".":
			a.CloseWrite()
		case step == "wait":
			if err := b.WaitUrgent(); err != nil {
				see("", err)
			}
		case step == "mark":
			see(b.AtUrgentMark())
		case step == "oob":
			v, err := b.ReadUrgent()
			see(string(v), err)
		case step == "inline":
			b.SetUrgentInline(true)
		default:
			var n int
			fmt.Sscan(step, &n)
			buf := make([]byte, n)
			n, err := b.Read(buf)
			see(string(buf[:n]), err)
		}
	}
	return strings.Join(seen, " ")
}

// urgentPairs makes the ends of all kinds of connections.
func urgentPairs(t *testing.T) map[string]func() (a, b urgentConn) {
	dir := t.TempDir()
	client, server := newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir})
	plain := newHost(t, Config{Dir: dir, Disabled: true})
	rdma := newSMCRPair(t, nil)
	return map[string]func() (a, b urgentConn){
		"kernel": func() (a, b urgentConn) {
			c, s := netPair(t)
			return kernelConn{c}, kernelConn{s}
		},
		"TCP":   func() (a, b urgentConn) { return connect(t, plain, server, ModeTCP) },
		"SMC-D": func() (a, b urgentConn) { return connect(t, client, server, ModeSMCD) },
		"SMC-R": func() (a, b urgentConn) { return rdma.connect(t) },
		"TCP to kernel": func() (a, b urgentConn) {
			c, s := netPair(t)
			return adopt(t, c), kernelConn{s}
		},
		"TCP from kernel": func() (a, b urgentConn) {
			c, s := netPair(t)
			return kernelConn{c}, adopt(t, s)
		},
	}
}

// adopt makes a Conn of a TCP connection.
func adopt(t *testing.T, tcp *net.TCPConn) *Conn {
	t.Helper()
	f, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	tcp.Close()
	defer f.Close()
	c, err := FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestUrgentLikeTCP compares urgent data with the urgent data of the kernel's TCP.
func TestUrgentLikeTCP(t *testing.T) {
	smctest.CheckLeaks(t)
	for kind, pair := range urgentPairs(t) {
		for _, tt := range urgentScripts {
			for range 3 {
				a, b := pair()
				deadline := time.Now().Add(30 * time.Second)
				a.SetDeadline(deadline)
				b.SetDeadline(deadline)
				if got := playUrgent(a, b, tt.script); got != tt.want {
					t.Errorf("%s over %s: %s\n got %s\nwant %s", tt.name, kind, tt.script, got, tt.want)
				}
				a.Close()
				b.Close()
			}
		}
	}
}

// TestUrgentConn checks things that a socket of the kernel has no call for: waits that end, and
// readers beside them.
func TestUrgentConn(t *testing.T) {
	smctest.CheckLeaks(t)
	for kind, pair := range urgentPairs(t) {
		if strings.Contains(kind, "kernel") {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			a, b := pair()
			defer a.Close()
			defer b.Close()
			waits := func() (urgent, news chan error) {
				urgent, news = make(chan error, 1), make(chan error, 1)
				go func() { _, err := b.ReadUrgent(); urgent <- err }()
				go func() { news <- b.WaitUrgent() }()
				return urgent, news
			}
			var timeout net.Error
			urgent, news := waits()
			b.SetReadDeadline(time.Now())
			for _, c := range []chan error{urgent, news} {
				if err := <-c; !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
					t.Errorf("with a deadline: %v", err)
				}
			}
			b.SetReadDeadline(time.Time{})
			read := make(chan string, 1)
			beside := func() {
				buf := make([]byte, 10)
				n, err := b.Read(buf)
				read <- fmt.Sprint(string(buf[:n]), err)
			}
			if kind != "TCP" { // where a Read that begins late takes the byte away
				go beside()
			}
			for i := range 10 {
				value := make(chan byte, 1)
				go func() {
					v, err := b.ReadUrgent()
					if err != nil {
						t.Errorf("ReadUrgent: %v", err)
					}
					value <- v
				}()
				if n, err := a.WriteUrgent([]byte{byte('A' + i)}); n != 1 || err != nil {
					t.Fatalf("WriteUrgent = %d, %v", n, err)
				}
				if v := <-value; v != byte('A'+i) {
					t.Errorf("ReadUrgent = %q", v)
				}
			}
			a.Write([]byte("x"))
			if kind == "TCP" {
				go beside()
			}
			if got := <-read; got != "x<nil>" {
				t.Errorf("Read = %s", got)
			}
			if n, err := a.WriteUrgent(nil); n != 0 || err != nil {
				t.Errorf("WriteUrgent of nothing = %d, %v", n, err)
			}
			b.SetUrgentInline(true)
			if _, err := b.ReadUrgent(); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("ReadUrgent inline = %v", err)
			}
			b.SetUrgentInline(false)
			urgent, _ = waits()
			a.CloseWrite()
			if err := <-urgent; err != io.EOF {
				t.Errorf("after CloseWrite: %v", err)
			}
			urgent, news = make(chan error, 1), make(chan error, 1)
			go func() { _, err := a.ReadUrgent(); urgent <- err }()
			go func() { news <- a.WaitUrgent() }()
			a.Close()
			for _, c := range []chan error{urgent, news} {
				if err := <-c; !errors.Is(err, net.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			}
			if _, err := a.WriteUrgent([]byte("U")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("WriteUrgent after Close: %v", err)
			}
			if _, err := a.AtUrgentMark(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("AtUrgentMark after Close: %v", err)
			}
			if err := a.SetUrgentInline(true); !errors.Is(err, net.ErrClosed) {
				t.Errorf("SetUrgentInline after Close: %v", err)
			}
		})
	}
}
