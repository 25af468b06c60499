package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/smctest"
)

// startAgentProcess starts an agent in a process of its own, and returns a function that kills it.
func startAgentProcess(t *testing.T, flags ...string) (kill func()) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("/proc/self/exe", append([]string{"agent"}, flags...)...) // gosmc, by childOfTest
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	t.Cleanup(kill)
	for end := time.Now().Add(20 * time.Second); gosmc(t, "", "agent", "--status", flags[0], flags[1]).code != exitOK; {
		if time.Now().After(end) {
			kill()
			t.Fatalf("no agent answers: %s", stderr.String())
		}
	}
	return kill
}

// TestAgentSMCR has three hosts that know nothing of each other meet by TCP option 254: two of them share an address. The
// agent is killed, and started again, under their connections.
func TestAgentSMCR(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load eBPF programs")
	}
	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skip(err)
	}
	socket := filepath.Join(t.TempDir(), "socket")
	flags := []string{"--socket", socket, "--pins", filepath.Join(smctest.MountBPF(t), "gosmc"), "--cgroup", smctest.EnterCgroup(t, root)}
	t.Setenv(port.EnvSocket, socket)
	address := func() string { return fmt.Sprintf("127.%d.%d.%d", 2+rand.IntN(250), rand.IntN(250), 2+rand.IntN(250)) }
	newHost := func() *smc.Host { // each in a run directory of its own, or it would be SMC-D
		h, err := smc.NewHost(&smc.Config{Dir: t.TempDir(), UEIDs: []string{"GOSMC.TEST"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		return h
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	killed := startAgentProcess(t, slices.Concat(flags, []string{"--no-introduce"})...) // or it would be SMC-D
	servers, client := address(), newHost()
	from := &net.TCPAddr{IP: net.ParseIP(address())}
	type connection struct{ client, server *smc.Conn }
	connect := func(l *smc.Listener) (c connection) {
		t.Helper()
		var err error
		d := smc.Dialer{Host: client, LocalAddr: from}
		if c.client, err = d.DialContext(ctx, "tcp", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if c.server, err = l.AcceptSMC(); err != nil {
			t.Fatal(err)
		}
		for _, x := range []*smc.Conn{c.client, c.server} {
			t.Cleanup(func() { x.Close() })
			x.SetDeadline(time.Now().Add(time.Minute))
			if s := x.State(); s.Mode != smc.ModeSMCR {
				t.Fatalf("mode %v: %+v", s.Mode, s)
			}
		}
		return c
	}
	exchange := func(c connection) {
		t.Helper()
		text := bytes.Repeat([]byte("what is sent comes through "), 1+rand.IntN(20000))
		for _, way := range [][2]*smc.Conn{{c.client, c.server}, {c.server, c.client}} {
			go way[0].Write(text) // an error shows at the other end
			got := make([]byte, len(text))
			if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, text) {
				t.Fatalf("%d bytes: %v", len(text), err)
			}
		}
	}
	var list []connection
	var listeners []*smc.Listener
	for range 2 {
		l, err := (&smc.ListenConfig{Host: newHost()}).Listen(ctx, "tcp", servers+":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		listeners = append(listeners, l)
		list = append(list, connect(l))
	}
	all := func() {
		t.Helper()
		for _, c := range list {
			exchange(c)
		}
	}
	all()
	status := gosmc(t, "", append([]string{"agent", "--status"}, flags[:2]...)...)
	if n := strings.Count(status.stdout, servers+":4791"); n != 2 {
		t.Errorf("%d sockets of the servers, want 2: %s", n, status.stdout)
	}
	killed()
	all()
	list = append(list, connect(listeners[0]), connect(listeners[1])) // in the same link groups
	all()
	a := startAgent(t, slices.Concat(flags, []string{"--no-introduce"})...) // as above
	l, err := (&smc.ListenConfig{Host: newHost()}).Listen(ctx, "tcp", servers+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	list = append(list, connect(l))
	all()
	a.end(t)
	if got := gosmc(t, "", append([]string{"agent", "--detach"}, flags...)...); got != (outcome{}) {
		t.Errorf("detach: %+v", got)
	}
	all()
}
