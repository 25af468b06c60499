package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRules(t *testing.T) {
	for _, tt := range []struct {
		name   string
		filter Filter
		server string
		why    string // "" if it may leave TCP
	}{
		{"nothing said", Filter{}, "192.0.2.1:80", ""},
		{"port", Filter{Ports: []string{"80"}}, "192.0.2.1:80", ""},
		{"another port", Filter{Ports: []string{"80", "81"}}, "192.0.2.1:82", "port 82 is not among connect-port 80 81"},
		{"first of a range", Filter{Ports: []string{"8000-8999"}}, "192.0.2.1:8000", ""},
		{"last of a range", Filter{Ports: []string{"8000-8999"}}, "192.0.2.1:8999", ""},
		{"below a range", Filter{Ports: []string{"8000-8999"}}, "192.0.2.1:7999", "port 7999 is not among connect-port 8000-8999"},
		{"above a range", Filter{Ports: []string{"8000-8999"}}, "192.0.2.1:9000", "port 9000 is not among connect-port 8000-8999"},
		{"exception", Filter{Ports: []string{"!22"}}, "192.0.2.1:22", "port 22 is refused by connect-port !22"},
		{"no exception", Filter{Ports: []string{"!22"}}, "192.0.2.1:23", ""},
		{"exception after what has it", Filter{Ports: []string{"1-1024", "!22"}}, "192.0.2.1:22", "port 22 is refused by connect-port !22"},
		{"exception before what has it", Filter{Ports: []string{"!22", "1-1024"}}, "192.0.2.1:22", "port 22 is refused by connect-port !22"},
		{"any", Filter{Ports: []string{"any"}}, "192.0.2.1:1", ""},
		{"none", Filter{Ports: []string{"none"}}, "192.0.2.1:1", "port 1 is not among connect-port none"},
		{"address", Filter{Addresses: []string{"192.0.2.1"}}, "192.0.2.1:80", ""},
		{"another address", Filter{Addresses: []string{"192.0.2.1"}}, "192.0.2.2:80", "address 192.0.2.2 is not among connect-address 192.0.2.1"},
		{"prefix", Filter{Addresses: []string{"192.0.2.128/25"}}, "192.0.2.255:80", ""},
		{"outside of a prefix", Filter{Addresses: []string{"192.0.2.128/25"}}, "192.0.2.127:80", "address 192.0.2.127 is not among connect-address 192.0.2.128/25"},
		{"mapped", Filter{Addresses: []string{"!127.0.0.0/8"}}, "[::ffff:127.0.0.1]:80", "address 127.0.0.1 is refused by connect-address !127.0.0.0/8"},
		{"IPv6", Filter{Addresses: []string{"2001:db8::/32"}}, "[2001:db8::7]:80", ""},
		{"IPv6 with a zone", Filter{Addresses: []string{"!fe80::/10"}}, "[fe80::1%eth0]:80", "address fe80::1 is refused by connect-address !fe80::/10"},
		{"IPv4 for IPv6", Filter{Addresses: []string{"0.0.0.0/0"}}, "[::1]:80", "address ::1 is not among connect-address 0.0.0.0/0"},
		{"any address", Filter{Addresses: []string{"any", "!::1"}}, "127.0.0.1:80", ""},
		{"no address", Filter{Addresses: []string{"none"}}, "127.0.0.1:80", "address 127.0.0.1 is not among connect-address none"},
		{"both have to allow", Filter{Ports: []string{"80"}, Addresses: []string{"127.0.0.1"}}, "127.0.0.1:81", "port 81 is not among connect-port 80"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := NewPolicy(Filter{}, tt.filter, nil, "me")
			if err != nil {
				t.Fatal(err)
			}
			server := netip.MustParseAddrPort(tt.server)
			if got := p.Connect.Refuses(server); got != tt.why {
				t.Errorf("Refuses(%v) = %q, want %q", server, got, tt.why)
			}
			if got := p.Listen.Refuses(server); got != "" {
				t.Errorf("for a listener, Refuses(%v) = %q, want none", server, got)
			}
		})
	}
}

// A listener is refused as a whole only if each of its connections is.
func TestRefusesListener(t *testing.T) {
	p, err := NewPolicy(Filter{Ports: []string{"80"}, Addresses: []string{"127.0.0.1"}}, Filter{}, nil, "me")
	if err != nil {
		t.Fatal(err)
	}
	for local, refused := range map[string]bool{
		"0.0.0.0:80": false, "[::]:80": false, "127.0.0.1:80": false, "127.0.0.2:80": true, "0.0.0.0:81": true, "[::1]:80": true,
	} {
		if why := p.Listen.RefusesListener(netip.MustParseAddrPort(local)); (why != "") != refused {
			t.Errorf("RefusesListener(%s) = %q, want one: %v", local, why, refused)
		}
	}
}

