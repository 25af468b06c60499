package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// A rule is one marked line.
type rule struct {
	file  string // path from the root of the module
	line  int    // of the code
	code  string // the line, without the marker
	tests []test
	// old and new are the text to be replaced in the line and the text in its place. Both are empty
	// if the marker does not say: then a condition becomes false, and a statement is not reached.
	old, new string
}

// A test has to fail without the rule.
type test struct {
	dir  string // of its package, from the root of the module
	name string
}

func (t test) String() string { return t.dir + " " + t.name }

// String returns file and line, the code, and the tests.
func (r rule) String() string {
	s := fmt.Sprintf("%s:%d  %s", r.file, r.line, r.code)
	if r.old != "" {
		s += fmt.Sprintf("  [%s -> %s]", r.old, r.new)
	}
	for _, t := range r.tests {
		s += "  " + t.name
	}
	return s
}

const marker = "// rule: "

// late is a marker with words before it.
var late = regexp.MustCompile(`^// .*\brule: (Test|Fuzz|\S+ (Test|Fuzz))`)

// findRules returns all rules in the Go files below root, in the order of files and lines.
func findRules(root string) ([]rule, error) {
	var rules []rule
	var errs []error
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		found, err := parseRules(filepath.ToSlash(rel), src)
		rules, errs = append(rules, found...), append(errs, err)
		return nil
	})
	return rules, errors.Join(append(errs, err)...)
}

// parseRules returns the rules of one file.
func parseRules(file string, src []byte) ([]rule, error) {
	if !bytes.Contains(src, []byte("rule: ")) {
		return nil, nil
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(src), "\n")
	var rules []rule
	for _, group := range f.Comments {
		for _, c := range group.List {
			text, ok := strings.CutPrefix(c.Text, marker)
			at := fset.Position(c.Pos())
			if !ok && late.MatchString(c.Text) {
				return nil, fmt.Errorf("%s:%d: words before %q: nobody would try it", file, at.Line, "rule:")
			}
			if !ok {
				continue
			}
			r := rule{file: file, line: at.Line, code: strings.TrimSpace(lines[at.Line-1][:at.Column-1])}
			if r.code == "" { // the marker has a line of its own
				r.line++
				code, _, _ := strings.Cut(lines[r.line-1], marker) // it may have one at its end too
				r.code = strings.TrimSpace(code)
			}
			if err := r.parseMarker(text); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, at.Line, err)
			}
			if _, err := r.without(src); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, at.Line, err)
			}
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// parseMarker reads the text behind "rule:": tests with commas between them, each a name or a
// directory and a name; then perhaps ": old -> new".
func (r *rule) parseMarker(text string) error {
	tests, change, changed := strings.Cut(text, ": ")
	if changed {
		var ok bool
		if r.old, r.new, ok = strings.Cut(change, " -> "); !ok || r.old == "" {
			return fmt.Errorf("%q is not of the form old -> new", change)
		}
	}
	for t := range strings.SplitSeq(tests, ",") {
		fields := strings.Fields(t)
		if len(fields) == 1 {
			fields = append([]string{path.Dir(r.file)}, fields...)
		}
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "Test") && !strings.HasPrefix(fields[1], "Fuzz") {
			return fmt.Errorf("%q is no test", t)
		}
		r.tests = append(r.tests, test{path.Clean(fields[0]), fields[1]})
	}
	return nil
}

// without returns the file's source with the rule taken out.
func (r rule) without(src []byte) ([]byte, error) {
	if r.old != "" {
		return r.replace(src)
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, r.file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var edits []edit
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	around := func(n ast.Node, before, after string) {
		edits = append(edits, edit{offset(n.Pos()), before}, edit{offset(n.End()), after})
	}
	tagged := make(map[ast.Node]bool) // cases of a switch over a value
	var problem error
	done := false
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil || done {
			return false
		}
		if s, ok := n.(*ast.SwitchStmt); ok && s.Tag != nil {
			for _, c := range s.Body.List {
				tagged[c] = true
			}
		}
		if fset.Position(n.Pos()).Line != r.line {
			return true
		}
		switch n := n.(type) {
		case *ast.IfStmt:
			around(n.Cond, "false && (", ")")
		case *ast.CaseClause:
			if tagged[n] || n.List == nil {
				problem = errors.New("say what comes in place of a case without a condition")
			}
			for _, e := range n.List {
				around(e, "false && (", ")")
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.DeferStmt:
			around(n, "if false { ", " }")
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				problem = errors.New("say what comes in place of a definition")
			}
			around(n, "if false { ", " }")
		default:
			return true // something that contains it, or a part that says nothing
		}
		done = true
		return false
	})
	switch {
	case problem != nil:
		return nil, problem
	case !done:
		return nil, errors.New("the line is no condition and no statement: say what comes in its place")
	}
	return apply(src, edits), nil
}

// replace returns the source with old replaced by new in the rule's line.
func (r rule) replace(src []byte) ([]byte, error) {
	lines := strings.Split(string(src), "\n")
	code, _, _ := strings.Cut(lines[r.line-1], marker)
	if strings.Count(code, r.old) != 1 {
		return nil, fmt.Errorf("%q is there %d times", r.old, strings.Count(code, r.old))
	}
	lines[r.line-1] = strings.Replace(code, r.old, r.new, 1)
	return []byte(strings.Join(lines, "\n")), nil
}

// An edit is text to be inserted.
type edit struct {
	offset int
	text   string
}

// apply returns src with the edits, which are in the order of their offsets.
func apply(src []byte, edits []edit) []byte {
	var out []byte
	at := 0
	for _, e := range edits {
		out = append(append(out, src[at:e.offset]...), e.text...)
		at = e.offset
	}
	return append(out, src[at:]...)
}
