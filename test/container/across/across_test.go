// Package across tests connections of package smc whose ends are in two network namespaces, as two users,
// with the tests of golang.org/x/net/nettest. These want both ends in one process, so a relay is between them:
//
//	test ---- package smc ---- relay ---- TCP ---- test
//
// Without $GOSMC_RELAY the relay is in the test's process. The test program of this package is both the relay
// and the test in 'make container-test'.
package across

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/smctest"
)

// envRelay has the address of the connections of package smc at the relay, and that of those of TCP, with a
// space between them.
const envRelay = "GOSMC_RELAY"

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "relay" {
		fmt.Fprintln(os.Stderr, relay(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	if os.Getenv(envRelay) == "" {
		smctest.Main(m)
		return
	}
	os.Exit(m.Run())
}

// relay is a relay at two addresses.
func relay(moved, plain string) error {
	l, err := smc.Listen("tcp", moved)
	if err != nil {
		return err
	}
	defer l.Close()
	p, err := net.Listen("tcp", plain)
	if err != nil {
		return err
	}
	defer p.Close()
	return pass(l, p)
}

// pass joins each connection of the one listener to the next of the other.
func pass(l net.Listener, p net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		other, err := p.Accept()
		if err != nil {
			c.Close()
			return err
		}
		go join(c, other)
		go join(other, c)
	}
}

// join copies from one connection to the other, up to its end.
func join(to, from net.Conn) {
	_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		half.CloseWrite()
	} else {
		to.Close()
		from.Close()
	}
}

// inProcess starts a relay, and returns its addresses.
func inProcess(t *testing.T) (moved, plain string) {
	t.Helper()
	l, err := smc.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := pass(l, p); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the relay: %v", err)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		p.Close()
		<-done
	})
	return l.Addr().String(), p.Addr().String()
}

// TestAcross has both kinds of ends be the one that is tested. It prints how many connections were moved.
func TestAcross(t *testing.T) {
	var moved, plain string
	if text := os.Getenv(envRelay); text == "" {
		moved, plain = inProcess(t)
	} else if _, err := fmt.Sscan(text, &moved, &plain); err != nil {
		t.Fatalf("$%s is %q: %v", envRelay, text, err)
	}
	var mu sync.Mutex
	modes := make(map[smc.Mode]int)
	pair := func() (c *smc.Conn, other net.Conn, err error) {
		mu.Lock()
		defer mu.Unlock()
		if c, err = smc.Dial("tcp", moved); err != nil {
			return nil, nil, err
		}
		modes[c.State().Mode]++
		other, err = net.Dial("tcp", plain)
		return c, other, err
	}
	t.Run("near", func(t *testing.T) {
		nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
			c, other, err := pair()
			return c, other, func() { c.Close(); other.Close() }, err
		})
	})
	t.Run("far", func(t *testing.T) {
		nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
			c, other, err := pair()
			return other, c, func() { c.Close(); other.Close() }, err
		})
	})
	fmt.Println("modes", modes)
	if os.Getenv(envRelay) == "" && modes[smc.ModeTCP] != 0 {
		t.Errorf("within a process: %v", modes)
	}
}
