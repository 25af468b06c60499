package doctor

import (
	"context"
	"strings"
)

// Options are the values that checks need of their caller.
type Options struct {
	// Subject is HOST:PORT, a process ID, or a service of systemd; empty: the machine.
	Subject string
	// Dir is the run directory whose programs are looked at; empty: all.
	Dir string
	// Obstacle says why 'gosmc run' leaves every program to TCP here; empty: it does not.
	Obstacle string
	// Echo says that the server on another host sends back what it gets: the check sends bytes then.
	Echo bool
	// Version is the version of this command.
	Version string
}

// A Report has the findings about a subject.
type Report struct {
	Subject  string    `json:"subject"` // HOST:PORT, a process ID, or a service; empty: the machine
	Healthy  bool      `json:"healthy"` // no finding is a warning or a failure
	Findings []Finding `json:"findings"`

	opts Options
}

// A Finding is the result of one check.
type Finding struct {
	Level string `json:"level"` // "ok", "warn", "fail"
	Check string `json:"check"` // a word for scripts, such as "supervisor"
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"` // a command, a line of the configuration, or a sentence
}

// Levels of findings.
const (
	OK   = "ok"
	Warn = "warn"
	Fail = "fail"
)

// Examine makes all checks. An error says that the subject is not there, or is none.
func Examine(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Subject: o.Subject, Findings: []Finding{}, opts: o}
	return r, r.examine(ctx)
}

// errorText is an error in one line: joined errors have a line each.
func errorText(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}
