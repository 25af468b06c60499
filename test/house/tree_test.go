// Package house holds the source tree to its limits: sizes of packages, methods of types, width of lines, and plain sentences.
// docs/architecture.md gives the reasons. A limit that a part of the tree does not meet yet has an entry in exceptions_test.go.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// root is the module's directory.
const root = "../.."

// A source is a Go file of the product: no test, nothing that only tests use, nothing generated.
type source struct {
	name string // slash-separated, from the root
	text string
	file *ast.File
	fset *token.FileSet
}

func (s *source) dir() string { return path.Dir(s.name) }

// tree holds the sources, once they are read.
var tree []*source

// sources returns the Go files of the product.
func sources(t *testing.T) []*source {
	t.Helper()
	if tree != nil {
		return tree
	}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(name, root+"/"))
		if d.IsDir() {
			if name != root && skipped(rel, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		s := &source{name: rel, text: string(text), fset: token.NewFileSet()}
		if s.file, err = parser.ParseFile(s.fset, rel, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			return err
		}
		if !ast.IsGenerated(s.file) {
			tree = append(tree, s)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(tree) < 100 {
		t.Fatalf("%d files in %s", len(tree), root)
	}
	return tree
}

// skipped reports whether a directory has nothing of the product.
func skipped(rel, base string) bool {
	switch rel {
	case "test", "bin", "dist", "internal/smctest", "internal/core/coretest", "internal/dissect/dissecttest":
		return true
	}
	return base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
}
