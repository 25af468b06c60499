package host

import (
	"strings"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/wire/clc"
)

// What is missing for SMC with other machines, for those who ask why there is none.

// smcrStatus says for both versions of SMC-R all that is missing. option is what there is of TCP option 254.
func (h *Host) smcrStatus(option control.Capability) (v1, v2 control.Capability) {
	if h.cfg.Disabled {
		r := clc.Lookup(clc.DiagDisabled, clc.OSUnspecified)
		v1 = control.Capability{Why: r.Sentence, Advice: r.Advice}
		return v1, v1
	}
	both := h.rnics.Missing()
	if len(h.peerRules) == 0 && !option.Available {
		both = append(both, "no peer is configured, and there is no agent to ask peers by TCP option 254")
	}
	var ofV1, ofV2 []string
	if len(h.ueids) == 0 {
		ofV2 = append(ofV2, "no UEID is configured, which SMC with another machine needs")
		v2.Advice = "A UEID is configured by 'gosmc ueid add NAME', GOSMC_UEIDS, or the program; peers are by 'peer' in the file that 'gosmc ueid --help' describes."
	}
	if !h.cfg.SMCRv1 {
		ofV1 = append(ofV1, "switched off, since stock Linux speaks it over RoCEv1 only")
	}
	say := func(c *control.Capability, missing []string) {
		c.Why = strings.Join(append(missing, both...), "; ")
		c.Available = c.Why == ""
	}
	say(&v1, ofV1)
	say(&v2, ofV2)
	return v1, v2
}
