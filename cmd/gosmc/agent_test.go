package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/smctest"
)

// agentPlace makes a control group, a file system for pins, and a path for a socket, and returns the flags that name them.
func agentPlace(t *testing.T) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load eBPF programs")
	}
	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skip(err)
	}
	group, err := os.MkdirTemp(root, "gosmc-test-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.Remove(group) })
	return []string{"--socket", filepath.Join(t.TempDir(), "socket"), "--pins", filepath.Join(smctest.MountBPF(t), "gosmc"), "--cgroup", group}
}

// A runningAgent is the verb, on a goroutine.
type runningAgent struct {
	stop   context.CancelFunc
	done   chan int
	stderr bytes.Buffer
}

func startAgent(t *testing.T, flags ...string) *runningAgent {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &runningAgent{stop: cancel, done: make(chan int, 1)}
	go func() {
		a.done <- run(ctx, append([]string{"agent"}, flags...), strings.NewReader(""), &bytes.Buffer{}, &a.stderr)
	}()
	for end := time.Now().Add(20 * time.Second); gosmc(t, "", "agent", "--status", flags[0], flags[1]).code != exitOK; {
		select {
		case code := <-a.done:
			t.Fatalf("agent ended with %d: %s", code, a.stderr.String())
		default:
		}
		if time.Now().After(end) {
			t.Fatal("no agent answers")
		}
	}
	t.Cleanup(cancel)
	return a
}

func (a *runningAgent) end(t *testing.T) {
	t.Helper()
	a.stop()
	if code := <-a.done; code != exitOK {
		t.Errorf("agent ended with %d: %s", code, a.stderr.String())
	}
}

// TestAgent starts an agent, asks it, starts the next one, and takes the programs away.
func TestAgent(t *testing.T) {
	flags := agentPlace(t)
	socket := flags[:2]
	status := func() (r agentReport) {
		t.Helper()
		got := gosmc(t, "", append([]string{"agent", "--status", "--json"}, socket...)...)
		if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != exitOK {
			t.Fatalf("%+v: %v", got, err)
		}
		return r
	}
	a := startAgent(t, flags...)
	if r := status(); r.Schema != jsonSchema || r.PID != os.Getpid() || !r.Option.Attached || r.Option.Cgroup != flags[5] || r.Ports == nil {
		t.Errorf("status %+v", r)
	}
	if got := gosmc(t, "", append([]string{"agent", "--status"}, socket...)...); !strings.Contains(got.stdout, "attached to "+flags[5]) {
		t.Errorf("status %+v", got)
	}
	if got := gosmc(t, "", append([]string{"agent"}, flags...)...); got.code != exitFailure || !strings.Contains(got.stderr, "another one serves") {
		t.Errorf("a second agent: %+v", got)
	}
	a.end(t)
	if got := gosmc(t, "", append([]string{"agent", "--status"}, socket...)...); got.code != exitFailure || !strings.Contains(got.stderr, "no agent") {
		t.Errorf("status without an agent: %+v", got)
	}
	a = startAgent(t, flags...)
	for range 2 {
		if got := gosmc(t, "", append([]string{"agent", "--detach"}, flags...)...); got != (outcome{}) {
			t.Errorf("detach: %+v", got)
		}
		if r := status(); r.Option.Attached {
			t.Error("still attached")
		}
	}
	if got := gosmc(t, "", append([]string{"agent", "--status"}, socket...)...); !strings.Contains(got.stdout, "detached") {
		t.Errorf("status %+v", got)
	}
	a.end(t)
	if !strings.Contains(a.stderr.String(), `"taken over"=true`) {
		t.Errorf("the second agent has taken nothing over: %s", a.stderr.String())
	}
}

// TestAgentErrors runs the agent without a thing that it needs: the error names it, and nothing is
// left behind.
func TestAgentErrors(t *testing.T) {
	for _, args := range []string{"--status --detach", "--no-option --no-pairing --no-port", "--user nobody-of-this-name", "--group nobody-of-this-name", "--frob", "argument"} {
		if got := gosmc(t, "", append([]string{"agent"}, strings.Fields(args)...)...); got.code != exitUsage || got.stderr == "" {
			t.Errorf("agent %s: %+v", args, got)
		}
	}
	flags := agentPlace(t)
	for _, tt := range []struct {
		flag  int // that is wrong
		value string
		want  string
	}{
		{5, t.TempDir(), "no control group"},
		{5, "/nowhere", "no such file"},
		{3, filepath.Join(t.TempDir(), "pins"), "type bpf"},
		{3, "/nowhere/pins", "no such file"},
		{1, "/nowhere/socket", "no such file"},
	} {
		wrong := append([]string{"agent"}, flags...)
		wrong[1+tt.flag] = tt.value
		if got := gosmc(t, "", wrong...); got.code != exitFailure || !strings.Contains(got.stderr, tt.want) {
			t.Errorf("with %s: %+v, want %q", tt.value, got, tt.want)
		}
	}
	if got := gosmc(t, "", "agent", "--detach", "--pins", "/nowhere/pins"); got.code != exitOK {
		t.Errorf("detach where nothing is: %+v", got)
	}
}
