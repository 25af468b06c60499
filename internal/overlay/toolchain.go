package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Toolchain is the one that builds.
type Toolchain struct {
	GOROOT  string
	Version string // as go env GOVERSION says
}

// A release is one of Go whose package net is known: the edits fit, and make std-test has passed with it.
type release struct {
	name   string
	digest string // of package net: see Digest
}

// releases are those that are supported, with all that correct them. docs/go.md says how to add one.
var releases = []release{
	{"go1.26", "d972d47ca81ac9e5f3fe153bfb77ab42"},
	{"go1.27", "f0b550c9768c1aac36416e466a0549d6"},
}

// An UnknownToolchainError says that package net of a toolchain is not known.
type UnknownToolchainError struct {
	Toolchain Toolchain
	Digest    string
}

func (e *UnknownToolchainError) Error() string {
	var names []string
	for _, r := range releases {
		names = append(names, r.name)
	}
	return fmt.Sprintf("package net of %s in %s is not one that this gosmc knows (%s): use %s, or a newer gosmc",
		e.Toolchain.Version, e.Toolchain.GOROOT, e.Digest, strings.Join(names, " or "))
}

// Check returns an *UnknownToolchainError for a toolchain that no overlay fits.
func (t Toolchain) Check() error {
	digest, err := t.Digest()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(releases, func(r release) bool { return r.digest == digest }) {
		return &UnknownToolchainError{t, digest}
	}
	return nil
}

// Digest identifies the files of package net that an overlay replaces. Other files change with many
// releases of corrections, and the copy of package net takes them as they are.
func (t Toolchain) Digest() (string, error) {
	h := sha256.New()
	for _, name := range editedFiles() {
		text, err := os.ReadFile(filepath.Join(t.GOROOT, "src", "net", name))
		if err != nil {
			return "", fmt.Errorf("the source of package net: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// editedFiles returns the names of the files that edits are for, sorted.
func editedFiles() (names []string) {
	for _, e := range edits {
		names = append(names, e.file)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