func TestPrograms(t *testing.T) {
	for _, tt := range []struct {
		list []string
		name string
		why  string
	}{
		{nil, "nginx", ""},
		{[]string{"nginx", "redis-server"}, "redis-server", ""},
		{[]string{"nginx"}, "curl", "program curl is not among program nginx"},
		{[]string{"!sshd"}, "sshd", "program sshd is refused by program !sshd"},
		{[]string{"!sshd"}, "nginx", ""},
		{[]string{"any", "!sshd"}, "sshd", "program sshd is refused by program !sshd"},
		{[]string{"any", "!sshd"}, "nginx", ""},
		{[]string{"none"}, "nginx", "program nginx is not among program none"},
	} {
		p, err := NewPolicy(Filter{}, Filter{}, tt.list, tt.name)
		if err != nil {
			t.Fatal(err)
		}
		for side, rules := range map[string]*Rules{"listen": &p.Listen, "connect": &p.Connect} {
			if got := rules.Refuses(netip.MustParseAddrPort("127.0.0.1:80")); got != tt.why {
				t.Errorf("%s of %q with %q: %q, want %q", side, tt.name, tt.list, got, tt.why)
			}
		}
	}
	for argv0, want := range map[string]string{"/usr/sbin/nginx": "nginx", "-bash": "bash", "redis-server": "redis-server"} {
		if got := ProgramName(argv0); got != want {
			t.Errorf("ProgramName(%q) = %q, want %q", argv0, got, want)
		}
	}
}

func TestPolicySettings(t *testing.T) {
	write(t, "smc off\nprogram !sshd\nlisten-port 80\nlisten-port 8000-8999\nlisten-address 127.0.0.1\nconnect-port !22\nconnect-address 10.0.0.0/8\nmemory 512MiB\nring-after 64K\nshort-after off")
	t.Setenv(EnvDisabled, "")
	want := Settings{
		Off: true, Programs: []string{"!sshd"}, Memory: 512 << 20, RingAfter: 64 << 10, ShortAfter: -1,
		Listen: Filter{[]string{"80", "8000-8999"}, []string{"127.0.0.1"}}, Connect: Filter{[]string{"!22"}, []string{"10.0.0.0/8"}},
	}
	s, err := Load()
	if diff := cmp.Diff(want, s); diff != "" || err != nil {
		t.Errorf("Load: %v (-want +got):\n%s", err, diff)
	}
	// The variables of Environ stand in the place of the file.
	env := s.Environ()
	write(t, "smc on\nlisten-port none\nprogram nobody\nmemory 1\n")
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	s, err = Load()
	if diff := cmp.Diff(want, s); diff != "" || err != nil {
		t.Errorf("Load of %q: %v (-want +got):\n%s", env, err, diff)
	}
	t.Setenv(EnvDisabled, "no")
	if s, _ := Load(); s.Off {
		t.Error("GOSMC_DISABLED=no does not take the place of 'smc off'")
	}
}

// Where the policy is not understood, everything it is about stays TCP.
func TestPolicyErrors(t *testing.T) {
	path := write(t, "listen-port 80\nlisten-port 80O0\nconnect-address 10.0.0.0/33\nprogram /usr/bin/nginx\nsmc maybe\nmemory much\nring-after -1\nshort-after -1\n")
	t.Setenv(EnvDisabled, "")
	t.Setenv("GOSMC_CONNECT_PORTS", "80,0")
	s, err := Load()
	none := []string{"none"}
	if diff := cmp.Diff(Settings{Programs: none, Listen: Filter{Ports: none}, Connect: Filter{none, none}}, s); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
	for _, want := range []string{path + `:2: listen-port "80O0"`, `:3: connect-address "10.0.0.0/33"`, `:4: program "/usr/bin/nginx"`, ":5: smc", ":6: memory", ":7: ring-after", ":8: short-after", "GOSMC_CONNECT_PORTS"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load = %v, want %q in it", err, want)
		}
	}
	for _, f := range []Filter{{Ports: []string{"0"}}, {Ports: []string{"9-8"}}, {Ports: []string{"65536"}}, {Ports: []string{""}}, {Addresses: []string{"fe80::1%eth0"}}, {Addresses: []string{"::ffff:1.2.3.0/120"}}, {Addresses: []string{"!"}}} {
		if _, err := NewPolicy(f, Filter{}, nil, ""); err == nil {
			t.Errorf("NewPolicy(%q) takes it", f)
		}
	}
}
