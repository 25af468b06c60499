package host

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

// keepAliveOf returns TCP_KEEPIDLE of a connection's TCP socket in seconds, 0 if it has no keepalive.
func keepAliveOf(t *testing.T, c interface {
	SyscallConn() (syscall.RawConn, error)
}) (idle int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			var on int
			if on, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 0 {
				idle, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
			}
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return idle
}

// What carries bytes through a network has TCP's keepalive as package net has it; SMC-D only if the program says so.
func TestKeepAlive(t *testing.T) {
	const byDefault = 15 // of package net, in seconds
	asked := net.KeepAliveConfig{Enable: true, Idle: 33 * time.Second}
	for _, tt := range []struct {
		name   string
		mode   Mode
		idle   time.Duration // KeepAlive of both ends
		config net.KeepAliveConfig
		want   int
	}{
		{"SMC-D", ModeSMCD, 0, net.KeepAliveConfig{}, 0},
		{"SMC-D, time given", ModeSMCD, 40 * time.Second, net.KeepAliveConfig{}, 40},
		{"SMC-D, asked for", ModeSMCD, 0, asked, 33},
		{"TCP", ModeTCP, 0, net.KeepAliveConfig{}, byDefault},
		{"TCP, time given", ModeTCP, 40 * time.Second, net.KeepAliveConfig{}, 40},
		{"TCP, asked for", ModeTCP, -1, asked, 33},
		{"TCP, off", ModeTCP, -1, net.KeepAliveConfig{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			dir := t.TempDir()
			server := newTestHost(t, Config{Dir: dir})
			client := newTestHost(t, Config{Dir: dir, Disabled: tt.mode == ModeTCP})
			l, err := server.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{Net: net.ListenConfig{KeepAlive: tt.idle, KeepAliveConfig: tt.config}})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			c, err := client.Dial(boundedContext(t), "tcp", l.Addr().String(), DialOptions{Net: net.Dialer{KeepAlive: tt.idle, KeepAliveConfig: tt.config}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s := mustAccept(t, l)
			defer s.Close()
			for role, conn := range map[string]*Conn{"client": c, "server": s} {
				if conn.Mode() != tt.mode {
					t.Fatalf("%s: the connection is %v, want %v", role, conn.Mode(), tt.mode)
				}
				if got := keepAliveOf(t, conn); got != tt.want { // SMC-R is in TestSMCR
					t.Errorf("%s: keepalive after %d s, want %d (0: none)", role, got, tt.want)
				}
			}
		})
	}
}
