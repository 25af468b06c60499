package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed overlay/net.go.txt
var netOverlay []byte

//go:embed overlay/stdhook.go.txt
var hookOverlay []byte

// modulePath is this module's, and stdPath what it is called inside the copy: packages of the standard
// library have no dot in their first element.
const (
	modulePath = "github.com/gosmc/smc"
	stdPath    = "gosmc"
)

// An edit puts text before or after the only place in a file of GOROOT/src that has the text at.
type edit struct {
	file, at, text string
	before         bool
}

// edits make package net ask for SMC. Each is at the start of a function, so that the rest of
// package net is as it was.
var edits = []edit{
	{file: "net/fd_posix.go", at: "type netFD struct {\n", text: "\tover SMCConn\n\tlistener SMCListener\n"},
	inFunc("net/fd_posix.go", "(fd *netFD) Close() error", "if fd.over != nil { return smcError(fd.over.Close()) }; if fd.listener != nil { return smcError(fd.listener.Close()) }"),
	inFunc("net/fd_posix.go", "(fd *netFD) closeRead() error", "if fd.over != nil { return smcError(fd.over.CloseRead()) }"),
	inFunc("net/fd_posix.go", "(fd *netFD) closeWrite() error", "if fd.over != nil { return smcError(fd.over.CloseWrite()) }"),
	inFunc("net/fd_posix.go", "(fd *netFD) Read(p []byte) (n int, err error)", "if fd.over != nil { n, err = fd.over.Read(p); return n, smcError(err) }"),
	inFunc("net/fd_posix.go", "(fd *netFD) Write(p []byte) (nn int, err error)", "if fd.over != nil { nn, err = fd.over.Write(p); return nn, smcError(err) }"),
	inFunc("net/fd_posix.go", "(fd *netFD) SetDeadline(t time.Time) error", "if fd.over != nil { return smcError(fd.over.SetDeadline(t)) }; if fd.listener != nil { return smcError(fd.listener.SetDeadline(t)) }"),
	inFunc("net/fd_posix.go", "(fd *netFD) SetReadDeadline(t time.Time) error", "if fd.over != nil { return smcError(fd.over.SetReadDeadline(t)) }"),
	inFunc("net/fd_posix.go", "(fd *netFD) SetWriteDeadline(t time.Time) error", "if fd.over != nil { return smcError(fd.over.SetWriteDeadline(t)) }"),
	inFunc("net/fd_unix.go", "(fd *netFD) dup() (f *os.File, err error)", "if fd.over != nil { f, err = fd.over.File(); return f, smcError(err) }; if fd.listener != nil { f, err = fd.listener.File(); return f, smcError(err) }"),
	inFunc("net/writev_unix.go", "(fd *netFD) writeBuffers(v *Buffers) (n int64, err error)", "if fd.over != nil { n, err = fd.over.WriteBuffers(v); return n, smcError(err) }"),
	inFunc("net/tcpsock_posix.go", "(c *TCPConn) readFrom(r io.Reader) (int64, error)", "if c.fd.over != nil { n, err := c.fd.over.ReadFrom(r); return n, smcError(err) }"),
	inFunc("net/tcpsock_posix.go", "(c *TCPConn) writeTo(w io.Writer) (int64, error)", "if c.fd.over != nil { n, err := c.fd.over.WriteTo(w); return n, smcError(err) }"),
	inFunc("net/tcpsock_posix.go", "(sd *sysDialer) doDialTCPProto(ctx context.Context, laddr, raddr *TCPAddr, proto int) (*TCPConn, error)",
		"if SMCDial != nil && !smcIsRaw(ctx) && smcCanName(raddr) { return sd.smcDialTCP(ctx, laddr, raddr) }"),
	// The hooks of package net's tests are asked once, not again for the socket below.
	inFunc("net/tcpsock_posix.go", "(sd *sysDialer) dialTCP(ctx context.Context, laddr, raddr *TCPAddr) (*TCPConn, error)",
		"if smcIsRaw(ctx) { return sd.doDialTCP(ctx, laddr, raddr) }"),
	inFunc("net/tcpsock_posix.go", "(sl *sysListener) listenTCPProto(ctx context.Context, laddr *TCPAddr, proto int) (*TCPListener, error)",
		"if SMCListen != nil && !smcIsRaw(ctx) { return sl.smcListenTCP(ctx, laddr) }"),
	inFunc("net/tcpsock_posix.go", "(ln *TCPListener) accept() (*TCPConn, error)", "if ln.fd.listener != nil { return ln.fd.smcAccept() }"),
	inFunc("net/tcpsock.go", "(c *TCPConn) SyscallConn() (syscall.RawConn, error)", "if c.ok() && c.fd.over != nil { return c.fd.over.SyscallConn() }"),
	inFunc("net/tcpsock.go", "(l *TCPListener) SyscallConn() (syscall.RawConn, error)", "if l.ok() && l.fd.listener != nil { return l.fd.listener.SyscallConn() }"),
	inFunc("net/tcpsockopt_posix.go", "setNoDelay(fd *netFD, noDelay bool) error", "if fd.over != nil { return smcError(fd.over.SetNoDelay(noDelay)) }"),
	inFunc("net/tcpsockopt_unix.go", "setKeepAliveIdle(fd *netFD, d time.Duration) error", smcKeepAlive("Idle: d, Interval: -1, Count: -1")),
	inFunc("net/tcpsockopt_unix.go", "setKeepAliveInterval(fd *netFD, d time.Duration) error", smcKeepAlive("Idle: -1, Interval: d, Count: -1")),
	inFunc("net/tcpsockopt_unix.go", "setKeepAliveCount(fd *netFD, n int) error", smcKeepAlive("Idle: -1, Interval: -1, Count: n")),
	inFunc("net/sockopt_posix.go", "setReadBuffer(fd *netFD, bytes int) error", "if fd.over != nil { return smcError(fd.over.SetReadBuffer(bytes)) }"),
	inFunc("net/sockopt_posix.go", "setWriteBuffer(fd *netFD, bytes int) error", "if fd.over != nil { return smcError(fd.over.SetWriteBuffer(bytes)) }"),
	inFunc("net/sockopt_posix.go", "setKeepAlive(fd *netFD, keepalive bool) error", "if fd.over != nil { return smcError(fd.over.SetKeepAlive(keepalive)) }"),
	inFunc("net/sockopt_posix.go", "setLinger(fd *netFD, sec int) error", "if fd.over != nil { return smcError(fd.over.SetLinger(sec)) }"),
	// What moves bytes between sockets in the kernel must find sockets.
	{file: "net/splice_linux.go", at: "\twritten, handled, err = pollSplice(&c.pfd, &s.pfd, remain)\n", before: true,
		text: "\tif c.over != nil || s.over != nil { return 0, nil, false }\n"},
	{file: "net/splice_linux.go", at: "\twritten, handled, err = pollSplice(&uc.fd.pfd, &c.pfd, 1<<63-1)\n", before: true,
		text: "\tif c.over != nil { return 0, nil, false }\n"},
	// The main package of every test imports this one.
	{file: "testing/internal/testdeps/deps.go", at: "import (\n", text: "\t_ \"" + stdPath + "/stdhook\"\n"},
}

