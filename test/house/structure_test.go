package house

import (
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Limits of the structure.
const (
	maxPackageLines = 4500
	maxHostLines    = 3500
	maxHostFiles    = 20
	maxMethods      = 25 // of a type
	maxMethodFiles  = 4  // that have methods of a type
	maxColumns      = 110
	tabWidth        = 4
)

// TestPackageSizes checks how many lines and files packages have.
func TestPackageSizes(t *testing.T) {
	lines, files := make(map[string]int), make(map[string]int)
	for _, s := range sources(t) {
		lines[s.dir()] += strings.Count(s.text, "\n")
		files[s.dir()]++
	}
	var checked checkedExceptions
	for _, dir := range slices.Sorted(maps.Keys(lines)) {
		limit := maxPackageLines
		if dir == "internal/host" {
			limit = maxHostLines
			if files[dir] >= maxHostFiles {
				t.Errorf("%s has %d files, want less than %d", dir, files[dir], maxHostFiles)
			}
		}
		checked.check(t, packageLines, dir, lines[dir], limit, "lines")
	}
	checked.complete(t, packageLines)
}

// A receiver is a type with methods.
type receiver struct {
	methods int
	files   map[string]bool
}

// receivers returns the types that have methods, by package and name.
func receivers(list []*source) map[string]*receiver {
	types := make(map[string]*receiver)
	for _, s := range list {
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			name := s.dir() + "." + typeName(f.Recv.List[0].Type)
			if types[name] == nil {
				types[name] = &receiver{files: make(map[string]bool)}
			}
			types[name].methods++
			types[name].files[s.name] = true
		}
	}
	return types
}

// typeName returns the name of a receiver's type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// TestMethods checks how many methods a type has, and over how many files they are spread.
func TestMethods(t *testing.T) {
	types := receivers(sources(t))
	var methods, files checkedExceptions
	for _, name := range slices.Sorted(maps.Keys(types)) {
		methods.check(t, typeMethods, name, types[name].methods, maxMethods, "methods")
		files.check(t, typeFiles, name, len(types[name].files), maxMethodFiles, "files with methods")
	}
	methods.complete(t, typeMethods)
	files.complete(t, typeFiles)
}

// TestColumns checks how wide lines are, in Go and in C.
func TestColumns(t *testing.T) {
	wide := make(map[string]int)
	count := func(dir, text string) {
		for line := range strings.Lines(text) {
			if columns(line) > maxColumns {
				wide[dir]++
			}
		}
	}
	for _, s := range sources(t) {
		count(s.dir(), s.text)
	}
	for _, dir := range []string{"preload/src", "preload/bench", "bpf/kernel"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.[ch]"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no C code in %s: %v", dir, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			count(dir, string(text))
		}
	}
	var checked checkedExceptions
	for _, dir := range slices.Sorted(maps.Keys(wide)) {
		checked.check(t, wideLines, dir, wide[dir], 0, "lines of more than 110 columns")
	}
	checked.complete(t, wideLines)
}

// columns returns the width of a line without the mark of a rule at its end, which is for test/rules.
func columns(line string) int {
	line, _, _ = strings.Cut(strings.TrimRight(line, "\n"), "// rule: ")
	line = strings.TrimRight(line, " ")
	n := 0
	for _, r := range line {
		if r == '\t' {
			n += tabWidth
		} else {
			n++
		}
	}
	return n
}
