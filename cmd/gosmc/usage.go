package main

import (
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/usage"
)

// Short names of package usage, for its most frequent functions.
var (
	verbOf       = usage.VerbOf
	noArguments  = usage.NoArguments
	checkAddr    = usage.CheckAddress
	completeFlag = usage.CompleteFlag
	completeDirs = usage.CompleteDirs
	mustComplete = usage.MustComplete
	repeat       = usage.Repeat
)

// usagef makes the error for a command line that is not understood.
func usagef(format string, args ...any) error { return exit.Usagef(format, args...) }
