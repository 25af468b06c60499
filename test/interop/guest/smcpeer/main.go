// Command smcpeer runs in the guest, on AF_SMC sockets of its kernel.
//
//	smcpeer ueid add|del NAME                  a user-defined EID of this kernel
//	smcpeer serve PORT COUNT                   serve COUNT connections, whatever they ask for
//	smcpeer dial ADDR:PORT KIND N ROUNDS CONNS  be the client of CONNS connections at a time
//
// serve and dial print a line for each connection, which begins with "ok" or "fail", and say what the kernel has
// made of it: mode=smc-r, mode=tcp with the reasons of the fallback, mode=smc-d. They exit with 1 if one has failed.
package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"

	"github.com/gosmc/smc/test/interop/talk"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println("smcpeer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "ueid":
		return changeUEID(args[1], args[2])
	case len(args) == 3 && args[0] == "serve":
		port, err := strconv.ParseUint(args[1], 10, 16)
		if err != nil {
			return err
		}
		count, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return serve(uint16(port), count)
	case len(args) == 6 && args[0] == "dial":
		dest, err := netip.ParseAddrPort(args[1])
		if err != nil {
			return err
		}
		kind, err := talk.ParseKind(args[2])
		if err != nil {
			return err
		}
		var n [3]int
		for i := range n {
			if n[i], err = strconv.Atoi(args[3+i]); err != nil {
				return err
			}
		}
		return dial(dest, talk.Script{Kind: kind, N: n[0], Rounds: n[1], Seed: 1, Soft: true}, n[2])
	}
	return fmt.Errorf("arguments %q: see the comment of the program", args)
}

var errFailed = errors.New("not every connection went well")

// A board prints results, one at a time.
type board struct {
	mu     sync.Mutex
	failed bool
}

func (b *board) say(what, mode string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.failed = true
		fmt.Printf("fail %s %s: %v\n", what, mode, err)
		return
	}
	fmt.Printf("ok %s %s\n", what, mode)
}

func (b *board) result() error {
	if b.failed {
		return errFailed
	}
	return nil
}

func serve(port uint16, count int) error {
	l, err := listen(port)
	if err != nil {
		return err
	}
	var b board
	var wg sync.WaitGroup
	for range count {
		c, err := l.accept()
		if err != nil {
			return err
		}
		mode := c.mode()
		wg.Go(func() {
			s, err := talk.Serve(c)
			b.say(s.Kind.String(), mode, err)
		})
	}
	wg.Wait()
	return b.result()
}

func dial(dest netip.AddrPort, s talk.Script, conns int) error {
	var b board
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			c, err := connect(dest)
			if err != nil {
				b.say(s.Kind.String(), "", err)
				return
			}
			mode := c.mode()
			mine := s
			mine.Seed += uint64(i) << 32
			b.say(s.Kind.String(), mode, talk.Client(c, mine))
		})
	}
	wg.Wait()
	return b.result()
}
