package main

import (
	"strings"
	"testing"
)

// TestRunExplainHosts has --explain follow the conditions of SMC-R with another host, in order.
func TestRunExplainHosts(t *testing.T) {
	on := []string{"GOSMC_BETWEEN_HOSTS=1", "GOSMC_UEIDS=GOSMC.TEST"}
	for _, tt := range []struct {
		environ []string
		code    int
		want    string
	}{
		{nil, exitFellBack, "no   192.0.2.7 is not an address of this machine, and between-hosts is off"},
		{on[:1], exitFellBack, "no   no UEID is set, so there is no SMC-R here"},
		{append(on, "GOSMC_SMCR_PEERS=192.0.2.7:81"), exitFellBack, "no   no entry 'peer' of the configuration names it"},
		{append(on, "GOSMC_SMCR_PEERS=192.0.2.0/24:80"), exitOK, "yes  the configuration says that it speaks SMC-R (peer: $GOSMC_SMCR_PEERS)"},
	} {
		out, code := gosmcIn(t, append(runEnviron(t), tt.environ...), "run", "--explain", "192.0.2.7:80", "sh")
		if code != tt.code || !strings.Contains(out, tt.want) {
			t.Errorf("with %v: status %d, want %d and %q:\n%s", tt.environ, code, tt.code, tt.want, out)
		}
	}
}
