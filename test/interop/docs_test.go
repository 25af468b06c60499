package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/interop.md says what each case shows: all cases of SMC-R are in it, and all that it names
// exist.
func TestInteropIsDocumented(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs/interop.md"))
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, m := range regexp.MustCompile("`(smcr/[a-z/]+)`").FindAllStringSubmatch(string(text), -1) {
		named = append(named, m[1])
	}
	var cases []string
	for _, c := range allCases() {
		if strings.HasPrefix(c.name, "smcr/") {
			cases = append(cases, c.name)
		}
	}
	for _, name := range named {
		if !slices.Contains(cases, name) {
			t.Errorf("docs/interop.md names a case %s, which does not exist", name)
		}
	}
	for _, name := range cases {
		if !slices.Contains(named, name) {
			t.Errorf("docs/interop.md does not name the case %s", name)
		}
	}
	tests := regexp.MustCompile("([a-z0-9_/]+_test\\.go) `(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(text), -1)
	if len(tests) == 0 {
		t.Error("docs/interop.md names no test")
	}
	for _, m := range tests {
		file, err := os.ReadFile(filepath.Join(root, m[1]))
		if err != nil || !strings.Contains(string(file), "\nfunc "+m[2]+"(") {
			t.Errorf("docs/interop.md names %s in %s, which does not exist: %v", m[2], m[1], err)
		}
	}
}
