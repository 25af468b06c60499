package smc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/smctest"
)

// One-shot processes over SMC-R. The queue pair is in the process and ends with it, so the arrival
// of bytes that its Write has taken is promised once Close has returned. Without Close the reader
// may get less, and then an error: never an end of the stream that looks like the right one.

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"smcr-shot": childSMCRShot})
}

// shotHost is a host of SMC-R at an address, with a UDP port.
func shotHost(dir string, port uint16) (*Host, error) {
	config := Config{Dir: dir, UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"127.0.0.0/8"}}
	cfg := config.internal()
	cfg.RDMA.Port = port
	h, err := host.New(cfg)
	return &Host{h: h}, err
}

// childSMCRShot is childShot over SMC-R. Arguments: run directory, UDP port, own address, dial or listen, address, file of
// words, number of its word, how many bytes, how it ends.
func childSMCRShot(p *smctest.Parent) {
	number := func(i int) int {
		n, err := strconv.Atoi(p.Args[i])
		p.Check(err)
		return n
	}
	h, err := shotHost(p.Args[0], uint16(number(1)))
	p.Check(err)
	words, err := smctest.OpenWords(p.Args[5])
	p.Check(err)
	id, how := number(6), p.Args[8]
	b := make([]byte, shotIDLen+number(7))
	binary.LittleEndian.PutUint64(b, uint64(id))
	smctest.Pattern(b[shotIDLen:], 0)

	var c *Conn
	if p.Args[3] == "dial" {
		d := Dialer{Host: h, Timeout: slow, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(p.Args[2]), 0))}
		c, err = d.Dial("tcp", p.Args[4])
	} else {
		var l *Listener
		lc := ListenConfig{Host: h}
		l, err = lc.Listen(context.Background(), "tcp", p.Args[2]+":0")
		p.Check(err)
		p.Say("listening %v", l.Addr())
		c, err = l.AcceptSMC()
	}
	p.Check(err)
	if s := c.State(); s.Mode != ModeSMCR {
		p.Check(fmt.Errorf("mode %v: %v", s.Mode, s.Reason))
	}
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
		n, err := c.Write(b[sent:min(sent+1+len(b)/5, len(b))])
		sent += n
		words[id].Store(uint64(sent))
		p.Check(err)
	}
	switch how {
	case shotCloses, shotReads:
		p.Check(c.Close())
	case shotClosesAll:
		p.Check(c.Close())
		p.Check(h.Close())
	case shotDies:
		select {}
	}
	os.Exit(0)
}

// TestSMCROneShot counts the bytes that arrive over SMC-R from processes that are gone at once.
func TestSMCROneShot(t *testing.T) {
	for _, how := range []string{shotExits, shotCloses, shotClosesAll, shotDies, shotReads} {
		for _, dials := range []bool{true, false} {
			for _, burst := range []int{1, 12} {
				who := map[bool]string{true: "client", false: "server"}[dials]
				t.Run(fmt.Sprintf("%s %s/%d at once", who, how, burst), func(t *testing.T) {
					runSMCRShots(t, how, dials, burst, 6*min(burst, 2))
				})
			}
		}
	}
}

// runSMCRShots starts count processes, each at an address of its own, as each has the UDP port. burst run at a time.
func runSMCRShots(t *testing.T, how string, dials bool, burst, count int) {
	own := netip.MustParseAddr("127.0.0.1")
	port := smctest.FreePort(t, own)
	h, err := shotHost(t.TempDir(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	words, path := smctest.NewWords(t)
	sudden := how == shotDies || how == shotExits
	var taking sync.WaitGroup
	take := func(c net.Conn) {
		s, err := takeShot(c, how == shotReads)
		if err != nil {
			if !sudden || s.n > 0 { // else the process is not known
				t.Errorf("a connection was worth nothing: %v", err)
			}
			return
		}
		written := int(words[s.id].Load())
		if s.n < written && (s.end == nil || !sudden) || s.end != nil && !sudden {
			t.Errorf("process %d: %d bytes arrived, its Write took %d, then %v", s.id, s.n, written, s.end)
		}
	}
	listen := "-"
	defer taking.Wait()
	if dials {
		lc := ListenConfig{Host: h}
		l, err := lc.Listen(context.Background(), "tcp", own.String()+":0")
		if err != nil {
			t.Fatal(err)
		}
		listen = l.Addr().String()
		taking.Go(func() {
			for {
				c, err := l.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				taking.Go(func() { take(c) })
			}
		})
		defer l.Close()
	}
	turn := make(chan struct{}, burst)
	var running sync.WaitGroup
	for id := range count {
		turn <- struct{}{}
		role := "listen"
		if dials {
			role = "dial"
		}
		addr := netip.AddrFrom4([4]byte{127, 0, 1, byte(id + 1)})
		child := smctest.Start(t, "smcr-shot", t.TempDir(), strconv.Itoa(int(port)), addr.String(), role, listen, path,
			strconv.Itoa(id), strconv.Itoa(rand.IntN(40_000)), how)
		if !dials {
			addr := strings.TrimPrefix(child.Hear("listening"), "listening ")
			taking.Go(func() {
				d := Dialer{Host: h, Timeout: slow, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(own, 0))}
				c, err := d.Dial("tcp", addr)
				if err != nil {
					if !sudden {
						t.Errorf("dial: %v", err)
					}
					return
				}
				take(c)
			})
		}
		running.Go(func() {
			if err := child.Wait(); err != nil && how != shotDies {
				t.Errorf("process %d: %v", id, err)
			}
			<-turn
		})
	}
	running.Wait()
}
