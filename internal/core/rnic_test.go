package core

import (
	"testing"
	"time"

	"github.com/gosmc/smc/wire/clc"
)

// TestSetRNIC lets a server learn of its RNICs when it has the Proposal.
func TestSetRNIC(t *testing.T) {
	now := time.Unix(1000, 0)
	rnicV1, rnicV2 := serverCaps(t).RoCEv1, serverCaps(t).RoCEv2
	for _, tt := range []struct {
		name   string
		types  string
		v1, v2 *RNIC
		why    clc.Diagnosis
		want   string
	}{
		{"version 2", "Rv2 Rv1", nil, rnicV2, clc.DiagNone, "t(4), prepare SMC-Rv2"},
		{"version 1", "Rv2 Rv1", rnicV1, nil, clc.DiagPortInUse, "t(4), prepare SMC-Rv1"},
		{"none", "Rv1", nil, nil, clc.DiagPortInUse, "send Decline v1 NOSMCRDEV (0x03030002), -t, fallback PORT_IN_USE (0x7e010026)"},
		{"none of version 2", "Rv2", nil, nil, clc.DiagPortInUse, "send Decline v2 NOSMCRDEV (0x03030002), -t, fallback PORT_IN_USE (0x7e010026)"},
		{"none, for no reason", "Rv2 Rv1", nil, nil, clc.DiagNone, "send Decline v2 NOSMCDEV (0x03030000), -t, fallback NOSMCDEV (0x03030000)"},
	} {
		client := only(clientCaps(t), tt.types).normalized()
		p, ok := client.proposal()
		if !ok {
			t.Fatal("nothing to offer")
		}
		caps := serverCaps(t)
		caps.ISM, caps.ISMv1, caps.RoCEv1, caps.RoCEv2 = nil, nil, nil, nil
		h := NewHandshake(RoleServer, caps)
		h.Start(now, nil)
		h.SetRNIC(tt.v1, tt.v2, tt.why)
		if got := words(now, h.HandleMessage(now, p, nil, nil)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
