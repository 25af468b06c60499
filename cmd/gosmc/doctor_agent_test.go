package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/port"
)

// TestDoctorAgent names an agent that has ended, one of another version, one that serves another control
// group, and none where one is needed. An agent that answers is no finding.
func TestDoctorAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: an agent")
	}
	environ := runEnviron(t)
	wantOnly(t, doctorOf(t, append(environ, "GOSMC_UEIDS=DOCTOR.TEST")), "smc-r: ", "no peer is configured, and there is no agent", "-> docs/smcr.md")

	socket := filepath.Join(t.TempDir(), "left")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	wantOnly(t, doctorOf(t, append(environ, port.EnvSocket+"="+socket)), "agent: ", "has ended, as if it was killed", "-> sudo systemctl restart gosmc-agent")

	old := filepath.Join(t.TempDir(), "old")
	if l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: old, Net: "unixpacket"}); err != nil {
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
			c.Write([]byte(`{"version":1,"status":{"version":"v0.0.1\u001b"}}`))
			c.Close()
		}
	}()
	wantOnly(t, doctorOf(t, append(environ, port.EnvSocket+"="+old)), "agent: ", "another version than this command: v0.0.1?, not ", "-> sudo systemctl restart gosmc-agent")

	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skip(err)
	}
	withAgent(t, "--no-port")
	environ = runEnviron(t)
	if r := doctorOf(t, environ); !r.Healthy {
		t.Errorf("with an agent: %q", r.bad())
	}
	// Out of the agent's.
	if err := os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		t.Fatal(err)
	}
	wantOnly(t, doctorOf(t, environ), "agent: The agent serves the control group ", "in which this program is not", "-> start the agent without --cgroup")
}
