package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) {
	smctest.OwnNetwork()
	os.Unsetenv(port.EnvSocket)
	smctest.Apart()
	smctest.RunChild(programs)
	goleak.VerifyTestMain(m)
}

// A place is a directory with an agent's socket, and one for pins.
type place struct {
	dir, pins string
	agent     *Agent
}

// newPlace starts an agent that shares ports. It is closed, and its pins are removed, with the
// test.
func newPlace(t *testing.T, change ...func(*Config)) *place {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load eBPF programs")
	}
	p := &place{dir: t.TempDir()}
	for _, dir := range []string{p.dir, filepath.Dir(p.dir)} { // other users connect
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.pins = filepath.Join(smctest.MountBPF(t), "gosmc")
	p.start(t, change...)
	t.Cleanup(func() { p.agent.Close() })
	return p
}

// start starts an agent in the place of the one before.
func (p *place) start(t *testing.T, change ...func(*Config)) {
	t.Helper()
	if p.agent != nil {
		if err := p.agent.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{Socket: filepath.Join(p.dir, port.SocketName), Pins: p.pins, NoOption: true, NoPairing: true}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if p.agent, err = Start(cfg); err != nil {
		t.Fatal(err)
	}
}

// claim asks for a socket on the thread that run calls it on.
func (p *place) claim(t *testing.T, run func(func()), addr netip.Addr) *port.Grant {
	t.Helper()
	var g *port.Grant
	var err error
	run(func() { g, err = port.Claim(context.Background(), p.dir, addr, 0) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// status asks the agent.
func (p *place) status(t *testing.T) (s Status) {
	t.Helper()
	answer, _, err := port.Ask(context.Background(), port.Paths(p.dir), port.Request{Request: "status"})
	if err == nil {
		err = json.Unmarshal(answer.Status, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sockets returns how many there are on all ports.
func (p *place) sockets(t *testing.T) (n int) {
	t.Helper()
	for _, port := range p.status(t).Ports {
		n += len(port.Sockets)
	}
	return n
}

// refused checks that an error is an agent's answer in words.
func refused(t *testing.T, err error) {
	t.Helper()
	var r *port.RefusedError
	if !errors.As(err, &r) {
		t.Errorf("error %v, want a refusal", err)
		return
	}
	t.Log(err)
}

func here(f func()) { f() }
