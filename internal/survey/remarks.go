package survey

import (
	"fmt"

	"github.com/gosmc/smc/internal/text"
)

// Remarks are lines about the places that could not be read, for people. The place that is missing is
// left to [Answers.Incomplete].
func (a *Answers) Remarks() []string {
	var list []string
	for i, e := range a.Errors {
		if i == 0 && a.Missing {
			continue
		}
		list = append(list, fmt.Sprintf("%s: %s", text.Printable(e.Path), text.Printable(e.Text)))
	}
	if a.Denied > 0 {
		list = append(list, fmt.Sprintf(
			"not shown: what belongs to other users (%d found); run as root to see it", a.Denied))
	}
	return list
}

// Incomplete is the error of a verb that has looked in a place that does not exist, a [*MissingError],
// or nil.
func (a *Answers) Incomplete() error {
	if !a.Missing {
		return nil
	}
	return &MissingError{a.Errors[0].Path, a.Errors[0].Text}
}

// A MissingError says that a run directory does not exist.
type MissingError struct{ Path, Text string }

func (e *MissingError) Error() string { return e.Path + ": " + e.Text }

// Transient says that the directory may come.
func (e *MissingError) Transient() {}
