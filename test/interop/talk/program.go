package talk

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"sync"
)

// A Network makes connections of one kind.
type Network struct {
	Dial   func(dest netip.AddrPort) (Conn, error)
	Listen func(port uint16) (accept func() (Conn, error), err error)
	Mode   func(c Conn) string // of a connection: mode=smc-r, mode=tcp with reasons, mode=smc-d
}

// Usage is the part of a program's usage that [Network.Run] carries out.
const Usage = `serve PORT COUNT                     serve COUNT connections, whatever they ask for
dial ADDR:PORT KIND N ROUNDS CONNS   be the client of CONNS connections at a time`

var errFailed = errors.New("not every connection went well")

// Run is a program that is one of the ends: see [Usage]. It prints a line for each connection,
// which begins with "ok" or "fail", and has its kind and its mode. The error says so if one has
// failed.
func (n Network) Run(out io.Writer, args []string) error {
	b := board{out: out}
	switch {
	case len(args) == 3 && args[0] == "serve":
		port, err := strconv.ParseUint(args[1], 10, 16)
		if err != nil {
			return err
		}
		count, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return n.serve(&b, uint16(port), count)
	case len(args) == 6 && args[0] == "dial":
		dest, err := netip.ParseAddrPort(args[1])
		if err != nil {
			return err
		}
		kind, err := ParseKind(args[2])
		if err != nil {
			return err
		}
		var numbers [3]int
		for i := range numbers {
			if numbers[i], err = strconv.Atoi(args[3+i]); err != nil {
				return err
			}
		}
		return n.dial(&b, dest, Script{Kind: kind, N: numbers[0], Rounds: numbers[1], Seed: 1, Soft: true}, numbers[2])
	}
	return fmt.Errorf("arguments %q; want\n%s", args, Usage)
}

// A board prints results, one at a time.
type board struct {
	out    io.Writer
	mu     sync.Mutex
	failed bool
}

func (b *board) say(what Kind, mode string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.failed = true
		fmt.Fprintf(b.out, "fail %v %s: %v\n", what, mode, err)
		return
	}
	fmt.Fprintf(b.out, "ok %v %s\n", what, mode)
}

func (b *board) result() error {
	if b.failed {
		return errFailed
	}
	return nil
}

func (n Network) serve(b *board, port uint16, count int) error {
	accept, err := n.Listen(port)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range count {
		c, err := accept()
		if err != nil {
			return err
		}
		mode := n.Mode(c)
		wg.Go(func() {
			s, err := Serve(c, nil)
			b.say(s.Kind, mode, err)
		})
	}
	wg.Wait()
	return b.result()
}

func (n Network) dial(b *board, dest netip.AddrPort, s Script, conns int) error {
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			c, err := n.Dial(dest)
			if err != nil {
				b.say(s.Kind, "", err)
				return
			}
			mode := n.Mode(c)
			mine := s
			mine.Seed += uint64(i) << 32
			b.say(s.Kind, mode, Client(c, mine))
		})
	}
	wg.Wait()
	return b.result()
}
