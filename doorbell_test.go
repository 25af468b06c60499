package smc

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// Of the goroutines that wait for one peer, one waits for its doorbell and wakes the others. It may
// stop doing so at any time: because its own bytes came, its deadline passed, or its connection was
// closed. Then another one has to take over, or the bytes of all others are never noticed. Every
// byte here is slept for, and the waiting goroutines come and go.
func TestDoorbellHandOver(t *testing.T) {
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	dir := t.TempDir()
	client, server := newHost(t, Config{Dir: dir, Spin: -1}), newHost(t, Config{Dir: dir, Spin: -1})
	lc := ListenConfig{Host: server}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serveEach(l, func(c net.Conn) {
		defer c.Close()
		io.Copy(c, c)
	})
	dial := func() *Conn {
		d := Dialer{Host: client, Require: RequireSMCD}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
			return nil
		}
		return c
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	stop := make(chan struct{})
	var idlers, workers sync.WaitGroup
	for i := range 3 {
		random := rand.New(rand.NewPCG(seed, uint64(100+i)))
		idlers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c := dial()
				if c == nil {
					return
				}
				c.SetReadDeadline(time.Now().Add(time.Duration(random.IntN(3000)) * time.Microsecond))
				if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("idle Read() = %d, %v, want %v", n, err, os.ErrDeadlineExceeded)
				}
				c.Close()
			}
		})
	}
	for i := range 5 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		workers.Go(func() {
			c := dial()
			if c == nil {
				return
			}
			defer c.Close()
			buf := make([]byte, 64)
			for round := range rounds {
				if _, err := c.Write(buf); err != nil {
					t.Errorf("Write() = %v", err)
					return
				}
				for got := 0; got < len(buf); {
					short := random.IntN(4) == 0
					wait := 20 * time.Second
					if short {
						wait = time.Duration(random.IntN(100)) * time.Microsecond
					}
					c.SetReadDeadline(time.Now().Add(wait))
					n, err := c.Read(buf[got:])
					got += n
					if err != nil && !(short && errors.Is(err, os.ErrDeadlineExceeded)) {
						t.Errorf("round %d: Read() = %d, %v: nobody noticed the answer", round, n, err)
						return
					}
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	idlers.Wait()
}
