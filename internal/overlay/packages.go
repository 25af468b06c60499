package overlay

import (
	"embed"
	_ "embed"
	"fmt"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	_ "unsafe" // for go:linkname

	_ "github.com/gosmc/smc" // has sources
)

// sources are the sources of package smc.
//
//go:linkname sources github.com/gosmc/smc.sources
var sources embed.FS

//go:embed smc.go.txt
var netSide string

// modulePath is this module's path, and stdPath its path in the standard library, whose packages
// have no dot in their first element.
const (
	modulePath = "github.com/gosmc/smc"
	stdPath    = "gosmc"
)

// packages are those that package smc imports of elsewhere and that it finds below stdPath: those
// that use package net, which imports package smc, one that would bring in cgo, and x/sys. The
// toolchain has a copy of x/sys.
var packages = map[string]string{
	"net":                   "net",
	"log/syslog":            "log/syslog",
	"os/user":               "os/user",
	"golang.org/x/sys/unix": "cmd/vendor/golang.org/x/sys/unix",
}

// renamed returns the path that an import has in the standard library.
func renamed(imported string) string {
	if rest, ours := strings.CutPrefix(imported, modulePath); ours && (rest == "" || rest[0] == '/') {
		return stdPath + rest
	}
	if _, copied := packages[imported]; copied {
		return stdPath + "/" + path.Base(imported)
	}
	return imported
}

// withoutAssembly has the files that take the place of files that declare functions in assembly.
// The go command runs the assembler in the directory of a package, and the files of an overlay are
// not there.
var withoutAssembly = map[string]string{
	"gosmc/internal/stream/pause.go": `//go:build amd64 || arm64

package stream

import _ "unsafe" // for go:linkname

// pause tells the processor that this is a spin loop, n times.
//
//go:linkname pause runtime.procyield
func pause(n uint32)
`,
	"gosmc/internal/stream/release_amd64.go": `//go:build amd64 && !race

package stream

import (
	"sync/atomic"
	"unsafe"
)

// storeRelease stores a word that others load, after everything that this goroutine has stored before: the processor keeps the order of
// stores, and the compiler that of a store and a call.
//
//go:noinline
func storeRelease(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
`,
	"gosmc/unix/syscall_unix_gc.go": `package unix

import (
	"syscall"
	_ "unsafe" // for go:linkname
)

//go:linkname Syscall syscall.Syscall
func Syscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, err syscall.Errno)

//go:linkname Syscall6 syscall.Syscall6
func Syscall6(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err syscall.Errno)

//go:linkname RawSyscall syscall.RawSyscall
func RawSyscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, err syscall.Errno)

//go:linkname RawSyscall6 syscall.RawSyscall6
func RawSyscall6(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err syscall.Errno)
`,
	// Arguments that were pointers live until the call is over, and the stack, which some point
	// into, stays where it is, as in package syscall.
	"gosmc/unix/syscall_linux_gc.go": `package unix

// SyscallNoError may be used instead of Syscall for syscalls that don't fail.
//
//go:uintptrkeepalive
//go:nosplit
func SyscallNoError(trap, a1, a2, a3 uintptr) (r1, r2 uintptr) {
	r1, r2, _ = Syscall(trap, a1, a2, a3)
	return r1, r2
}

// RawSyscallNoError may be used instead of RawSyscall for syscalls that don't fail.
//
//go:uintptrkeepalive
//go:nosplit
func RawSyscallNoError(trap, a1, a2, a3 uintptr) (r1, r2 uintptr) {
	r1, r2, _ = RawSyscall(trap, a1, a2, a3)
	return r1, r2
}
`,
	"gosmc/unix/syscall_linux_amd64_gc.go": `package unix

import (
	"syscall"
	"unsafe"
)

func gettimeofday(tv *Timeval) (err syscall.Errno) {
	_, _, err = RawSyscall(SYS_GETTIMEOFDAY, uintptr(unsafe.Pointer(tv)), 0, 0)
	return err
}
`,
}

// add adds a file with the imports that it has in the standard library.
func (s set) add(name, text string) (err error) {
	if with, ok := withoutAssembly[name]; ok {
		text = with
	}
	s[name], err = rename(name, text)
	return err
}

