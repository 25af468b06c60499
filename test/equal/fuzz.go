package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// A tally has the results of a run.
type tally struct {
	mu       sync.Mutex
	next     uint64
	ended    [outcomes]int
	steps    int // of scripts that were compared
	joined   int
	moved    int // connections
	of       int
	begun    time.Time
	reported time.Time
	ledger   *ledger
}

func fuzz(ctx context.Context, t *tool, chosen []mode, opt options, l *ledger) (bool, error) {
	fmt.Printf("seed %d\n", opt.seed)
	l.begin(opt.seed, t.gosmc)
	c := &tally{begun: time.Now(), reported: time.Now(), ledger: l}
	until := c.begun.Add(opt.time)
	var wg sync.WaitGroup
	for range opt.workers {
		wg.Go(func() {
			x := newTable(t, chosen)
			defer x.stop()
			for {
				c.mu.Lock()
				over := (opt.scripts > 0 && c.next >= uint64(opt.scripts)) || (opt.time > 0 && time.Now().After(until)) || c.ended[differs] >= opt.stop || ctx.Err() != nil
				seed := opt.seed + c.next
				if !over {
					c.next++
				}
				c.mu.Unlock()
				if over {
					return
				}
				s := generate(seed)
				r, err := x.try(s)
				if errors.Is(err, errLate) { // a script that hangs is killed by its player before that
					r, err = x.try(s)
				}
				if ctx.Err() != nil {
					return // the players may have had the signal, too
				}
				c.count(seed, s, r, err)
				switch {
				case err != nil:
					fmt.Printf("%s: %v\n", s.name, err)
				case r.difference != "":
					x.report(s, r, opt.write)
				}
			}
		})
	}
	wg.Wait()
	c.print()
	if err := l.write(); err != nil {
		return false, err
	}
	if l.path != "" {
		_, text := total(l.spans)
		fmt.Print(text)
	}
	if ctx.Err() != nil {
		return false, errors.New("interrupted")
	}
	scripts := c.ended[equal] + c.ended[differs]
	if scripts > 100 && c.ended[dropped]*10 > scripts+c.ended[dropped] {
		return false, fmt.Errorf("%d of %d scripts differ over TCP itself", c.ended[dropped], scripts+c.ended[dropped])
	}
	if c.of > 100 && c.moved*10 < c.of*9 {
		return false, fmt.Errorf("only %d of %d connections have left TCP", c.moved, c.of)
	}
	return c.ended[differs] == 0, nil
}

// count takes note of a script. One whose players have ended differs, too.
func (c *tally) count(seed uint64, s *script, r *result, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := equal
	switch {
	case err != nil || r.difference != "":
		o = differs
	case r.unsteady:
		o = dropped
	}
	c.ended[o]++
	c.ledger.note(seed, o)
	if o != dropped {
		c.steps += len(s.steps)
	}
	c.joined += r.joined
	c.moved += r.moved
	c.of += r.of
	if time.Since(c.reported) > 20*time.Second {
		c.reported = time.Now()
		c.printLocked()
		if err := c.ledger.write(); err != nil {
			fmt.Fprintln(os.Stderr, "equal:", err) // and again in 20 s, with the next ones
		}
	}
}

func (c *tally) print() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.printLocked()
}

func (c *tally) printLocked() {
	took := time.Since(c.begun)
	scripts := c.ended[equal] + c.ended[differs]
	fmt.Printf("%d scripts with %d steps in %v, %.0f a minute; %d dropped, %d differ; %d of %d connections left TCP, %d plays again as a supervisor had joined one to TCP\n", scripts, c.steps, took.Round(time.Second),
		float64(scripts)/took.Minutes(), c.ended[dropped], c.ended[differs], c.moved, c.of, c.joined)
}
