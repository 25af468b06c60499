package host

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/option"
)

// All that is missing for SMC-R is said, and nothing else.
func TestMissing(t *testing.T) {
	const (
		noUEID    = "no UEID is configured"
		noPeer    = "no peer is configured"
		noAddress = "no address of this machine is among those"
		off       = "switched off"
	)
	for _, tt := range []struct {
		name   string
		config Config
		v1, v2 []string
	}{
		{"nothing", Config{}, []string{off, noPeer}, []string{noUEID, noPeer}},
		{"UEID", Config{UEIDs: []string{"A"}}, []string{off, noPeer}, []string{noPeer}},
		{"peers", Config{SMCRPeers: []string{"127.0.0.2"}, SMCRv1: true}, nil, []string{noUEID}},
		{"all", Config{SMCRPeers: []string{"127.0.0.2"}, UEIDs: []string{"A"}, SMCRv1: true}, nil, nil},
		{"no device", Config{SMCRPeers: []string{"127.0.0.2"}, UEIDs: []string{"A"}, SMCRv1: true, SMCRDevices: []string{"192.0.2.1"}}, []string{noAddress}, []string{noAddress}},
		{"disabled", Config{Disabled: true}, []string{"SMC is switched off"}, []string{"SMC is switched off"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Option = &fakeOption{ask: option.ErrNoAgent}
			if tt.config.SMCRDevices == nil {
				tt.config.SMCRDevices = []string{"127.0.0.0/8"}
			}
			c := newTestHost(t, tt.config).Status().Capabilities
			for i, got := range []string{c.SMCRv1.Why, c.SMCRv2.Why} {
				want := [][]string{tt.v1, tt.v2}[i]
				count := strings.Count(got, ";") + 1
				if got == "" {
					count = 0
				}
				if count != len(want) || (got == "") != []bool{c.SMCRv1.Available, c.SMCRv2.Available}[i] {
					t.Errorf("SMC-R v%d: %q, available %v, want %d reasons", i+1, got, c.SMCRv2.Available, len(want))
				}
				for _, w := range want {
					if !strings.Contains(got, w) {
						t.Errorf("SMC-R v%d: %q, want %q in it", i+1, got, w)
					}
				}
			}
		})
	}
}

// A device that could not be opened is told of, with the reason.
func TestMissingDevice(t *testing.T) {
	foreign := netip.MustParseAddr("192.0.2.1")
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	c.Close()
	s.Close()
	if _, err := r.client.rnics.Acquire(foreign); err == nil {
		t.Fatalf("a device on %v, which no interface has", foreign)
	}
	st := r.client.Status()
	if why := st.Capabilities.SMCRv2.Why; !strings.Contains(why, "no device at "+foreign.String()+": ") {
		t.Errorf("SMC-R v2: %q, want the device that failed", why)
	}
	if len(st.Devices) != 2 || st.Devices[1].State != "FAILED" {
		t.Errorf("devices %+v, want one that failed", st.Devices)
	}
}
