package overlay

import (
	"fmt"
	"go/build/constraint"
	"strings"
)

// An edit puts text before or after the only place in a file of package net that has the text at.
type edit struct {
	file, at, text string
	before         bool
}

// edits let the TCP connections and listeners of package net have one of package smc in place of a
// socket. Each is at the start of a function, so that the rest of package net is as it was.
var edits = []edit{
	{file: "fd_posix.go", at: "type netFD struct {\n", text: "\tover *smcConn\n\tlistener *smcListener\n"},
	inFunc("fd_posix.go", "(fd *netFD) Close() error",
		"if fd.over != nil { return fd.over.Close() }; if fd.listener != nil { return fd.listener.Close() }"),
	inFunc("fd_posix.go", "(fd *netFD) closeRead() error",
		"if fd.over != nil { return fd.over.CloseRead() }"),
	inFunc("fd_posix.go", "(fd *netFD) closeWrite() error",
		"if fd.over != nil { return fd.over.CloseWrite() }"),
	inFunc("fd_posix.go", "(fd *netFD) Read(p []byte) (n int, err error)",
		"if fd.over != nil { return fd.over.Read(p) }"),
	inFunc("fd_posix.go", "(fd *netFD) Write(p []byte) (nn int, err error)",
		"if fd.over != nil { return fd.over.Write(p) }"),
	inFunc("fd_posix.go", "(fd *netFD) SetDeadline(t time.Time) error", "if fd.over != nil { return fd.over.SetDeadline(t) }; if fd.listener != nil { return fd.listener.SetDeadline(t) }"),
	inFunc("fd_posix.go", "(fd *netFD) SetReadDeadline(t time.Time) error",
		"if fd.over != nil { return fd.over.SetReadDeadline(t) }"),
	inFunc("fd_posix.go", "(fd *netFD) SetWriteDeadline(t time.Time) error",
		"if fd.over != nil { return fd.over.SetWriteDeadline(t) }"),
	inFunc("fd_unix.go", "(fd *netFD) dup() (f *os.File, err error)",
		"if fd.over != nil { return fd.over.File() }; if fd.listener != nil { return fd.listener.File() }"),
	inFunc("writev_unix.go", "(fd *netFD) writeBuffers(v *Buffers) (n int64, err error)",
		"if fd.over != nil { return fd.over.WriteBuffers(v) }"),
	inFunc("tcpsock_posix.go", "(c *TCPConn) readFrom(r io.Reader) (int64, error)",
		"if c.fd.over != nil { return c.fd.over.ReadFrom(r) }"),
	inFunc("tcpsock_posix.go", "(c *TCPConn) writeTo(w io.Writer) (int64, error)",
		"if c.fd.over != nil { return c.fd.over.WriteTo(w) }"),
	inFunc("tcpsock_posix.go", "(sd *sysDialer) doDialTCPProto(ctx context.Context, laddr, raddr *TCPAddr, proto int) (*TCPConn, error)",
		"if sd.overSMC(raddr) { return sd.smcDialTCP(ctx, laddr, raddr) }"),
	inFunc("tcpsock_posix.go", "(sl *sysListener) listenTCPProto(ctx context.Context, laddr *TCPAddr, proto int) (*TCPListener, error)",
		"if sl.overSMC() { return sl.smcListenTCP(ctx, laddr) }"),
	inFunc("tcpsock_posix.go", "(ln *TCPListener) accept() (*TCPConn, error)",
		"if ln.fd.listener != nil { return ln.fd.smcAccept() }"),
	inFunc("tcpsock.go", "(c *TCPConn) SyscallConn() (syscall.RawConn, error)",
		"if c.ok() && c.fd.over != nil { return c.fd.over.SyscallConn() }"),
	inFunc("tcpsock.go", "(l *TCPListener) SyscallConn() (syscall.RawConn, error)",
		"if l.ok() && l.fd.listener != nil { return l.fd.listener.SyscallConn() }"),
	inFunc("tcpsockopt_posix.go", "setNoDelay(fd *netFD, noDelay bool) error",
		"if fd.over != nil { return fd.over.SetNoDelay(noDelay) }"),
	inFunc("tcpsockopt_unix.go", "setKeepAliveIdle(fd *netFD, d time.Duration) error",
		keepAlive("Idle: d, Interval: -1, Count: -1")),
	inFunc("tcpsockopt_unix.go", "setKeepAliveInterval(fd *netFD, d time.Duration) error",
		keepAlive("Idle: -1, Interval: d, Count: -1")),
	inFunc("tcpsockopt_unix.go", "setKeepAliveCount(fd *netFD, n int) error",
		keepAlive("Idle: -1, Interval: -1, Count: n")),
	inFunc("sockopt_posix.go", "setReadBuffer(fd *netFD, bytes int) error",
		"if fd.over != nil { return fd.over.SetReadBuffer(bytes) }"),
	inFunc("sockopt_posix.go", "setWriteBuffer(fd *netFD, bytes int) error",
		"if fd.over != nil { return fd.over.SetWriteBuffer(bytes) }"),
	inFunc("sockopt_posix.go", "setKeepAlive(fd *netFD, keepalive bool) error",
		"if fd.over != nil { return fd.over.SetKeepAlive(keepalive) }"),
	inFunc("sockopt_posix.go", "setLinger(fd *netFD, sec int) error",
		"if fd.over != nil { return fd.over.SetLinger(sec) }"),
	// Calls that move bytes between sockets in the kernel must find sockets.
	{file: "splice_linux.go", at: "\twritten, handled, err = pollSplice(&c.pfd, &s.pfd, remain)\n",
		before: true,
		text:   "\tif c.over != nil || s.over != nil { return 0, nil, false }\n"},
	{file: "splice_linux.go", at: "\twritten, handled, err = pollSplice(&uc.fd.pfd, &c.pfd, 1<<63-1)\n",
		before: true,
		text:   "\tif c.over != nil { return 0, nil, false }\n"},
}

// inFunc returns an edit that puts a statement at the start of a function.
func inFunc(file, signature, statement string) edit {
	return edit{file: file, at: "\nfunc " + signature + " {\n", text: "\t" + statement + "\n"}
}

func keepAlive(fields string) string {
	return "if fd.over != nil { return fd.over.SetKeepAliveConfig(KeepAliveConfig{Enable: true, " + fields + "}) }"
}

// apply returns the text of a file with the edit.
func (e edit) apply(text string) (string, error) {
	if n := strings.Count(text, e.at); n != 1 {
		return "", fmt.Errorf("net/%s has %d places like %q, want 1", e.file, n, e.at)
	}
	with := e.at + e.text
	if e.before {
		with = e.text + e.at
	}
	return strings.Replace(text, e.at, with, 1), nil
}

// here are the targets on which connections move; a file for others is as it was.
const here = "linux && (amd64 || arm64)"

// confine returns the text of a Go file that is built where its own constraint holds and the condition, too.
func confine(text, condition string) (string, error) {
	own, rest := splitConstraint(text)
	if own != "" {
		condition = "(" + own + ") && (" + condition + ")"
	}
	x, err := constraint.Parse("//go:build " + condition)
	if err != nil {
		return "", err
	}
	return "//go:build " + x.String() + "\n\n" + rest, nil
}

// splitConstraint takes the constraint out of the text of a Go file.
func splitConstraint(text string) (condition, rest string) {
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if constraint.IsGoBuild(trimmed) {
			return strings.TrimPrefix(trimmed, "//go:build "), strings.Replace(text, line, "", 1)
		}
		if strings.HasPrefix(trimmed, "package ") {
			break
		}
	}
	return "", text
}
