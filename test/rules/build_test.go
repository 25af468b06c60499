package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// noPackages is an importer for code whose dependencies do not matter.
type noPackages struct{}

func (noPackages) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// unused returns the variables and imports of a package that nothing uses, which the compiler
// refuses. Only the names in the package are known: nothing is built.
func unused(fset *token.FileSet, files map[string]*ast.File) map[string]bool {
	found := make(map[string]bool)
	cfg := types.Config{Importer: noPackages{}, Error: func(err error) {
		if e, ok := errors.AsType[types.Error](err); ok && strings.Contains(e.Msg, "not used") {
			at := fset.Position(e.Pos)
			found[fmt.Sprintf("%s:%d: %s", filepath.Base(at.Filename), at.Line, e.Msg)] = true
		}
	}}
	cfg.Check("p", fset, slices.Collect(maps.Values(files)), nil)
	return found
}

var names = regexp.MustCompile(`[\pL_][\pL\d_]*`)

// losesName reports whether a name is not used any more in the place of the rule.
func (r rule) losesName() bool {
	kept := names.FindAllString(r.new, -1)
	return slices.ContainsFunc(names.FindAllString(r.old, -1), func(name string) bool { return !slices.Contains(kept, name) })
}

// TestMarkersBuild checks that no rule leaves a variable or an import unused when it is taken out: its test
// could not be built, and the rule would not be tried.
func TestMarkersBuild(t *testing.T) {
	const root = "../.."
	rules, err := findRules(root)
	if err != nil {
		t.Fatal(err)
	}
	dirs := make(map[string][]rule)
	for _, r := range rules {
		if r.losesName() { // others leave all that they have in place
			dirs[path.Dir(r.file)] = append(dirs[path.Dir(r.file)], r)
		}
	}
	for dir, list := range dirs {
		fset := token.NewFileSet()
		whole := make(map[string]*ast.File) // by path from the root
		names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			whole[path.Join(dir, filepath.Base(name))] = f
		}
		before := unused(fset, whole)
		for _, r := range list {
			src, err := os.ReadFile(filepath.Join(root, r.file))
			if err != nil {
				t.Fatal(err)
			}
			if src, err = r.without(src); err != nil {
				t.Fatal(err)
			}
			files := maps.Clone(whole)
			if files[r.file], err = parser.ParseFile(fset, r.file, src, parser.SkipObjectResolution); err != nil {
				t.Errorf("%v: without it: %v", r, err)
				continue
			}
			for complaint := range unused(fset, files) {
				if !before[complaint] {
					t.Errorf("%v: without it %s", r, complaint)
				}
			}
		}
	}
}
