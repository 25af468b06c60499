package smc_test

import (
	"go/ast"
	"go/token"
	"path"
	"strings"
	"testing"
)

// smallTypes has the packages with types of one noun each: at most maxMethods methods in at most
// maxMethodFiles files, and no function with a complexity above maxComplexity. A package that is
// split gets a row.
var smallTypes = map[string]bool{"internal/smcd": true, "internal/smcr": true, "internal/transport": true}

const (
	maxMethods     = 25
	maxMethodFiles = 4
	maxComplexity  = 19
)

// TestTypesAreSmall checks the packages of smallTypes.
func TestTypesAreSmall(t *testing.T) {
	methods := make(map[string]int)           // by directory and type
	files := make(map[string]map[string]bool) // likewise
	checked := make(map[string]bool)          // directories
	eachFile(t, func(name string, f *ast.File) {
		dir := path.Dir(name)
		if !smallTypes[dir] || strings.HasSuffix(name, "_test.go") {
			return
		}
		checked[dir] = true
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := complexity(fn); n > maxComplexity {
				t.Errorf("%s: %s has a complexity of %d, above %d", name, fn.Name.Name, n, maxComplexity)
			}
			if fn.Recv == nil {
				continue
			}
			receiver := fn.Recv.List[0].Type
			if star, ok := receiver.(*ast.StarExpr); ok {
				receiver = star.X
			}
			key := dir + "." + receiver.(*ast.Ident).Name
			methods[key]++
			if files[key] == nil {
				files[key] = make(map[string]bool)
			}
			files[key][name] = true
		}
	})
	for key, n := range methods {
		if n > maxMethods || len(files[key]) > maxMethodFiles {
			t.Errorf("%s has %d methods in %d files, want at most %d in %d", key, n, len(files[key]), maxMethods, maxMethodFiles)
		}
	}
	for dir := range smallTypes {
		if !checked[dir] {
			t.Errorf("%s has no Go files", dir)
		}
	}
}

// complexity returns the cyclomatic complexity of a function, with the functions inside: one, and
// one for each branch, loop, case and logical operator.
func complexity(fn *ast.FuncDecl) int {
	n := 1
	ast.Inspect(fn, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if x.List != nil { // default is no branch
				n++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}
