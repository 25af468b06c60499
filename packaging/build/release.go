package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// A release has the values that 'gosmc version' says.
type release struct {
	version string // v1.2.3, or git describe's form of it, or a pseudo-version
	commit  string
	date    time.Time // of the commit
}

// settle fills in the fields that follow from the rest.
func (r *release) settle(date string) (err error) {
	if r.commit == "" || date == "" {
		return errors.New("the commit and its date are not known: this is no clone, so name both, as in make packages COMMIT=abc123 DATE=2026-11-26T08:00:00Z")
	}
	if r.date, err = time.Parse(time.RFC3339, date); err != nil {
		return fmt.Errorf("date of the commit: %w", err)
	}
	r.date = r.date.UTC()
	if r.version == "" {
		hash, changes, changed := strings.Cut(r.commit, "+")
		r.version = "v0.0.0-" + r.date.Format("20060102150405") + "-" + hash[:min(12, len(hash))]
		if changed {
			r.version += "+" + changes
		}
	}
	if !versionForm.MatchString(r.version) {
		return fmt.Errorf("version %q: want one such as v1.2.3 or v1.2.3-rc1", r.version)
	}
	return nil
}

var (
	versionForm   = regexp.MustCompile(`^v[0-9][0-9A-Za-z.+-]*$`)
	describedForm = regexp.MustCompile(`^(.*)-([0-9]+)-(g[0-9a-f]+)(\+.*)?$`)
)

func (r *release) dateText() string { return r.date.Format(time.RFC3339) }

// packageVersion is the version as deb and rpm compare them. A version before a release has a
// tilde, which sorts before nothing; a version that git describe counts after one has a plus.
func (r *release) packageVersion() string {
	v, after := strings.TrimPrefix(r.version, "v"), ""
	if m := describedForm.FindStringSubmatch(v); m != nil {
		v, after = m[1], "+"+m[2]+"."+m[3]+m[4]
	}
	base, before, early := strings.Cut(v, "-")
	if early {
		base += "~" + strings.ReplaceAll(before, "-", ".")
	}
	return base + after
}