// inFunc returns an edit that puts a statement at the start of a function.
func inFunc(file, signature, statement string) edit {
	return edit{file: file, at: "\nfunc " + signature + " {\n", text: "\t" + statement + "\n"}
}

func smcKeepAlive(fields string) string {
	return "if fd.over != nil { return smcError(fd.over.SetKeepAliveConfig(KeepAliveConfig{Enable: true, " + fields + "})) }"
}

// makeGoroot makes a copy of GOROOT in dir whose package net makes its TCP connections with package
// smc of the module in moduleDir.
func makeGoroot(ctx context.Context, dir, moduleDir string) error {
	goroot, err := run(ctx, "", "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	// A file that is written below is replaced, never changed: it may be shared with the original.
	for _, part := range []string{"bin", "go.env", "lib", "pkg", "src", "VERSION"} {
		source := filepath.Join(strings.TrimSpace(goroot), part)
		if _, err := run(ctx, "", "cp", "-a", "-l", source, dir); err == nil {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, part)); err != nil {
			return err
		}
		if _, err := run(ctx, "", "cp", "-a", source, dir); err != nil { // on another file system
			return err
		}
	}
	src := filepath.Join(dir, "src")
	for _, e := range edits {
		if err := e.apply(src); err != nil {
			return err
		}
	}
	if err := replaceFile(filepath.Join(src, "net", "smc_std.go"), netOverlay); err != nil {
		return err
	}
	return addModule(ctx, src, moduleDir)
}

func (e edit) apply(src string) error {
	name := filepath.Join(src, e.file)
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), e.at); n != 1 {
		return fmt.Errorf("%s has %d places like %q, want 1: this version of Go is another one than test/std/goroot.go knows", e.file, n, e.at)
	}
	with := e.at + e.text
	if e.before {
		with = e.text + e.at
	}
	return replaceFile(name, []byte(strings.Replace(string(text), e.at, with, 1)))
}

// replaceFile writes a new file in the place of name.
func replaceFile(name string, text []byte) error {
	if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

// addModule puts the packages of this module, of what they import, and the hook into src.
func addModule(ctx context.Context, src, moduleDir string) error {
	list, err := run(ctx, moduleDir, "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}} {{.Dir}}{{end}}", ".")
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		importPath, from, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			continue
		}
		to := filepath.Join(src, "vendor", importPath)
		if rest, ours := strings.CutPrefix(importPath, modulePath); ours {
			to = filepath.Join(src, stdPath, rest)
		}
		if err := copyPackage(from, to); err != nil {
			return err
		}
	}
	hook := filepath.Join(src, stdPath, "stdhook")
	if err := os.MkdirAll(hook, 0o755); err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(hook, "hook.go"), rename(hookOverlay)); err != nil {
		return err
	}
	return vendorSys(filepath.Join(src, "vendor", "modules.txt"))
}

// copyPackage copies the files of a package that are built, with imports as they are in the copy.
func copyPackage(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		ext := filepath.Ext(name)
		if e.IsDir() || strings.HasSuffix(name, "_test.go") || ext != ".go" && ext != ".s" && ext != ".h" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := replaceFile(filepath.Join(to, name), rename(text)); err != nil {
			return err
		}
	}
	return nil
}

// rename gives this module's packages the names that they have in the copy.
func rename(text []byte) []byte {
	s := strings.ReplaceAll(string(text), "\""+modulePath+"/", "\""+stdPath+"/")
	return []byte(strings.ReplaceAll(s, "\""+modulePath+"\"", "\""+stdPath+"\""))
}

// vendorSys tells the go command that the standard library has golang.org/x/sys/unix.
func vendorSys(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	const has = "golang.org/x/sys/cpu\n"
	if !strings.Contains(string(text), has) {
		return fmt.Errorf("%s has no %q", name, has)
	}
	return replaceFile(name, []byte(strings.Replace(string(text), has, has+"golang.org/x/sys/unix\n", 1)))
}
