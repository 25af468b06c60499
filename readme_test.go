package smc_test

import (
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The README names in one screen the features that work and how to get them, and sends readers on.
func TestREADMEBegins(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if n, most := strings.Count(text, "\n"), 150; n > most {
		t.Errorf("README has %d lines, want at most %d: reference material belongs into docs", n, most)
	}
	snippet := strings.Index(text, "```go\n")
	for _, want := range []string{"\ngo get " + modulePath + "\n", "`\"" + modulePath + "\"`"} {
		if at := strings.Index(text, want); at < 0 || at > snippet {
			t.Errorf("README has %q at %d, want it before the first snippet at %d", want, at, snippet)
		}
	}
	_, first, _ := strings.Cut(text, "\n\n") // behind the title
	first, _, _ = strings.Cut(first, "\n\n")
	checkBeginning(t, "README", first)
}

// The index of the documentation has every document, and every document names its readers first.
func TestDocsIndex(t *testing.T) {
	index, err := os.ReadFile("docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob("docs/*.md")
	if err != nil || len(documents) < 10 {
		t.Fatalf("documents: %q, %v", documents, err)
	}
	for _, name := range documents {
		base := filepath.Base(name)
		if base == "README.md" {
			continue
		}
		if !strings.Contains(string(index), "]("+base+") |") {
			t.Errorf("docs/README.md has no row of %s", base)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.SplitN(string(text), "\n", 4); len(lines) < 4 || !strings.HasPrefix(lines[2], "For ") {
			t.Errorf("%s does not name its readers in its first line", name)
		}
	}
}

// Every link of the README and of docs to a file of the repository leads to one, and to a heading of it.
func TestDocsLinks(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, "README.md", "CONTRIBUTING.md", "SECURITY.md")
	notWord := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, name := range documents {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#: ]*)(#[^)]*)?\)`).FindAllStringSubmatch(string(text), -1) {
			target := name
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(name), m[1])
			}
			if m[2] == "" {
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s links to %s: %v", name, m[1], err)
				}
				continue
			}
			to, err := os.ReadFile(target)
			if err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
				continue
			}
			found := false
			for line := range strings.Lines(string(to)) {
				if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
					anchor := strings.ReplaceAll(notWord.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
					found = found || "#"+anchor == m[2]
				}
			}
			if !found {
				t.Errorf("%s links to %s%s, which has no such heading", name, m[1], m[2])
			}
		}
	}
}

func TestPackageCommentBegins(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	text := f.Doc.Text()
	first, _, _ := strings.Cut(text, "\n\n")
	checkBeginning(t, "the package comment", first)
	if path, snippet := strings.Index(text, "import \""+modulePath+"\""), strings.Index(text, "smc.Listen("); path < 0 || path > snippet {
		t.Errorf("the package comment has the import path at %d, want it before the first snippet at %d", path, snippet)
	}
}

// checkBeginning looks at a first paragraph: it names the features that work today, and names no
// peer that cannot be reached.
func checkBeginning(t *testing.T, where, text string) {
	t.Helper()
	for _, want := range []string{"one machine", "shared memory", "TCP"} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("%s begins without %q:\n%s", where, want, text)
		}
	}
	if found := regexp.MustCompile(`z/OS|AIX`).FindString(text); found != "" {
		t.Errorf("%s begins with %s, which cannot be reached yet:\n%s", where, found, text)
	}
}

// The programs that the README and docs show are complete, and compile.
func TestDocsPrograms(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := 0
	for _, name := range append(documents, "README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			if !strings.HasPrefix(m[1], "package main\n") && name != "README.md" {
				continue // an excerpt for maintainers
			}
			programs++
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(m[1]), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
				t.Errorf("program %d of %s: %v\n%s", i+1, name, err, out)
			}
			if formatted, err := format.Source([]byte(m[1])); err != nil || string(formatted) != m[1] {
				t.Errorf("program %d of %s is not formatted: %v", i+1, name, err)
			}
		}
	}
	if want := 4; programs < want {
		t.Errorf("%d programs, want %d or more", programs, want)
	}
}

// A part with a section of its own in the specification map is not in the list of missing parts.
func TestSpecMapNotImplemented(t *testing.T) {
	b, err := os.ReadFile("docs/spec-map.md")
	if err != nil {
		t.Fatal(err)
	}
	before, section, ok := strings.Cut(string(b), "\n## Not implemented\n")
	if !ok {
		t.Fatal("docs/spec-map.md has no section Not implemented")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		rows++
		if what := strings.TrimSpace(cells[2]); strings.Contains(before, "\n## "+what+"\n") {
			t.Errorf("docs/spec-map.md says that %q are not implemented, and has a section of them", what)
		}
	}
	if rows < 3 {
		t.Errorf("docs/spec-map.md has %d rows of what is not implemented, want some", rows)
	}
}
