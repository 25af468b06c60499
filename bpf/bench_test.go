package bpf

import (
	"context"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/option"
)

// BenchmarkForeign measures the cost of the programs for sockets that have not asked: a socket
// option, and a connection over loopback.
func BenchmarkForeign(b *testing.B) {
	for _, attached := range []bool{false, true} {
		name := map[bool]string{false: "detached", true: "attached"}[attached]
		b.Run(name, func(b *testing.B) {
			p := newPlace(b)
			if !attached {
				if err := DetachOption(p.pins); err != nil {
					b.Fatal(err)
				}
			}
			p.run(func() {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					b.Error(err)
					return
				}
				defer unix.Close(fd)
				b.Run("setsockopt", func(b *testing.B) {
					for b.Loop() {
						unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1)
					}
				})
				b.Run("getsockopt", func(b *testing.B) {
					for b.Loop() {
						unix.GetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NODELAY)
					}
				})
				if attached {
					b.Run("Ask", func(b *testing.B) {
						for b.Loop() {
							option.Ask(uintptr(fd))
						}
					})
					b.Run("Read", func(b *testing.B) {
						for b.Loop() {
							option.Read(uintptr(fd))
						}
					})
				}
			})
			for _, asks := range []bool{false, true} {
				if asks && !attached {
					continue
				}
				b.Run(map[bool]string{false: "connect", true: "connect-asking"}[asks], func(b *testing.B) {
					p.run(func() { connections(b, asks) })
				})
			}
		})
	}
}

// connections makes connections over loopback and resets them.
func connections(b *testing.B, asks bool) {
	lc := net.ListenConfig{Control: asking(asks)}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Error(err)
		return
	}
	defer l.Close()
	d := net.Dialer{Control: asking(asks)}
	d.SetMultipathTCP(false)
	for b.Loop() {
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Error(err)
			return
		}
		s, err := l.Accept()
		if err != nil {
			b.Error(err)
			return
		}
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		s.Close()
	}
}
