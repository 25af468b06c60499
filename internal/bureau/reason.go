package bureau

import (
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/wire/clc"
)

// refusals are the reasons to give for the agent's.
var refusals = map[introduce.Refusal]clc.Diagnosis{
	introduce.RefusedAlone:     clc.DiagNotAccepted,
	introduce.RefusedUsers:     clc.DiagOtherUser,
	introduce.RefusedBusy:      clc.DiagBusy,
	introduce.RefusedSocket:    clc.DiagNotAccepted,
	introduce.RefusedToken:     clc.DiagNoToken,
	introduce.RefusedContested: clc.DiagNotAccepted,
	introduce.RefusedOffer:     clc.DiagOldAgent,
	introduce.RefusedDeclined:  clc.DiagRefused,
	introduce.RefusedGivenBack: clc.DiagNotAccepted,
}

// Reason returns the reason for a refusal of the agent, also of one that is newer than we are.
func Reason(r introduce.Refusal) clc.Diagnosis {
	if why, ok := refusals[r]; ok { // rule: TestReason
		return why
	}
	return clc.DiagRefused
}
