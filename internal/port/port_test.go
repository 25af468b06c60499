package port

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	os.Unsetenv(EnvSocket)
	SystemSocket = os.DevNull + "/agent" // not an agent of this machine
	goleak.VerifyTestMain(m)
}

// fakeAgent answers each client by calling reply with its request, in a directory of its own.
func fakeAgent(t *testing.T, reply func(c *net.UnixConn, request []byte)) (dir string) {
	t.Helper()
	dir = t.TempDir()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(dir, SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			b := make([]byte, MaxRequest)
			n, _ := c.Read(b)
			reply(c, b[:n])
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return dir
}

// answer sends an answer with files.
func answer(c *net.UnixConn, text string, files ...*os.File) {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.WriteMsgUnix([]byte(text), oob, nil)
}

var (
	local    = netip.MustParseAddr("192.0.2.1")
	goodKey  = strings.Repeat("ab", 16)
	goodText = `{"version":1,"first":65536,"count":65536,"key":"` + goodKey + `"}`
)

func openNull(t *testing.T) *os.File {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestClaim(t *testing.T) {
	null := openNull(t)
	asked := make(chan Request, 1)
	dir := fakeAgent(t, func(c *net.UnixConn, b []byte) {
		var request Request
		json.Unmarshal(b, &request)
		asked <- request
		answer(c, goodText, null)
	})
	g, err := Claim(context.Background(), dir, local, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.First != 65536 || g.Count != 65536 || g.Key[0] != 0xab || g.Key[15] != 0xab || g.Socket == nil {
		t.Errorf("granted %+v", g)
	}
	raw, _ := g.Socket.SyscallConn()
	raw.Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("children inherit the socket: %#x, %v", flags, err)
		}
	})
	if request := <-asked; request.Version != Version || request.Request != "port" || request.Address != local || request.Thread == 0 {
		t.Errorf("asked %+v", request)
	}
}

// TestClaimLies has agents whose answers make no sense. No file that came along stays open.
func TestClaimLies(t *testing.T) {
	null := openNull(t)
	change := func(old, new string) string { return strings.Replace(goodText, old, new, 1) }
	one := []*os.File{null}
	for _, tt := range []struct {
		name, text string
		files      []*os.File
		refused    bool
	}{
		{"no socket", goodText, nil, false},
		{"two sockets", goodText, []*os.File{null, null}, false},
		{"many", goodText, []*os.File{null, null, null, null, null, null, null, null}, false},
		{"nothing", "", nil, false},
		{"no JSON", "hello", one, false},
		{"a list", "[]", one, false},
		{"another version", change(`"version":1`, `"version":2`), one, false},
		{"no numbers", change(`"count":65536`, `"count":0`), one, false},
		{"a negative count", change(`"count":65536`, `"count":-5`), one, false},
		{"numbers beyond", change(`"first":65536`, `"first":16777000`), one, false},
		{"negative numbers", change(`"first":65536`, `"first":-1`), one, false},
		{"huge numbers", change(`"count":65536`, `"count":9223372036854775807`), one, false},
		{"no key", change(goodKey, ""), one, false},
		{"a short key", change(goodKey, "abab"), one, false},
		{"a long key", change(goodKey, goodKey+"00"), one, false},
		{"no hexadecimal key", change(goodKey, strings.Repeat("xy", 16)), one, false},
		{"too long", strings.Repeat(" ", MaxAnswer) + goodText, one, false},
		{"an error", `{"version":1,"error":"not today"}`, nil, true},
		{"an error and a socket", `{"version":1,"error":"not today"}`, one, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := fakeAgent(t, func(c *net.UnixConn, _ []byte) { answer(c, tt.text, tt.files...) })
			before := countDescriptors(t)
			g, err := Claim(context.Background(), dir, local, 0)
			if err == nil {
				g.Close()
				t.Fatal("no error")
			}
			var r *RefusedError
			if errors.Is(err, ErrNoAgent) || errors.As(err, &r) != tt.refused || tt.refused && r.Reason != "not today" {
				t.Errorf("error %v", err)
			}
			for end := time.Now().Add(20 * time.Second); countDescriptors(t) > before; { // the agent's end of the connection
				if time.Now().After(end) {
					t.Fatalf("%d descriptors, %d before", countDescriptors(t), before)
				}
			}
		})
	}
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestNoAgent asks where no agent is, or none that can be trusted.
func TestNoAgent(t *testing.T) {
	t.Setenv(EnvSocket, "")
	dir := t.TempDir()
	if got := Paths(dir); len(got) != 2 || got[0] != filepath.Join(dir, SocketName) || got[1] != SystemSocket {
		t.Errorf("Paths = %q", got)
	}
	t.Setenv(EnvSocket, filepath.Join(dir, "elsewhere"))
	if got := Paths(dir); len(got) != 1 || got[0] != filepath.Join(dir, "elsewhere") {
		t.Errorf("Paths = %q", got)
	}
	noAgent := func(what string) {
		t.Helper()
		if _, err := Claim(context.Background(), dir, local, 0); !errors.Is(err, ErrNoAgent) {
			t.Errorf("%s: %v", what, err)
		}
	}
	noAgent("nothing there")
	if err := os.WriteFile(filepath.Join(dir, "elsewhere"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	noAgent("a file")
	os.Remove(filepath.Join(dir, "elsewhere"))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(dir, "elsewhere")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	noAgent("a dead one")
}

// TestForeignAgent has another user serve in the place of an agent: nothing is asked of it.
func TestForeignAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two users")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	parent := filepath.Dir(dir)
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	type result struct {
		l   *net.UnixListener
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			made <- result{nil, errno}
			return
		}
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(dir, SocketName)})
		made <- result{l, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.l.Close()
	if _, err := Claim(context.Background(), dir, local, 0); !errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "user 65534") {
		t.Errorf("error %v", err)
	}
	c, err := r.l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, _ := c.Read(make([]byte, MaxRequest)); n > 0 {
		t.Errorf("asked another user's agent with %d bytes", n)
	}
}

// TestClaimEnds has the caller give up on an agent that says nothing.
func TestClaimEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan bool)
	dir := fakeAgent(t, func(*net.UnixConn, []byte) { cancel(); <-over })
	_, err := Claim(ctx, dir, local, 0)
	close(over)
	if err == nil || errors.Is(err, ErrNoAgent) {
		t.Errorf("error %v", err)
	}
}
