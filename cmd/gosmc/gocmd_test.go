package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goProgram serves HTTP on an address that it prints, or asks such a server three times over one connection and keeps it, until its
// input ends.
const goProgram = `package main

import (
	"syscall"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"example.com/words"
)

func main() {
	if len(os.Args) == 1 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(l.(*net.TCPListener).Addr())
		if os.Getenv("RAW") != "" {
			l = rawListener{l}
		}
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %d", words.Hello, len(b))
		}))
	} else {
		if os.Getenv("RAW") != "" {
			http.DefaultTransport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				return newRaw(c, err)
			}
		}
		for range 3 {
			r, err := http.Post("http://"+os.Args[1], "text/plain", io.LimitReader(zeros{}, 1<<20))
			if err != nil {
				panic(err)
			}
			b, _ := io.ReadAll(r.Body)
			r.Body.Close()
			fmt.Println(string(b))
		}
	}
	io.Copy(io.Discard, os.Stdin)
}

// A rawConn reads out of the descriptor of a connection, as grpc does, and now and then by Read.
type rawConn struct {
	*net.TCPConn
	raw   syscall.RawConn
	reads int
}

func newRaw(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	return &rawConn{TCPConn: c.(*net.TCPConn), raw: raw}, err
}

func (c *rawConn) Read(b []byte) (n int, err error) {
	if c.reads++; c.reads%3 == 0 {
		return c.TCPConn.Read(b)
	}
	if c.reads%3 == 1 { // and leaves some
		b = b[:min(len(b), 100)]
	}
	if rawErr := c.raw.Read(func(fd uintptr) bool {
		n, err = syscall.Read(int(fd), b)
		return err != syscall.EAGAIN
	}); rawErr != nil {
		return 0, rawErr
	}
	if err != nil {
		return 0, err
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

type rawListener struct{ net.Listener }

func (l rawListener) Accept() (net.Conn, error) { return newRaw(l.Listener.Accept()) }

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
`

// writeFiles writes files below a directory.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// goSmc runs this command in a directory as a process of its own, which becomes the go command.
func goSmc(t *testing.T, dir string, environ []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"go"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), childOfTest+"=main", "GOFLAGS=", "GOPROXY=off"), environ...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// startGo runs a program until the test ends and returns the first lines that it prints.
func startGo(t *testing.T, lines int, environ []string, program string, args ...string) (first []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), environ...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	for s := bufio.NewScanner(stdout); len(first) < lines && s.Scan(); {
		first = append(first, s.Text())
	}
	return first
}

// modesOf returns the modes of the connections at an address that ss shows, of both ends, sorted.
func modesOf(t *testing.T, address string) (modes []string) {
	t.Helper()
	got := gosmc(t, "", "ss", "--json")
	var r struct {
		Connections []struct{ Local, Peer, Mode string }
	}
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("ss --json = %d, %v, %q", got.code, err, got.stderr)
	}
	for _, c := range r.Connections {
		if c.Local == address || c.Peer == address {
			modes = append(modes, c.Mode)
		}
	}
	slices.Sort(modes)
	return modes
}

