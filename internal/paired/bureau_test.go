package paired

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestBureauWaits has an agent that takes a connection and says nothing: whoever asks waits for it, as
// long as his context lasts, and nobody for the bureau's lock.
func TestBureauWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := &bureau{users: introduce.Users{Mode: introduce.ModeAny}}
	addresses := func() []string { return []string{path} }
	gid := wire.ISMGIDFromUUID([16]byte{15: 7})
	ctx, cancel := context.WithCancel(t.Context())
	reasons := make(chan clc.Diagnosis)
	for range 2 {
		go func() {
			_, why := b.get(ctx, addresses, gid)
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
	cancel()
	for range 2 {
		if why := <-reasons; why != clc.DiagNoAgent {
			t.Errorf("a question whose context is over hears %v, want %v", why, clc.DiagNoAgent)
		}
	}
	b.close()
	if _, why := b.get(t.Context(), addresses, gid); why != clc.DiagClosing {
		t.Errorf("a question of a bureau that is closed hears %v, want %v", why, clc.DiagClosing)
	}
}
