package smc_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The README begins with what works, and says how to get it before it shows a line of code.
func TestREADMEBegins(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
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

// checkBeginning looks at a first paragraph: it says what works today, and names no peer that cannot be reached.
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

// The snippets of the README are Go, and use no name of package smc that it does not have.
func TestREADMESnippets(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	exported := make(map[string]bool)
	eachFile(t, func(name string, f *ast.File) {
		if strings.Contains(name, "/") || strings.HasSuffix(name, "_test.go") {
			return
		}
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				exported[d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						exported[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range s.Names {
							exported[n.Name] = true
						}
					}
				}
			}
		}
	})
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(b), -1)
	if len(snippets) == 0 {
		t.Fatal("README has no snippet")
	}
	for _, s := range snippets {
		source := "package p\nfunc _() {\n" + s[1] + "\n}"
		f, err := parser.ParseFile(token.NewFileSet(), "README.md", source, 0)
		if err != nil {
			t.Errorf("a snippet of README is no Go: %v\n%s", err, s[1])
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "smc" && !exported[sel.Sel.Name] {
					t.Errorf("a snippet of README uses smc.%s, which does not exist", sel.Sel.Name)
				}
			}
			return true
		})
	}
}

// What has a section of its own in the specification map is not in its list of what there is not.
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
