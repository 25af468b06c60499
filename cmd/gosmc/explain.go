package main

import (
	"errors"
	"os/exec"
	"os/user"
	"strconv"
	"time"

	"github.com/gosmc/smc/internal/doctor"
)

// An explainReport is the output of run --explain --json.
type explainReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	*doctor.Explanation
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