// An unchanged server and client that 'gosmc go build' has compiled talk over SMC-D, with a plain one over TCP, and so they do where that is switched off. The
// module is built as it is, with its packages vendored, in a workspace, and without cgo.
func TestGoBuild(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	dir := t.TempDir()
	t.Setenv("GOSMC_DIR", filepath.Join(dir, "run"))
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	if os.Getenv("GOCACHE") == "" {
		out, err := exec.Command("go", "env", "GOCACHE").Output()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("GOCACHE", strings.TrimSpace(string(out)))
	}
	const words = "package words\n\nconst Hello = \"hello\"\n"
	writeFiles(t, dir, map[string]string{
		"plain/go.mod":       "module example.com/plain\n\ngo 1.24\n\nrequire example.com/words v1.0.0\n\nreplace example.com/words => ../words\n",
		"plain/main.go":      goProgram,
		"words/go.mod":       "module example.com/words\n\ngo 1.24\n",
		"words/words.go":     words,
		"vendored/go.mod":    "module example.com/vendored\n\ngo 1.24\n\nrequire example.com/words v1.0.0\n",
		"vendored/main.go":   goProgram,
		"vendored/marked.go": "//go:build gosmc\n\npackage main\n\nfunc init() { wanted = true }\n",
		"vendored/wanted.go": "package main\n\nvar wanted bool\n",
		"vendored/vendor/example.com/words/words.go": words,
		"vendored/vendor/modules.txt":                "# example.com/words v1.0.0\n## explicit; go 1.24\nexample.com/words\n",
		"work/go.work":                               "go 1.24\n\nuse (\n\t./main\n\t../words\n)\n",
		"work/main/go.mod":                           "module example.com/main\n\ngo 1.24\n\nrequire example.com/words v1.0.0\n",
		"work/main/main.go":                          goProgram,
	})
	build := func(where, name string, environ []string, args ...string) string {
		t.Helper()
		program := filepath.Join(dir, name)
		if out, err := goSmc(t, filepath.Join(dir, where), environ, append(append([]string{"build", "-o", program}, args...), ".")...); err != nil || out != "" {
			t.Fatalf("gosmc go build in %s: %v\n%s", where, err, out)
		}
		return program
	}
	server := build("plain", "server", []string{"CGO_ENABLED=0"}, "-mod=mod")
	clients := map[string]string{
		"vendored":  build("vendored", "vendored-client", nil),
		"workspace": build("work/main", "workspace-client", nil),
		"tags":      build("plain", "tags-client", nil, "-tags", "other"),
	}
	plain := filepath.Join(dir, "plain-client")
	cmd := exec.Command("go", "build", "-o", plain, ".")
	cmd.Dir = filepath.Join(dir, "plain")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	check := func(t *testing.T, environ []string, server, client string, want ...string) {
		t.Helper()
		address := startGo(t, 1, environ, server)
		if len(address) != 1 {
			t.Fatal("the server does not start")
		}
		if got, want := startGo(t, 3, environ, client, address[0]), "hello 1048576"; !slices.Equal(got, []string{want, want, want}) {
			t.Errorf("the client prints %q, want %q three times", got, want)
		}
		if modes := modesOf(t, address[0]); !slices.Equal(modes, want) {
			t.Errorf("modes = %q, want %q", modes, want)
		}
	}
	for name, client := range clients {
		t.Run(name, func(t *testing.T) { check(t, nil, server, client, "SMC-D", "SMC-D") })
	}
	t.Run("raw", func(t *testing.T) { check(t, []string{"RAW=1"}, server, clients["tags"], "SMC-D", "SMC-D") })
	t.Run("raw plain", func(t *testing.T) { check(t, []string{"RAW=1"}, plain, server, "TCP") })
	t.Run("plain client", func(t *testing.T) { check(t, nil, server, plain, "TCP") })
	t.Run("plain server", func(t *testing.T) { check(t, nil, plain, server, "TCP") })
	t.Run("disabled", func(t *testing.T) { check(t, []string{"GOSMC_DISABLED=1"}, server, server) })

	for program, want := range map[string]string{server: "compiled by gosmc go", clients["tags"]: "compiled by gosmc go", plain: "without SMC", "/bin/sh": "no Go program"} {
		if got := gosmc(t, "", "info", program); got.code != exitOK || !strings.Contains(got.stdout, want) {
			t.Errorf("info %s = %d, %q, want %q", program, got.code, got.stdout, want)
		}
	}
	if out, err := exec.Command("go", "version", "-m", clients["tags"]).CombinedOutput(); err != nil || !strings.Contains(string(out), "-tags=other,gosmc\n") {
		t.Errorf("go version -m: %v, want -tags=other,gosmc in\n%s", err, out)
	}
}

// The errors of 'gosmc go' about targets and command lines; the exit status of the go command is
// its own.
func TestGoCommand(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"go.mod": "module example.com/x\n\ngo 1.24\n", "main.go": "package main\n\nfunc main() { wrong }\n"})
	cache := []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "cache"), "GOCACHE=" + filepath.Join(dir, "build")}
	for _, tt := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		text    string
	}{
		{"flags", nil, []string{"flags", "-tags=a"}, 0, "-tags=a,gosmc\n"},
		{"flags for another system", []string{"GOOS=darwin"}, []string{"flags"}, 0, "stay TCP"},
		{"flags with a package", nil, []string{"flags", "./..."}, exitUsage, "flags takes"},
		{"tags of GOFLAGS", []string{"GOFLAGS=-tags=b"}, []string{"flags"}, 0, "-tags=b,gosmc\n"},
		{"a cache with a blank", []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "a cache")}, []string{"flags"}, exitFailure, "has a blank"},
		{"a toolchain of the module cache", []string{"GOMODCACHE=/"}, []string{"flags"}, exitFailure, "set GOTOOLCHAIN=local"},
		{"no command", nil, nil, exitUsage, "which command"},
		{"another command", nil, []string{"mod", "tidy"}, exitUsage, "which command"},
		{"a flag of build", nil, []string{"build", "-frob"}, exitUsage, "flag provided but not defined: -frob"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := goSmc(t, dir, append(slices.Clone(cache), tt.environ...), tt.args...)
			code := 0
			if err != nil {
				code = err.(*exec.ExitError).ExitCode()
			}
			if code != tt.code || !strings.Contains(out, tt.text) {
				t.Errorf("gosmc go %v = %d, %q, want %d, %q", tt.args, code, out, tt.code, tt.text)
			}
		})
	}
}
