package supervisor

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/smctest"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"smc-speed": childSpeed})
}

// orderBytes is the size of struct order of testdata/speed.c.
const orderBytes = 12

// childSpeed is testdata/speed.c with package smc, or with package net where a line begins with bare. Its
// first argument is its user, the second one its run directory.
func childSpeed(p *smctest.Parent) {
	uid, err := strconv.Atoi(p.Args[0])
	p.Check(err)
	p.Check(os.Chown(p.Args[1], uid, uid))
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setgid(uid))
	p.Check(syscall.Setuid(uid))
	h, err := host.New(host.Config{Dir: p.Args[1]})
	p.Check(err)
	for {
		words := strings.Fields(p.Hear())
		bare := words[0] == "bare"
		if bare {
			words = words[1:]
		}
		if words[0] == "serve" {
			var accept func() (net.Conn, error)
			var at net.Addr
			if bare {
				l, err := net.Listen("tcp", words[1]+":0")
				p.Check(err)
				accept, at = l.Accept, l.Addr()
			} else {
				l, err := h.Listen(context.Background(), "tcp", words[1]+":0", host.ListenOptions{})
				p.Check(err)
				accept, at = func() (net.Conn, error) { return l.Accept() }, l.Addr()
			}
			go func() {
				for {
					c, err := accept()
					p.Check(err)
					p.Check(answerOrder(c))
				}
			}()
			p.Say("listening %d", at.(*net.TCPAddr).Port)
			continue
		}
		moved := 0
		dial := func() net.Conn {
			if bare {
				c, err := net.Dial("tcp", net.JoinHostPort(words[1], words[2]))
				p.Check(err)
				return c
			}
			c, err := h.Dial(context.Background(), "tcp", net.JoinHostPort(words[1], words[2]), host.DialOptions{})
			p.Check(err)
			if c.Mode() == conn.ModeUnix {
				moved++
			}
			return c
		}
		size, err1 := strconv.Atoi(words[3])
		n, err2 := strconv.Atoi(words[4])
		p.Check(err1)
		p.Check(err2)
		took, err := giveOrder(words[0], dial, size, n)
		p.Check(err)
		p.Say("took %d moved %d", took.Nanoseconds()/int64(n), moved)
	}
}

// answerOrder does as a client says, and closes the connection.
func answerOrder(c net.Conn) error {
	defer c.Close()
	var order [orderBytes]byte
	if _, err := io.ReadFull(c, order[:]); err != nil {
		if err == io.EOF {
			err = nil
		}
		return err
	}
	size, n := int(binary.NativeEndian.Uint32(order[4:])), int(binary.NativeEndian.Uint32(order[8:]))
	b := make([]byte, max(size, 128<<10))
	if order[0] == 's' {
		for left := size * n; left > 0; {
			got, err := c.Read(b[:min(left, 128<<10)])
			if err != nil {
				return err
			}
			left -= got
		}
		_, err := c.Write(b[:1])
		return err
	}
	for range n {
		if _, err := io.ReadFull(c, b[:size]); err != nil {
			return err
		}
		if _, err := c.Write(b[:size]); err != nil {
			return err
		}
	}
	c.Read(b[:1])
	return nil
}

// giveOrder is the client's side.
func giveOrder(how string, dial func() net.Conn, size, n int) (took time.Duration, err error) {
	var order [orderBytes]byte
	order[0] = how[0]
	binary.NativeEndian.PutUint32(order[4:], uint32(size))
	binary.NativeEndian.PutUint32(order[8:], uint32(n))
	b := make([]byte, max(size, 1))
	if how == "connect" {
		binary.NativeEndian.PutUint32(order[8:], 1)
		begin := time.Now()
		for range n {
			c := dial()
			if size > 0 {
				if _, err = c.Write(order[:]); err != nil {
					return 0, err
				}
				if _, err = c.Write(b); err != nil {
					return 0, err
				}
				if _, err = io.ReadFull(c, b); err != nil {
					return 0, err
				}
			}
			c.Close()
		}
		return time.Since(begin), nil
	}
	c := dial()
	defer c.Close()
	if _, err = c.Write(order[:]); err != nil {
		return 0, err
	}
	begin := time.Now()
	for range n {
		if _, err = c.Write(b[:size]); err != nil {
			return 0, err
		}
		if how == "turns" {
			if _, err = io.ReadFull(c, b[:size]); err != nil {
				return 0, err
			}
		}
	}
	if how == "stream" {
		_, err = io.ReadFull(c, b[:1])
	}
	return time.Since(begin), err
}

// BenchmarkMixed is BenchmarkUsers with package smc at one end.
func BenchmarkMixed(b *testing.B) {
	for _, end := range []string{"client", "server"} {
		b.Run("package smc at the "+end, func(b *testing.B) {
			n := newSpeedNet(b)
			var p *smctest.Process
			dir := n.dir()
			n.run[0](func() { p = smctest.Start(b, "smc-speed", strconv.Itoa(podUserC), dir) })
			if end == "client" {
				compareSpeed(b, n.pod(0, podUserA), p)
			} else {
				compareSpeed(b, p, n.pod(0, podUserA))
			}
		})
	}
}
