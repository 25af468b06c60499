package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/doctor"
	"github.com/gosmc/smc/internal/exit"
)

// An explainReport is the output of run --explain --json.
type explainReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	*doctor.Explanation
}

// write prints the report; all says that programs outside 'gosmc run' are meant too.
func (r *explainReport) write(w io.Writer, all bool) error {
	var b strings.Builder
	for _, e := range r.Servers {
		fmt.Fprintf(&b, "%s: %s of 'gosmc run' connects by %s\n", printable(e.Server), printable(cmp.Or(r.Program, "a program")), e.Mode)
		for _, s := range e.Steps {
			fmt.Fprintf(&b, "  %-3s  %s\n", map[bool]string{true: "yes", false: "no"}[s.OK], printable(s.What))
		}
		if !all {
			continue
		}
		fmt.Fprintf(&b, "  A program with package smc connects by %s.\n", e.Library.Mode+printable(prefixed(": ", e.Library.Reason)))
		if e.Listen == "" {
			fmt.Fprintf(&b, "  A program here that listens there is announced.\n")
		} else {
			fmt.Fprintf(&b, "  A program here that listens there is not announced: %s.\n", printable(e.Listen))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// verdict is the error of an explanation: status 3 unless some address would leave TCP.
func (r *explainReport) verdict() error {
	var last string
	for _, e := range r.Servers {
		if e.Mode != "TCP" {
			return nil
		}
		last = e.Reason
	}
	return exit.With(exit.FellBack, errors.New(r.Address+" would be TCP: "+last))
}

// userNamed returns the number of a user, given by name or number.
func userNamed(name string) (int, error) {
	if uid, err := strconv.Atoi(name); err == nil && uid >= 0 {
		return uid, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, usagef("--user %q: there is no such user", name)
	}
	return strconv.Atoi(u.Uid)
}

// programPath is where a program is that somebody has named.
func programPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", notRunnable(err)
	}
	return path, nil
}

// asUsage makes the error of a command line of one for a port that no server has.
func asUsage(err error) error {
	if errors.Is(err, doctor.ErrNoPort) {
		return usagef("%w", err)
	}
	return err
}
