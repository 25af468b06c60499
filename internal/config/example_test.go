package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// words returns the words of the file: the constants of this package that are declared under that heading.
func words(t *testing.T) (list []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST || decl.Doc.Text() != "Words of the file.\n" {
			continue
		}
		for _, spec := range decl.Specs {
			for _, v := range spec.(*ast.ValueSpec).Values {
				word, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, word)
			}
		}
	}
	if len(list) < len(Variables) {
		t.Fatalf("words of the file: %q", list)
	}
	return list
}

// TestExample has the file that packages install say nothing, name every word of the file, and be right in each line that an operator may take the "#" from.
func TestExample(t *testing.T) {
	const example = "../../packaging/gosmc.conf"
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	load := func(text string) Settings {
		t.Helper()
		write(t, text)
		s, err := Load()
		if err != nil {
			t.Errorf("Load: %v", err)
		}
		return s
	}
	if diff := cmp.Diff(Settings{}, load(string(text))); diff != "" {
		t.Errorf("the example says something (-nothing +got):\n%s", diff)
	}
	shown := make(map[string]bool)
	var all strings.Builder
	for line := range strings.Lines(string(text)) {
		setting, ok := strings.CutPrefix(line, "#")
		switch {
		case line == "\n" || setting == "\n" || strings.HasPrefix(setting, " "):
			continue
		case !ok:
			t.Errorf("%q is no comment", line)
			continue
		}
		word, value, _ := strings.Cut(strings.TrimSpace(setting), " ")
		if err := Check(word, value); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		shown[word] = true
		all.WriteString(setting)
	}
	load(all.String())
	for _, word := range words(t) {
		if !shown[word] {
			t.Errorf("%s does not have the word %s", example, word)
		}
	}
}
