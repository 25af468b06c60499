package host

import (
	"testing"

	"github.com/gosmc/smc/internal/conn"
)

// TestCountersByRole checks that a host counts connections, fallbacks and handshake times, and by the side that it had.
func TestCountersByRole(t *testing.T) {
	dir := t.TempDir()
	server, client, bare := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir, Disabled: true})
	l := mustListen(t, server, "127.0.0.1:0")
	for _, h := range []*Host{client, client, bare} {
		c, err := h.Dial(t.Context(), "tcp", l.Addr().String(), DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		s.Close()
	}
	smcd, tcp := conn.ModeSMCD.String(), conn.ModeTCP.String()
	for _, tt := range []struct {
		name                               string
		host                               *Host
		smcd, smcdServer, tcp, tcpServer   uint64
		fallbacks, serverFallbacks, shaken uint64
	}{
		{"server", server, 2, 2, 1, 1, 1, 1, 2},
		{"client", client, 2, 0, 0, 0, 0, 0, 2},
		{"disabled", bare, 0, 0, 1, 0, 1, 0, 0},
	} {
		k := tt.host.counters.Status()
		var fallbacks, serverFallbacks, shaken uint64
		for _, f := range k.Fallbacks {
			fallbacks += f.Count
			serverFallbacks += f.AsServer
		}
		for _, n := range k.HandshakeTimes.Counts {
			shaken += n
		}
		if k.Connections[smcd] != tt.smcd || k.AsServer[smcd] != tt.smcdServer || k.Connections[tcp] != tt.tcp || k.AsServer[tcp] != tt.tcpServer {
			t.Errorf("%s: connections %v, as server %v; want SMC-D %d and %d, TCP %d and %d", tt.name, k.Connections, k.AsServer,
				tt.smcd, tt.smcdServer, tt.tcp, tt.tcpServer)
		}
		if fallbacks != tt.fallbacks || serverFallbacks != tt.serverFallbacks {
			t.Errorf("%s: %d fallbacks, %d as server, want %d and %d", tt.name, fallbacks, serverFallbacks, tt.fallbacks, tt.serverFallbacks)
		}
		if shaken != tt.shaken || shaken > 0 && k.HandshakeTimes.Nanoseconds == 0 {
			t.Errorf("%s: %d handshake times of %d ns, want %d", tt.name, shaken, k.HandshakeTimes.Nanoseconds, tt.shaken)
		}
	}
}
