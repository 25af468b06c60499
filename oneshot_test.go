package smc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// A one-shot process connects or accepts once, writes, and is gone. The bytes that its Write has
// taken arrive all the same.

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"shot": childShot})
}

// The ways in which a one-shot process ends.
const (
	shotExits     = "exits"      // without Close
	shotCloses    = "closes"     // Close, then exit
	shotClosesAll = "closes all" // Close, Host.Close, then exit
	shotDies      = "dies"       // SIGKILL, in the middle of writing
	shotReads     = "reads"      // reads its input, writes, and exits without Close
)

// shotIDLen is how many bytes a one-shot process begins its stream with: its number.
const shotIDLen = 8

// shotQuestion is how many bytes the other side sends to a process that reads.
const shotQuestion = 1000

// childShot writes the pattern. Arguments: run directory or "" for TCP, dial or listen, address, file of
// words, number of its word, which is also its ID, how many bytes, how it ends.
func childShot(p *smctest.Parent) {
	h, err := NewHost(&Config{Dir: p.Args[0], Disabled: p.Args[0] == ""})
	p.Check(err)
	words, err := smctest.OpenWords(p.Args[3])
	p.Check(err)
	id, err := strconv.Atoi(p.Args[4])
	p.Check(err)
	size, err := strconv.Atoi(p.Args[5])
	p.Check(err)
	how := p.Args[6]
	b := make([]byte, shotIDLen+size)
	binary.LittleEndian.PutUint64(b, uint64(id))
	smctest.Pattern(b[shotIDLen:], 0)

	var c *Conn
	if p.Args[1] == "dial" {
		d := Dialer{Host: h, Timeout: slow}
		c, err = d.Dial("tcp", p.Args[2])
	} else {
		var l *Listener
		l, err = listenOn(h)
		p.Check(err)
		p.Say("listening %v", l.Addr())
		c, err = l.AcceptSMC()
	}
	p.Check(err)
	if how == shotReads {
		_, err := io.ReadFull(c, make([]byte, shotQuestion))
		p.Check(err)
	}
	if how == shotDies {
		go func() {
			for end := time.Now().Add(rand.N(2 * time.Millisecond)); time.Now().Before(end); {
			}
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}()
	}
	for sent := 0; sent < len(b); {
		n, err := c.Write(b[sent:min(sent+1+size/5, len(b))])
		sent += n
		words[id].Store(uint64(sent))
		p.Check(err)
	}
	switch how {
	case shotCloses:
		p.Check(c.Close())
	case shotClosesAll:
		p.Check(c.Close())
		p.Check(h.Close())
	case shotDies:
		select {}
	}
	os.Exit(0)
}

// A shot is the result of one process.
type shot struct {
	id  int
	n   int // bytes that arrived, and were right
	end error
}

// takeShot reads a connection to its end.
func takeShot(c net.Conn, ask bool) (s shot, err error) {
	defer c.Close()
	if ask {
		if _, err := c.Write(make([]byte, shotQuestion)); err != nil {
			return s, err
		}
	}
	c.SetReadDeadline(time.Now().Add(2 * slow))
	b, err := io.ReadAll(c)
	if len(b) < shotIDLen {
		return s, fmt.Errorf("%d bytes, then %v", len(b), err)
	}
	s = shot{id: int(binary.LittleEndian.Uint64(b)), n: len(b), end: err}
	return s, smctest.CheckPattern(b[shotIDLen:], 0)
}

// TestOneShot counts, over SMC-D and for comparison over TCP, the bytes that arrive from processes
// that are gone at once: one after the other, and many at a time.
func TestOneShot(t *testing.T) {
	for _, mode := range []Mode{ModeSMCD, ModeTCP} {
		rounds := 20
		if mode == ModeTCP || testing.Short() || raceEnabled() {
			rounds = 4
		}
		for _, how := range []string{shotExits, shotCloses, shotClosesAll, shotDies, shotReads} {
			for _, dials := range []bool{true, false} {
				for _, burst := range []int{1, 12} {
					who := map[bool]string{true: "client", false: "server"}[dials]
					t.Run(fmt.Sprintf("%v/%s %s/%d at once", mode, who, how, burst), func(t *testing.T) {
						r := shotRange{t: t, how: how}
						if mode == ModeSMCD {
							r.dir = t.TempDir()
						}
						r.host = newHost(t, Config{Dir: r.dir, Disabled: r.dir == ""})
						r.words, r.path = smctest.NewWords(t)
						r.run(rounds*min(burst, 2), burst, dials)
					})
				}
			}
		}
	}
}

// A shotRange is where one-shot processes are started and counted.
type shotRange struct {
	t     *testing.T
	host  *Host
	dir   string // "" for TCP
	how   string
	words *smctest.Words
	path  string
	l     *Listener // where processes that dial arrive
	got   chan shot
}

func (r *shotRange) run(count, burst int, dials bool) {
	r.got = make(chan shot, count)
	var taking sync.WaitGroup
	take := func(c net.Conn) {
		s, err := takeShot(c, r.how == shotReads)
		if err != nil && r.how != shotDies {
			r.t.Errorf("a connection was worth nothing: %v", err)
		}
		r.got <- s
	}
	if dials {
		r.l = listenTest(r.t, r.host)
		taking.Go(func() {
			for {
				c, err := r.l.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					r.t.Error(err)
					return
				}
				taking.Go(func() { take(c) })
			}
		})
	}
	turn := make(chan struct{}, burst)
	var running sync.WaitGroup
	for id := range count {
		turn <- struct{}{}
		how, addr := "listen", "-"
		if dials {
			how, addr = "dial", r.l.Addr().String()
		}
		size := rand.IntN(40_000)
		child := smctest.Start(r.t, "shot", r.dir, how, addr, r.path, strconv.Itoa(id), strconv.Itoa(size), r.how)
		if !dials {
			addr := child.Hear("listening")
			taking.Go(func() {
				d := Dialer{Host: r.host, Timeout: slow}
				c, err := d.Dial("tcp", addr)
				if err != nil {
					if r.words[id].Load() > 0 { // else it may have died before it was reached
						r.t.Errorf("dial: %v", err)
					}
					return
				}
				take(c)
			})
		}
		running.Go(func() {
			if err := child.Wait(); err != nil && r.how != shotDies {
				r.t.Errorf("process %d: %v", id, err)
			}
			<-turn
		})
	}
	running.Wait()
	r.check(count)
	if dials {
		r.l.Close()
	}
	taking.Wait()
}

// check waits until everything that was written has arrived.
func (r *shotRange) check(count int) {
	missing := make(map[int]uint64)
	for id := range count {
		if n := r.words[id].Load(); n > 0 {
			missing[id] = n
		}
	}
	late := time.NewTimer(slow)
	defer late.Stop()
	for len(missing) > 0 {
		select {
		case s := <-r.got:
			if written := r.words[s.id].Load(); s.n > 0 && uint64(s.n) < written {
				r.t.Errorf("process %d: %d bytes arrived, its Write took %d, then %v", s.id, s.n, written, s.end)
			}
			// Nobody has left bytes unread: the end is EOF, as on TCP.
			if s.n > 0 && s.end != nil {
				r.t.Errorf("process %d: after %d bytes %v, want EOF", s.id, s.n, s.end)
			}
			if s.n > 0 {
				delete(missing, s.id)
			}
		case <-late.C:
			r.t.Errorf("of %d processes, nothing arrived from %d", count, len(missing))
			return
		}
	}
}
