package config

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// TestFollow changes the file of a program that runs: what it takes over, and what it leaves.
func TestFollow(t *testing.T) {
	path := write(t, "listen-port 80\n")
	f, s, err := Follow()
	if err != nil || len(s.Listen.Ports) != 1 {
		t.Fatalf("Follow = %+v, %v", s, err)
	}
	server := netip.MustParseAddrPort("127.0.0.1:81")
	refuses := func() string {
		p, err := s.PolicyFor(Filter{}, Filter{}, "")
		if err != nil {
			t.Fatal(err)
		}
		return p.Listen.Refuses(server)
	}
	for _, step := range []struct {
		text         string
		changes      bool
		err, refuses string // parts
	}{
		{"listen-port 80\nlisten-port 81\n", true, "", ""},
		{"listen-port 80\nlisten-port eighty\n", false, ":2: listen-port", ""},
		{"smc off\n", true, "", whyOff},
		{"", true, "", ""},
		{"listen-port !81\n", true, "", "port 81 is refused"},
	} {
		if err := os.WriteFile(path+"~", []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
		changed := false
		look := func() error { return f.Look(0, func(now *Settings) { s, changed = *now, true }) }
		err := look()
		if changed != step.changes || (err == nil) != (step.err == "") || err != nil && !strings.Contains(err.Error(), step.err) {
			t.Errorf("of %q: changed %t, error %v; want %t, %q", step.text, changed, err, step.changes, step.err)
		}
		if got := refuses(); !strings.Contains(got, step.refuses) || (got == "") != (step.refuses == "") {
			t.Errorf("after %q the policy says %q, want %q", step.text, got, step.refuses)
		}
		if _, err := f.State(); (err == nil) != (step.err == "") {
			t.Errorf("State after %q: %v", step.text, err)
		}
		changed = false
		if err := look(); err != nil || changed {
			t.Errorf("the second look at %q: %v, changed %t", step.text, err, changed)
		}
	}
	if err := f.Look(time.Hour, nil); err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Look(time.Hour, func(*Settings) { t.Error("the file was looked at too early") }); err != nil {
		t.Error(err)
	}
}

// TestCopied has the file count, and not a variable that 'gosmc run' has copied from it. A variable
// that somebody has set since counts.
func TestCopied(t *testing.T) {
	write(t, "listen-port 82\nmemory 2MiB\n")
	environ := []string{"GOSMC_LISTEN_PORTS=80,81", "GOSMC_MEMORY=1048576"}
	name, value, _ := strings.Cut(CopiedVariable(environ, []string{ListenPort, Memory, SMC}), "=")
	t.Setenv(name, value)
	t.Setenv("GOSMC_LISTEN_PORTS", "80,81")
	t.Setenv("GOSMC_MEMORY", "4096")
	s, err := Load()
	if err != nil || strings.Join(s.Listen.Ports, " ") != "82" || s.Memory != 4096 || Set(ListenPort) || !Set(Memory) {
		t.Errorf("Load = %+v, %v; want listen-port of the file, and memory of the environment", s, err)
	}
	if Source(ListenPort) != Path() || Source(Memory) != "$GOSMC_MEMORY" {
		t.Errorf("sources are %s and %s", Source(ListenPort), Source(Memory))
	}
	environment := map[string]string{name: value, "GOSMC_LISTEN_PORTS": "80,81", EnvFile: Path()}
	p := ServerPolicy(func(name string) string { return environment[name] })
	if why := p.Listen.Refuses(netip.MustParseAddrPort("127.0.0.1:80")); !strings.Contains(why, "not among listen-port 82") {
		t.Errorf("ServerPolicy refuses port 80 with %q", why)
	}
	environment["GOSMC_LISTEN_PORTS"] = "80"
	p = ServerPolicy(func(name string) string { return environment[name] })
	if why := p.Listen.Refuses(netip.MustParseAddrPort("127.0.0.1:80")); why != "" {
		t.Errorf("ServerPolicy with a variable refuses port 80 with %q", why)
	}
}

// TestNarrower compares lists by what they allow.
func TestNarrower(t *testing.T) {
	for _, tt := range []struct {
		list, than string
		want       bool
	}{
		{"", "", true}, {"80", "", true}, {"!80", "", true}, {"", "80", false}, {"80", "80 81", true}, {"82", "80 81", false},
		{"80 !81", "80", true}, {"80", "80 !81", false}, {"any", "80", false}, {"80", "any", true}, {"", "any", true}, {"none", "80", true}, {"!80", "80", false},
	} {
		if got := Narrower(strings.Fields(tt.list), strings.Fields(tt.than)); got != tt.want {
			t.Errorf("Narrower(%q, %q) = %t", tt.list, tt.than, got)
		}
	}
}
