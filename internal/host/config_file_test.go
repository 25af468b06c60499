package host

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The configuration file says which interfaces are on one physical network: a device on another one
// is not used, and a link group belongs to one.
func TestPNET(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	if err := os.WriteFile(path, []byte("pnet NET1 lo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOSMC_CONFIG", path)
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	checkSMCR(t, c, s)
	for _, h := range []*Host{r.client, r.server} {
		st := h.Status()
		if len(st.Groups) != 1 || st.Groups[0].PNETID != "NET1" || len(st.Devices) != 1 || st.Devices[0].PNETID != "NET1" {
			t.Errorf("groups %+v and devices %+v, want them on NET1", st.Groups, st.Devices)
		}
	}
	c.Close()
	s.Close()
	if _, err := New(Config{PNET: map[string]string{"lo": "net"}}); err == nil {
		t.Error("a PNETID in lower case is none")
	}
}

// TestPeers has a host that is made with peers, and one that is disabled, and has none.
func TestPeers(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		h := newTestHost(t, Config{SMCRPeers: []string{"0.0.0.0/0"}, Disabled: disabled})
		if h.speaksCLC(netip.MustParseAddr("192.0.2.1"), 80) == disabled {
			t.Errorf("disabled: %t, and a peer is one: %t", disabled, !disabled)
		}
	}
	if _, err := New(Config{SMCRPeers: []string{"192.0.2.1:http"}}); err == nil {
		t.Error("New with a peer that is none succeeds")
	}
}

// TestListsFromEnvironment leaves lists to the environment. One that is broken does not keep a program from working.
func TestListsFromEnvironment(t *testing.T) {
	for _, tt := range []struct {
		config, env, want []string // UEIDs, peers, devices
		warns             bool
	}{
		{[]string{"", "", ""}, []string{"", "", ""}, []string{"", "", ""}, false},
		{[]string{"", "", ""}, []string{"A,B", "192.0.2.0/24:80, [2001:db8::/32]:443", "192.0.2.1"}, []string{"A B", "192.0.2.0/24:80 [2001:db8::/32]:443", "192.0.2.1"}, false},
		{[]string{"C", "192.0.2.9", "192.0.2.8"}, []string{"A", "192.0.2.1", "192.0.2.2"}, []string{"C", "192.0.2.9", "192.0.2.8"}, false},
		{[]string{"", "", ""}, []string{"not a UEID: ?", "192.0.2.1:99999", "here"}, []string{"", "", ""}, true},
	} {
		log := new(record)
		for i, variable := range []string{"GOSMC_UEIDS", "GOSMC_SMCR_PEERS", "GOSMC_SMCR_DEVICES"} {
			t.Setenv(variable, tt.env[i])
		}
		h := newTestHost(t, Config{
			UEIDs: strings.Fields(tt.config[0]), SMCRPeers: strings.Fields(tt.config[1]), SMCRDevices: strings.Fields(tt.config[2]), Logger: log.logger(),
		})
		for i, got := range [][]string{h.cfg.UEIDs, h.cfg.SMCRPeers, h.cfg.SMCRDevices} {
			if want := strings.Fields(tt.want[i]); !slices.Equal(got, want) {
				t.Errorf("with %q in the configuration and %q in the environment: %q, want %q", tt.config[i], tt.env[i], got, want)
			}
		}
		if warned := strings.Contains(log.String(), "GOSMC_SMCR_PEERS"); warned != tt.warns {
			t.Errorf("environment %q: the log has %q", tt.env, log.String())
		}
	}
}
