package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMarkers checks that every marker in the tree can be carried out, and names tests that exist.
func TestMarkers(t *testing.T) {
	const root = "../.."
	rules, err := findRules(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) < 40 {
		t.Errorf("findRules found %d rules", len(rules))
	}
	sources := make(map[string]string) // of the tests, by directory
	for _, r := range rules {
		for _, test := range r.tests {
			if _, ok := sources[test.dir]; !ok {
				files, err := filepath.Glob(filepath.Join(root, test.dir, "*_test.go"))
				if err != nil {
					t.Fatal(err)
				}
				var all strings.Builder
				for _, f := range files {
					b, err := os.ReadFile(f)
					if err != nil {
						t.Fatal(err)
					}
					all.Write(b)
				}
				sources[test.dir] = all.String()
			}
			if !regexp.MustCompile(`(?m)^func ` + test.name + `\(`).MatchString(sources[test.dir]) {
				t.Errorf("%s:%d names %v, which is not there", r.file, r.line, test)
			}
		}
	}
}

// TestWithout takes rules out of lines of every kind.
func TestWithout(t *testing.T) {
	const source = `package p

func f(a, b int) (x int) {
	if a == 1 { // rule: TestA
		return 1
	} else if b := a; b == 2 || a == 3 { // rule: TestA, internal/q TestB
		x++ // rule: TestA
	}
	switch {
	case a == 4, b == 5: // rule: TestA
		x = a // rule: TestA: a -> -a
	}
	// rule: TestA
	f(a,
		b)
	x = b // rule: TestA
	return x
}
`
	rules, err := parseRules("internal/p/p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	wants := []string{
		"if false && (a == 1) {",
		"} else if b := a; false && (b == 2 || a == 3) {",
		"if false { x++ }",
		"case false && (a == 4), false && (b == 5):",
		"x = -a",
		"if false { f(a,\n\t\tb) }",
		"if false { x = b }",
	}
	if len(rules) != len(wants) {
		t.Fatalf("parseRules found %d rules, want %d: %v", len(rules), len(wants), rules)
	}
	for i, want := range wants {
		got, err := rules[i].without([]byte(source))
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%v: without = %v\n%s\nwant %q in it", rules[i], err, got, want)
		}
	}
	if got := rules[1].tests; len(got) != 2 || got[0] != (test{"internal/p", "TestA"}) || got[1] != (test{"internal/q", "TestB"}) {
		t.Errorf("tests of %v = %v", rules[1], got)
	}
}

// TestBadMarkers has markers that cannot be carried out.
func TestBadMarkers(t *testing.T) {
	for _, tt := range []struct{ code, want string }{
		{"x := a // rule: TestA", "definition"},
		{"return // rule: TestA", "say what comes in its place"},
		{"switch a {\n\tcase 1: // rule: TestA\n\t}", "case without a condition"},
		{"x = a // rule: Example", "no test"},
		{"x = a // as it should be. rule: TestA", "words before"},
		{"x = a // rule: TestA: b", "old -> new"},
		{"x = a // rule: TestA: b -> c", "0 times"},
		{"x = x // rule: TestA: x -> c", "2 times"},
	} {
		source := "package p\n\nfunc f(a, x int) {\n\t" + tt.code + "\n}\n"
		if rules, err := parseRules("p.go", []byte(source)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("parseRules of %q = %v, %v; want an error with %q", tt.code, rules, err, tt.want)
		}
	}
}
