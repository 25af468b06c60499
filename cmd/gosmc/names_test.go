package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/pnet"
)

// ownConfig gives the test a configuration file of its own, and returns its path.
func ownConfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	t.Setenv(config.EnvFile, path)
	for _, name := range config.Variables {
		t.Setenv(name, "")
	}
	return path
}

// Names are added, shown and deleted, each command with its exit status and its output.
func TestNames(t *testing.T) {
	path := ownConfig(t)
	for _, tt := range []struct {
		args string
		code int
		says string // on standard output, or on standard error
	}{
		{"ueid", exitOK, ""},
		{"seid disable", exitFailure, "without one, the system EID cannot be disabled"},
		{"ueid add B.1", exitOK, ""},
		{"ueid add A.1", exitOK, ""},
		{"ueid add A.1", exitFailure, path + " has ueid A.1 already"},
		{"ueid add a", exitUsage, "only capital letters are allowed"},
		{"ueid add", exitUsage, "ueid add takes 1 argument, but got 0"},
		{"ueid sub", exitUsage, `ueid has no command "sub", but add, `},
		{"ueid show", exitOK, "B.1\nA.1\n"},
		{"ueid --json", exitOK, path},
		{"seid", exitOK, "[enabled]\n"},
		{"seid disable", exitOK, ""},
		{"seid show", exitOK, "[disabled]\n"},
		{"seid enable", exitOK, ""},
		{"seid --json", exitOK, `"enabled": true`},
		{"pnet add NET1 lo", exitOK, ""},
		{"pnet add NET2 lo", exitFailure, "has NET1 for lo already"},
		{"pnet add NET1 absent0", exitOK, ""},
		{"pnet add net eth9", exitUsage, "only capital letters are allowed"},
		{"pnet", exitOK, "NET1     absent0  there is no such interface here\n"},
		{"pnet --json", exitOK, `"net_dev": "lo"`},
		{"pnet del NET2", exitFailure, path + " has no pnet NET2"},
		{"pnet del NET1", exitOK, ""},
		{"ueid del B.1", exitOK, ""},
		{"ueid", exitOK, "A.1\n"},
		{"ueid flush", exitOK, ""},
		{"ueid", exitOK, ""},
	} {
		got := gosmc(t, "", strings.Fields(tt.args)...)
		said := got.stdout + got.stderr
		if got.code != tt.code || !strings.Contains(said, tt.says) || tt.says == "" && said != "" {
			t.Errorf("gosmc %s = %d, %q, %q, want %d, %q", tt.args, got.code, got.stdout, got.stderr, tt.code, tt.says)
		}
	}
	// A file that is not understood is left as it is.
	const broken = "ueid A\nnonsense\n"
	if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"ueid add B", "ueid"} {
		if got := gosmc(t, "", strings.Fields(args)...); got.code != exitFailure || !strings.Contains(got.stderr, path+`:2: unknown word "nonsense"`) {
			t.Errorf("gosmc %s with a broken file = %d, %q", args, got.code, got.stderr)
		}
	}
	if got := gosmc(t, "", "info").stdout; !strings.Contains(got, "left out: "+path+`:2: unknown word "nonsense"`) {
		t.Errorf("gosmc info with a broken file shows\n%s", got)
	}
	if text, err := os.ReadFile(path); string(text) != broken || err != nil {
		t.Errorf("the broken file is %q now, %v", text, err)
	}
	full := strings.Repeat("ueid X\n", pnet.MaxUEIDs)
	if err := os.WriteFile(path, []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := gosmc(t, "", "ueid", "add", "ONE.MORE"); got.code != exitFailure || !strings.Contains(got.stderr, "the most that a host may have") {
		t.Errorf("gosmc ueid add to 8 = %d, %q", got.code, got.stderr)
	}
}

// The help is right about file and environment: programs that set nothing themselves have those
// values.
func TestConfigOfPrograms(t *testing.T) {
	path := ownConfig(t)
	if err := os.WriteFile(path, []byte("ueid GOSMC.FILE\npeer 127.0.0.0/8\nbad line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	help := gosmc(t, "", "ueid", "--help").stdout
	for word, name := range config.Variables {
		if !strings.Contains(help, "\n  "+word+" ") || !strings.Contains(help, name) {
			t.Errorf("ueid --help has no %s or no %s", word, name)
		}
	}
	ueids := func(c smc.Config) []string {
		t.Helper()
		c.Dir = t.TempDir()
		h, err := smc.NewHost(&c)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		l, err := (&smc.ListenConfig{Host: h}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f := gatherFlags{dir: c.Dir}
		if g := f.gather(t.Context()); len(g.Hosts) == 1 {
			return g.Hosts[0].UEIDs
		}
		t.Fatal("no host is seen")
		return nil
	}
	for _, tt := range []struct {
		env    string
		config smc.Config
		want   []string
	}{
		{"", smc.Config{}, []string{"GOSMC.FILE"}},
		{"GOSMC.ENV", smc.Config{}, []string{"GOSMC.ENV"}},
		{"GOSMC.ENV", smc.Config{UEIDs: []string{"GOSMC.PROGRAM"}}, []string{"GOSMC.PROGRAM"}},
		{"TWICE,TWICE", smc.Config{}, []string{}}, // it is told to the logger
	} {
		t.Setenv(config.Variables[config.UEID], tt.env)
		if got := ueids(tt.config); !slices.Equal(got, tt.want) {
			t.Errorf("with GOSMC_UEIDS=%s and %q in the program: UEIDs %q, want %q", tt.env, tt.config.UEIDs, got, tt.want)
		}
	}
}
