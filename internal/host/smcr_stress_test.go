package host

import (
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/smctest"
)

// TestSMCRStress makes, uses and ends connections in all ways at the same time, while links fail
// under them. A connection reads the bytes that were written, and nothing is left in the end.
func TestSMCRStress(t *testing.T) {
	r := newSMCRRig(t, nil)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() { // the server echoes, or ends in its own way
		for {
			c, err := r.l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(patience))
			wg.Go(func() {
				defer c.Close()
				switch rand.N(10) {
				case 0: // closes with bytes unread
				case 1:
					c.SetLinger(0)
				case 2:
					io.CopyN(c, c, 1000)
				default:
					io.Copy(c, c)
				}
			})
		}
	})
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for range 60 {
					c, err := r.dial(DialOptions{ReadBuffer: 16 << 10})
					if err != nil {
						continue // a link has failed in its handshake, after the point of no return
					}
					stressConn(t, c)
				}
			})
		}
		clients.Wait()
	})
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-stop:
				return
			case <-time.After(rand.N(40 * time.Millisecond)):
			}
			h, addr := r.client, loop1
			if rand.N(2) == 0 {
				h, addr = r.server, loop2
			}
			if h.rnicOf(addr) != nil {
				failLinks(h, addr)
			}
		}
	})
	<-done
	close(stop)
	r.l.Close()
	wg.Wait()
	checkGone(t, r.client, r.server)
	r.client.Close()
	r.server.Close()
	for _, h := range []*Host{r.client, r.server} {
		smctest.Eventually(t, patience, "all memory is given back", func() bool { return memoryOf(h) == 0 })
		h.mu.Lock()
		if len(h.ends) > 0 && len(groupsOf(h)) > 0 || len(h.groupStatus()) != 0 {
			t.Errorf("%d ends and %d link groups are left", len(h.ends), len(h.groupStatus()))
		}
		h.mu.Unlock()
	}
}

// stressConn writes a pattern, and checks the echo of it.
func stressConn(t *testing.T, c conn.Conn) {
	defer c.Close()
	size := rand.N(100 << 10)
	sent := make([]byte, size)
	smctest.Pattern(sent, 0)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(sent); err == nil && rand.N(2) == 0 {
			c.CloseWrite()
		}
	})
	buf := make([]byte, 8<<10)
	for at := 0; at < size; {
		n, err := c.Read(buf)
		if err := smctest.CheckPattern(buf[:n], uint64(at)); err != nil {
			t.Errorf("%v: %v", c.Mode(), err)
			break
		}
		if at += n; err != nil || rand.N(40) == 0 {
			break
		}
	}
	c.Close()
	wg.Wait()
}
