// Package exit has the exit statuses of gosmc: their numbers, their meanings for each verb, and the
// errors that ask for one. Engines of verbs return these errors, so that a mistake in a command
// line has the same status wherever it is found.
package exit

import "fmt"

// Exit statuses.
const (
	OK            = 0
	Failure       = 1
	Usage         = 2   // the command line was not understood
	FellBack      = 3   // --require was not met
	Problems      = 4   // dump --problems has found some
	NotExecutable = 126 // run: there is no program to take one from, as in env(1) and nohup(1)
	NotFound      = 127 // run
)

// An Error asks for an exit status other than Failure. Its text is Err's.
type Error struct {
	Code int
	Err  error // not nil
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error that the status is for.
func (e *Error) Unwrap() error { return e.Err }

// With returns err with an exit status. err is not nil.
func With(code int, err error) error { return &Error{code, err} }

// Usagef returns the error for a command line that is not understood, formatted as by fmt.Errorf.
func Usagef(format string, args ...any) error {
	return With(Usage, fmt.Errorf(format, args...))
}
