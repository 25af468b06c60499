package supervisor

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/wire/clc"
)

// TestBureauWaits has an agent that takes a connection and says nothing: whoever asks waits for it, and
// nobody for the bureau's lock. A bureau that is closed ends the wait.
func TestBureauWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv(port.EnvSocket, path)
	b := &bureau{users: introduce.Users{Mode: introduce.ModeAny}}
	reasons := make(chan clc.Diagnosis)
	for range 2 {
		go func() {
			_, why := b.get()
			reasons <- why
		}()
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !b.mu.TryLock() {
		t.Fatal("the lock is taken while the agent is waited for")
	}
	b.mu.Unlock()
	b.close()
	for range 2 {
		if why := <-reasons; why != clc.DiagClosing && why != clc.DiagNoAgent {
			t.Errorf("a question that waits hears %v", why)
		}
	}
	if _, why := b.get(); why != clc.DiagClosing {
		t.Errorf("a question afterwards hears %v, want %v", why, clc.DiagClosing)
	}
}