// rename gives the imports of a Go file the paths that they have in the standard library.
func rename(name, text string) (string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly|parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	for _, spec := range slices.Backward(f.Imports) { // those before keep their places
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return "", err
		}
		begin, end := int(spec.Path.Pos()-f.FileStart), int(spec.Path.End()-f.FileStart)
		text = text[:begin] + strconv.Quote(renamed(imported)) + text[end:]
	}
	return text, nil
}

// addModule adds package smc and the packages of this module that it imports.
func (s set) addModule(Options) error {
	return fs.WalkDir(sources, ".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		names, err := goFiles(sources, dir)
		for _, name := range names {
			if name == "sources.go" {
				continue
			}
			text, err := fs.ReadFile(sources, path.Join(dir, name))
			if err == nil {
				err = s.add(path.Join(stdPath, dir, name), string(text))
			}
			if err != nil {
				return err
			}
		}
		return err
	})
}

// addNet adds the files of package net that are another one on targets that have SMC.
func (s set) addNet(o Options) error {
	edited := make(map[string]string)
	for _, e := range edits {
		text, seen := edited[e.file]
		if !seen {
			original, err := os.ReadFile(filepath.Join(o.Toolchain.GOROOT, "src", "net", e.file))
			if err != nil {
				return err
			}
			text = string(original)
			if s["net/"+e.file], err = confine(text, "!("+here+")"); err != nil {
				return err
			}
		}
		text, err := e.apply(text)
		if err != nil {
			return err
		}
		edited[e.file] = text
	}
	edited[".go"] = strings.ReplaceAll(netSide, "GOSMC_MARK", makeMark(o.Version, o.Toolchain.Version))
	for file, text := range edited {
		text, err := confine(text, here)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimSuffix(file, ".go")+"_smc.go", "_")
		s["net/"+name] = text
	}
	return nil
}

// rawErrors are of package net, for its original to know them by.
const rawErrors = `package net

import (
	"os"
	_ "unsafe" // for go:linkname
)

// RawErrors are those that have no type of their own.
var RawErrors = [...]error{errTimeout, errCanceled, ErrWriteToConnected, errMissingAddress, errNoSuitableAddress}

// Package os defines it, for package net.
//
//go:linkname newUnixFile net.newUnixFile
func newUnixFile(fd int, name string) *os.File
`

// addRawNet adds the package net that package smc has, which is as it was.
func (s set) addRawNet(o Options) error {
	if err := s.addCopy(o, "net"); err != nil {
		return err
	}
	const place, here = "\nfunc newUnixFile(fd int, name string) *os.File\n", stdPath + "/net/fd_unix.go"
	if strings.Count(s[here], place) != 1 {
		return fmt.Errorf("net/fd_unix.go does not have %q once", place)
	}
	s[here] = strings.Replace(s[here], place, "\n", 1)
	s[stdPath+"/net/raw.go"] = rawErrors
	return nil
}

// addStandard adds the other packages.
func (s set) addStandard(o Options) error {
	for imported := range packages {
		if imported != "net" {
			if err := s.addCopy(o, imported); err != nil {
				return err
			}
		}
	}
	return nil
}

// addCopy adds the files of a package that are built on Linux without cgo, also where the program
// is built with cgo.
func (s set) addCopy(o Options, imported string) error {
	dir := filepath.Join(o.Toolchain.GOROOT, "src", filepath.FromSlash(packages[imported]))
	names, err := goFiles(os.DirFS(dir), ".")
	if err != nil {
		return err
	}
	for _, name := range names {
		amd64, err := linux("amd64", o).MatchFile(dir, name)
		if err != nil {
			return err
		}
		arm64, err := linux("arm64", o).MatchFile(dir, name)
		if err != nil {
			return err
		}
		if !amd64 && !arm64 {
			continue
		}
		original, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		text := string(original)
		if amd64 && arm64 {
			_, text = splitConstraint(text) // which the settings of the program would decide
		}
		if err := s.add(path.Join(renamed(imported), name), text); err != nil {
			return err
		}
	}
	return nil
}

func linux(arch string, o Options) *build.Context {
	return &build.Context{GOOS: "linux", GOARCH: arch, GOROOT: o.Toolchain.GOROOT, Compiler: "gc", ReleaseTags: build.Default.ReleaseTags}
}
