package smcd

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// Reason is the reason to give when the device, or a system call, could not provide something.
func Reason(err error) clc.Diagnosis {
	switch {
	case errors.Is(err, ism.ErrBudget):
		return clc.DiagBudget
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return clc.DiagNoFile
	case errors.Is(err, ism.ErrMappings):
		return clc.DiagMappings
	case errors.Is(err, ism.ErrDenied):
		return clc.DiagDenied
	case errors.Is(err, ism.ErrLimit):
		return clc.DiagLimit
	case errors.Is(err, ism.ErrOtherUser):
		return clc.DiagOtherUser
	}
	return transport.Reason(err)
}
