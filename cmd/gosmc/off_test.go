package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/config"
)

// TestOff has programs that run make TCP connections after 'gosmc off --now', keep the one that has left TCP, and leave TCP again after 'gosmc on'.
func TestOff(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	environ := runEnviron(t)
	dir := strings.TrimPrefix(environ[len(environ)-1], "GOSMC_DIR=")
	file := filepath.Join(t.TempDir(), "gosmc.conf")
	environ = append(environ[:len(environ):len(environ)], config.EnvFile+"="+file, config.EnvDisabled+"=")
	_, port := startServer(t, runCommand(t, environ, python, "-c", echoProgram))
	connect := func() *talker { return startTalker(t, runCommand(t, environ, python, "-c", echoProgram, port)) }
	ends := func(where string, want int) {
		t.Helper()
		if got := movedModes(t, environ, port); len(got) != want {
			t.Errorf("%s: %d ends have left TCP, want %d", where, len(got), want)
		}
	}
	gosmcDoes := func(want string, code int, args ...string) {
		t.Helper()
		if out, got := gosmcIn(t, environ, args...); got != code || !strings.Contains(out, want) {
			t.Errorf("gosmc %q = %d, want %d and %q in\n%s", args, got, code, want, out)
		}
	}

	old := connect()
	old.exchange(t, "before")
	ends("before", 2)

	gosmcDoes("programs that start from now on", exitOK, "off", "--dir", dir)
	if text, err := os.ReadFile(file); err != nil || string(text) != "smc off\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if err := os.Remove(file); err != nil { // so that only the directory is left to keep programs from it
		t.Fatal(err)
	}
	gosmcDoes(dir+": switched off for programs that run.", exitOK, "off", "--now", "--dir", dir)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	gosmcDoes("'gosmc on' switches it on", exitFailure, "info")
	gosmcDoes("'gosmc on' switches it on", exitFellBack, "run", "--explain", "127.0.0.1:"+port)
	during := connect()
	during.exchange(t, "during")
	old.exchange(t, "still there")
	ends("switched off", 2)

	gosmcDoes(dir+": switched on for programs that run.", exitOK, "on", "--dir", dir)
	after := connect()
	after.exchange(t, "after")
	ends("switched on", 4)
	during.exchange(t, "still TCP")
	out, code := gosmcIn(t, environ, "on", "--json", "--dir", dir)
	var r offReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || len(r.Directories) != 1 || r.Directories[0].Changed || r.File != file {
		t.Errorf("on --json = %d, %+v, %v", code, r, err)
	}
}

// TestOffLibrary has the same hold for programs with package smc that run: a host that has a connection, and a listener.
func TestOffLibrary(t *testing.T) {
	dir := ownRunDir(t)
	ownConfig(t)
	server := start(t, "listen", "--echo", "--keep", "--json", "-v", "127.0.0.1:0")
	addr := server.addr()
	host, err := smc.NewHost(&smc.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	dial := func(where string, want smc.Mode) *smc.Conn {
		t.Helper()
		c, err := (&smc.Dialer{Host: host}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if mode := c.State().Mode; mode != want {
			t.Errorf("%s: %v, want %v", where, mode, want)
		}
		echo(t, c, where)
		return c
	}
	old := dial("before", smc.ModeSMCD)
	if got := gosmc(t, "", "off", "--now", "--dir", dir); got.code != exitOK {
		t.Fatalf("off --now = %+v", got)
	}
	during := dial("switched off", smc.ModeTCP)
	echo(t, old, "still there")
	if got := gosmc(t, "", "on", "--dir", dir); got.code != exitOK {
		t.Fatalf("on = %+v", got)
	}
	dial("switched on", smc.ModeSMCD)
	echo(t, during, "still TCP")
}

func echo(t *testing.T, c *smc.Conn, text string) {
	t.Helper()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	got := make([]byte, len(text))
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Errorf("sent %q, got %q, %v", text, got, err)
	}
}

// TestWriteSwitch has the rest of the file stay.
func TestWriteSwitch(t *testing.T) {
	path := ownConfig(t)
	for _, tt := range []struct {
		before string
		off    bool
		want   string
	}{
		{"", true, "smc off\n"},
		{"# x\nsmc on\nueid A\n", true, "# x\nueid A\nsmc off\n"},
		{"smc no\n", true, "smc no\nsmc off\n"},
		{"smc off\nueid A\nsmc 0\n", false, "ueid A\n"},
		{"smc on\n", false, "smc on\n"},
	} {
		if err := os.WriteFile(path, []byte(tt.before), 0o600); err != nil {
			t.Fatal(err)
		}
		err := writeSwitch(tt.off)
		if got, _ := os.ReadFile(path); err != nil || string(got) != tt.want {
			t.Errorf("writeSwitch(%v) of %q makes %q, %v; want %q", tt.off, tt.before, got, err, tt.want)
		}
	}
}

// TestExplainLibrary says of a server with package smc what it is, as run --explain and doctor do.
func TestExplainLibrary(t *testing.T) {
	dir := ownRunDir(t)
	ownConfig(t)
	t.Setenv("GOSMC_DIR", dir)
	addr := start(t, "listen", "--echo", "--keep", "--json", "-v", "127.0.0.1:0").addr()
	for _, args := range [][]string{{"run", "--explain", addr}, {"doctor", addr}} {
		got := gosmc(t, "", args...)
		if got.code != exitOK || !strings.Contains(got.stdout, "it uses package smc, and takes connections of 'gosmc run'") ||
			strings.Contains(got.stdout, "was started by") {
			t.Errorf("gosmc %q = %+v", args, got)
		}
	}
}
