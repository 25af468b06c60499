package house

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// outputs are the machines without I/O: the method that marks an output of each, and the function that carries outputs out.
var outputs = []struct{ dir, mark, carrier, function string }{
	{"internal/core", "connOutput", "internal/conn", "life.carryOut"},
	{"internal/core", "handshakeOutput", "internal/handshake", "handshake.carryOut"},
	{"internal/llcflow", "output", "internal/smcr", "group.carryOut"},
}

// TestOutputs checks that every output of a machine is carried out. The compiler refuses the outputs of another machine in a
// switch; an output that a switch lacks would be lost, and nothing would say so.
func TestOutputs(t *testing.T) {
	list := sources(t)
	for _, m := range outputs {
		marked, cases := markedTypes(list, m.dir, m.mark), switchCases(list, m.carrier, m.function)
		if len(marked) < 2 {
			t.Errorf("%s: %d types with a method %s", m.dir, len(marked), m.mark)
		}
		for _, name := range marked {
			if !slices.Contains(cases, name) {
				t.Errorf("%s of %s does not carry out %s of %s", m.function, m.carrier, name, m.dir)
			}
		}
	}
}

// markedTypes returns the types of a package that have a method.
func markedTypes(list []*source, dir, method string) (names []string) {
	for _, s := range list {
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && s.dir() == dir && f.Recv != nil && f.Name.Name == method {
				names = append(names, typeName(f.Recv.List[0].Type))
			}
		}
	}
	return names
}

// switchCases returns the types of another package that are cases in a method, without the package's name.
func switchCases(list []*source, dir, function string) (names []string) {
	receiver, method, _ := strings.Cut(function, ".")
	for _, s := range list {
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || s.dir() != dir || f.Recv == nil || f.Name.Name != method || typeName(f.Recv.List[0].Type) != receiver {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				c, ok := n.(*ast.CaseClause)
				if !ok {
					return true
				}
				for _, e := range c.List {
					_, name, _ := strings.Cut(types.ExprString(e), ".")
					names = append(names, name)
				}
				return true
			})
		}
	}
	return names
}
