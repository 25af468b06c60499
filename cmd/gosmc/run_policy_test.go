package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/wire/clc"
)

// TestRunPolicy has programs that do not know us connect with policies on both sides: a connection
// that these refuse is TCP, and --explain says so beforehand.
func TestRunPolicy(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	t.Setenv(config.EnvDisabled, "")
	for _, tt := range []struct {
		name           string
		server, client []string // flags; PORT is the server's
		file           string   // configuration of both
		moved          bool
		why            string // that --explain has on the side of the client
	}{
		{"nothing said", nil, nil, "", true, "its supervisor answers"},
		{"listen-address", []string{"--listen-address", "!127.0.0.0/8"}, nil, "", false, "its own policy leaves the address out: address 127.0.0.1 is refused by listen-address !127.0.0.0/8"},
		{"another listen-address", []string{"--listen-address", "127.0.0.0/8,::1"}, nil, "", true, "its supervisor answers"},
		{"listen-port", []string{"--listen-port", "none"}, nil, "", false, "its own policy leaves the address out: port"},
		{"connect-port", nil, []string{"--connect-port", "!PORT"}, "", false, "is refused by connect-port !"},
		{"connect-port that is allowed", nil, []string{"--connect-port", "1,PORT"}, "", true, "its supervisor answers"},
		{"connect-address", nil, []string{"--connect-address", "10.0.0.0/8"}, "", false, "address 127.0.0.1 is not among connect-address 10.0.0.0/8"},
		{"program", nil, []string{"--program", "!python3"}, "", false, "program python3 is refused by program !python3"},
		{"another program", nil, []string{"--program", "!python"}, "", true, "its supervisor answers"},
		{"switched off", nil, []string{"--smc", "off"}, "", false, "SMC is switched off"},
		{"file", nil, nil, "connect-address none\n", false, "is not among connect-address none"},
		{"flag before file", nil, []string{"--connect-address", "any"}, "connect-address none\n", true, "its supervisor answers"},
		{"off in the file", nil, nil, "smc off\n", false, "SMC is switched off"},
		{"malformed file", nil, nil, "connect-port http\n", false, "is not among connect-port none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "gosmc.conf")
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			environ := append(runEnviron(t), config.EnvFile+"="+path)
			server := startTalker(t, runCommand(t, environ, append(tt.server, python, "-c", echoProgram)...))
			line, err := server.out.ReadString('\n')
			port, _, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if err != nil || !ok {
				t.Fatalf("the server says %q, %v", line, err)
			}
			var flags []string
			for _, f := range tt.client {
				flags = append(flags, strings.ReplaceAll(f, "PORT", port))
			}
			explain := runCommand(t, environ, append(flags, "--json", "--explain", "127.0.0.1:"+port, python)...)
			out, err := explain.Output()
			code := exitOK
			if e, ok := errors.AsType[*exec.ExitError](err); ok {
				code = e.ExitCode()
			}
			want := map[bool]int{true: exitOK, false: exitFellBack}[tt.moved]
			var r explainReport
			if err := json.Unmarshal(out, &r); err != nil || code != want || len(r.Servers) != 1 {
				t.Fatalf("--explain: status %d, %v, %s; want %d", code, err, out, want)
			}
			if last := r.Servers[0].Steps[len(r.Servers[0].Steps)-1]; last.OK != tt.moved || !strings.Contains(last.What, tt.why) {
				t.Errorf("--explain ends with %+v, want %t, %q", last, tt.moved, tt.why)
			}
			client := startTalker(t, runCommand(t, environ, append(flags, python, "-c", echoProgram, port)...))
			client.exchange(t, "hello")
			moved := 0
			for _, mode := range movedModes(t, environ, port) {
				if mode == modeUnix {
					moved++
				}
			}
			if moved != 2*map[bool]int{true: 1}[tt.moved] {
				t.Errorf("%d ends were moved, want it: %t", moved, tt.moved)
			}
			reason := control.ReasonCode(clc.DiagNotAllowed).String()
			if strings.HasPrefix(tt.why, "SMC is switched off") {
				reason = control.ReasonCode(clc.DiagDisabled).String()
			}
			reasons := tcpReasons(t, environ, port)
			if !tt.moved && len(reasons) != 2 && !strings.HasPrefix(tt.why, "SMC is switched off") {
				t.Errorf("ss has %q, want both ends", reasons)
			}
			for _, got := range reasons {
				if tt.moved || !strings.HasPrefix(got, reason) {
					t.Errorf("ss says of TCP %q, want %s", got, reason)
				}
			}
		})
	}
}

// TestRunRequireOff has a program that is switched off run as it is, unless it has to be moved.
func TestRunRequireOff(t *testing.T) {
	environ := append(runEnviron(t), config.EnvDisabled+"=1")
	if out, err := runCommand(t, environ, "sh", "-c", "echo $GOSMC_RUN,$GOSMC_DISABLED").CombinedOutput(); err != nil || string(out) != ",1\n" {
		t.Errorf("with GOSMC_DISABLED=1 the program says %q, %v", out, err)
	}
	out, err := runCommand(t, environ, "--require", "sh", "-c", "exit 0").CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != exitFellBack || !strings.Contains(string(out), "SMC is switched off (smc: $GOSMC_DISABLED)") {
		t.Errorf("with --require: %v, %q", err, out)
	}
}

// TestRunPolicyErrors has flags that are not understood be errors, and lines of the file be told.
func TestRunPolicyErrors(t *testing.T) {
	path := ownConfig(t)
	if err := os.WriteFile(path, []byte("listen-port http\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--smc", "maybe", "true"}, exitUsage, `--smc "maybe": want on or off`},
		{[]string{"--listen-port", "http", "true"}, exitUsage, `--listen-port "http": want a port`},
		{[]string{"--connect-address", "localhost", "true"}, exitUsage, `--connect-address "localhost": want an address`},
		{[]string{"--memory", "much", "true"}, exitUsage, "--memory"},
		{[]string{"--explain", "nowhere"}, exitUsage, "want HOST:PORT"},
		{[]string{"--explain", "127.0.0.1:0"}, exitUsage, "want the port"},
		{[]string{"--explain", "127.0.0.1:1", "no-such-program"}, exit.NotFound, "not found"},
		{[]string{"--json", "true"}, exitUsage, "--json is for --explain"},
		{[]string{"--user", "nobody", "true"}, exitUsage, "--user is for --explain"},
		{[]string{"--explain", "127.0.0.1:1", "--user", "no such user"}, exitUsage, "there is no such user"},
		{[]string{"--explain", "127.0.0.1:1"}, exitFellBack, path + `:1: listen-port "http"`},
	} {
		if got := gosmc(t, "", append([]string{"run"}, tt.args...)...); got.code != tt.code || !strings.Contains(got.stderr, tt.text) {
			t.Errorf("run %q = %d, %q; want %d, %q", tt.args, got.code, got.stderr, tt.code, tt.text)
		}
	}
}
