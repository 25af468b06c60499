package main

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/port"
)

// TestMetricsAgent has metrics ask the agent with the socket that it is told, and nobody else.
func TestMetricsAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			c.Read(make([]byte, port.MaxRequest))
			c.Write([]byte(`{"version":1,"status":{}}`))
			c.Close()
		}
	}()
	t.Setenv(port.EnvSocket, socket+"-of-another")
	dir := t.TempDir()
	if takeSnapshot(t.Context(), dir, socket).Agent == nil {
		t.Error("the agent is not seen by its socket")
	}
	if takeSnapshot(t.Context(), dir, defaultAgentSocket()).Agent != nil {
		t.Error("an agent is seen where there is none")
	}
}
