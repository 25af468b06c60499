package host

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// TestBurst dials more connections at once than the messages about them fit the socket buffer
// between two hosts: none may fail or have to wait.
func TestBurst(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server := newTestHost(t, Config{Dir: dir, ReadBuffer: minBuffer})
	client := newTestHost(t, Config{Dir: dir, ReadBuffer: minBuffer})
	l := mustListen(t, server, "127.0.0.1:0")
	checkServes(t, client, l)
	const count = 1400 // some 1000 at a time are taken, and the others told so
	var wg sync.WaitGroup
	wg.Go(func() {
		for range count {
			s := mustAccept(t, l)
			go func() {
				defer s.Close()
				io.Copy(s, s)
			}()
		}
	})
	outcomes := make(map[string]int)
	var mu sync.Mutex
	ready := make(chan struct{})
	for range count {
		wg.Go(func() {
			<-ready
			start := time.Now()
			c, err := client.Dial(boundedContext(t), "tcp", l.Addr().String(), DialOptions{})
			if err != nil {
				t.Errorf("after %v: Dial = %v", time.Since(start), err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			if err := echo(c); err != nil {
				t.Error(err)
			}
			mu.Lock()
			outcomes[c.Mode().String()+" "+c.Reason().Tag]++
			mu.Unlock()
		})
	}
	close(ready)
	wg.Wait()
	t.Log(outcomes)
}
