package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/config"
)

// TestConfig shows, checks and changes a file.
func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gosmc.conf")
	text := "# mine\nmemory 1MiB\nmemory 2MiB # twice\nlisten-port 8000-8999\nlisten-port 9\n"
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, name := range config.Variables {
		t.Setenv(name, "")
	}
	t.Setenv(config.EnvFile, file)
	t.Setenv("GOSMC_RING_AFTER", "1MiB")
	t.Setenv(config.EnvDisabled, "")
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string // parts
	}{
		{"config", exitOK, "memory       2MiB         at start      " + file + ":3\n", ""},
		{"config show", exitOK, "ring-after   1MiB         at start      $GOSMC_RING_AFTER\n", ""},
		{"config show", exitOK, "listen-port  8000-8999 9  at once       " + file + ":4,5\n", ""},
		{"config show --effective", exitOK, "short-after      16                                             at once in package smc  default\n", ""},
		{"config show --memory 1GiB", exitOK, "memory       1GiB         at start      --memory\n", ""},
		{"config show --listen-port 1,2", exitOK, "listen-port  1 2    at once       --listen-port\n", ""},
		{"config --listen-port x", exitUsage, "", `--listen-port "x"`},
		{"config check", exitFailure, file + ":2: memory has no effect here: line 3 sets it again\n", "lines to mend: 1"},
		{"config check /nonexistent/x", exitFailure, "", "no such file"},
		{"config check a b", exitUsage, "", "takes one file"},
		{"config set memory 3MiB", exitOK, "", ""},
		{"config check", exitOK, file + ": every line is understood\n", ""},
		{"config set pnet NET1 eth1", exitOK, "", ""},
		{"config set memory", exitUsage, "", "takes a word and a value"},
		{"config set memory 1 2", exitUsage, "", "memory has one value, but got 2"},
		{"config set memory much", exitUsage, "", "memory"},
		{"config set memmory 1MiB", exitUsage, "", "did you mean memory?"},
		{"config set listen-port 80", exitOK, "", ""},
		{"config unset listen-port", exitOK, "", "gosmc: no listen-port without '!' is left"},
		{"config unset listen-port", exitFailure, "", "has no listen-port"},
		{"config unset x", exitUsage, "", `unknown word "x"`},
		{"config set smcr_max_conns_per_lgr 64", exitOK, "", ""},
		{"config show", exitOK, "smcr-conns  64", ""},
		{"config set net.smc.smcr_testlink_time 20", exitOK, "", ""},
		{"config show", exitOK, "smcr-keepalive  20s", ""},
		{"config set conns_per_lg 8", exitUsage, "", "16 to 255"},
		{"config set smcr_max_recv_wr 96", exitUsage, "", "cannot be set"},
		{"config unset conns_per_lg", exitOK, "", ""},
		{"config unset smcr-keepalive", exitOK, "", ""},
		{"config frob", exitUsage, "", `config has no command "frob"`},
	} {
		got := gosmc(t, "", strings.Fields(tt.args)...)
		if got.code != tt.code || !strings.Contains(got.stdout, tt.stdout) || !strings.Contains(got.stderr, tt.stderr) {
			t.Errorf("gosmc %s = %+v, want %d, %q, %q", tt.args, got, tt.code, tt.stdout, tt.stderr)
		}
	}
	b, err := os.ReadFile(file)
	info, _ := os.Stat(file)
	if err != nil || string(b) != "# mine\nmemory 3MiB\npnet NET1 eth1\n" || info.Mode() != 0o640 {
		t.Errorf("the file has %q, %v, mode %v", b, err, info.Mode())
	}
	if err := os.WriteFile(file, []byte("memory 1MiB\nlisten-prot 80\nsmc maybe\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := gosmc(t, "", "config", "check", file)
	slip := file + ":2: unknown word \"listen-prot\"; did you mean listen-port?\n"
	if got.code != exitFailure || strings.Count(got.stdout, "\n") != 2 || !strings.HasPrefix(got.stdout, slip) || !strings.Contains(got.stdout, file+":3: smc ") {
		t.Errorf("gosmc config check of a file with two faults = %+v", got)
	}
	var c configCheck
	if got := gosmc(t, "", "config", "check", "--json"); json.Unmarshal([]byte(got.stdout), &c) != nil || got.code != exitFailure || len(c.Problems) != 2 || c.Problems[0].Near != "listen-port" || c.Problems[0].Line != 2 || c.File != file {
		t.Errorf("gosmc config check --json = %+v", got)
	}
	if got := gosmc(t, "", "config", "set", "memory", "1MiB"); got.code != exitFailure || !strings.Contains(got.stderr, "mended by hand first") {
		t.Errorf("gosmc config set in such a file = %+v", got)
	}
	var r configReport
	if got := gosmc(t, "", "config", "show", "--effective", "--json"); json.Unmarshal([]byte(got.stdout), &r) != nil || len(r.Entries) != len(config.Words) || r.File != file || got.code != exitFailure {
		t.Errorf("gosmc config show --json of a file with two faults = %+v", got)
	}
	if got := config.Defaults[config.ShortAfter]; got != fmt.Sprint(admission.DefaultAfter) {
		t.Errorf("the default of short-after is told as %s, and is %d", got, admission.DefaultAfter)
	}
}

// TestConfigCompletion completes words and values of config set and unset.
func TestConfigCompletion(t *testing.T) {
	t.Setenv(config.EnvFile, os.DevNull)
	for args, want := range map[string][]string{
		"set smcr-v": {"smcr-v1"}, "set smcr-spread b": {"bytes"}, "unset list": {"listen-port", "listen-address"},
		"set smcr-v1 o": {"on", "off"}, "set listen-port a": {"any"}, "check /et": nil,
	} {
		got := gosmc(t, "", append([]string{"__completeNoDesc", "config"}, strings.Fields(args)...)...)
		lines := strings.Split(got.stdout, "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" || strings.HasPrefix(l, ":") })
		if !slices.Equal(lines, want) {
			t.Errorf("config %s completes %q, want %q", args, lines, want)
		}
	}
	if got := gosmc(t, "", "__completeNoDesc", "config", "check", ""); !strings.Contains(got.stdout, ":0") {
		t.Errorf("config check completes no files: %q", got.stdout)
	}
}
