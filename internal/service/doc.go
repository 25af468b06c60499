// Package service puts services of systemd under 'gosmc run'. It reads the files of a unit, decides
// which drop-in the unit needs, writes the drop-in, and removes it again. [Tree] finds and changes
// the files of a system, also of one that does not run; [Manager] speaks with a systemd that runs;
// [System] is both, and has the steps of 'gosmc service'.
//
// A drop-in is a file in /etc/systemd/system/UNIT.d. It replaces ExecStart= by command lines with
// 'gosmc run' before the program, and permits the things that the unit forbids and the library
// needs. The unit's own files stay as they are.
package service

import (
	"errors"
	"fmt"
)

// Limits of ours.
const (
	maxFile    = 1 << 20 // bytes of a file of a unit
	maxDropIns = 1024    // of a unit
	maxAliases = 8       // links from one name of a unit to the next
	maxName    = 255     // bytes of the name of a unit, as systemd has it
)

// Errors that callers tell apart.
var (
	ErrNotFound = errors.New("there is no such unit")
	ErrMasked   = errors.New("the unit is masked")
	ErrAlready  = errors.New("the unit has 'gosmc run' already")
	ErrChanged  = errors.New("the drop-in was changed since gosmc wrote it")
	ErrNone     = errors.New("gosmc has written no drop-in for this unit")
)

// A NextError is an error with the step that the administrator can take.
type NextError struct {
	Err  error
	Next string
}

func (e *NextError) Error() string { return e.Err.Error() + ": " + e.Next }

func (e *NextError) Unwrap() error { return e.Err }

// next makes a NextError.
func next(err error, format string, args ...any) error {
	return &NextError{Err: err, Next: fmt.Sprintf(format, args...)}
}
