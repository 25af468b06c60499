package supervisor

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestClaimLate has the answer to a claim come when the program waits no more, and has not ended the conversation yet: it used to close the end with it.
func TestClaimLate(t *testing.T) {
	program := filepath.Join(t.TempDir(), "late")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/late.c")
	l := newLiar(t, map[proto.Kind]string{proto.KindAnnounce: "honest", proto.KindBoard: "honest"}, nil)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, program)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+l.path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.give = func(m proto.Message) int {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return -1
		}
		name := proto.Name{Role: proto.RoleServer, IPv6: m.IPv6, Local: m.Local, Peer: m.Peer, Unique: 1}
		if err := unix.Bind(pair[0], &unix.SockaddrUnix{Name: name.String()}); err != nil {
			t.Error(err)
		}
		if _, err := unix.Write(pair[1], []byte("by the pair")); err != nil {
			t.Error(err)
		}
		unix.Close(pair[1])
		time.Sleep(100 * time.Millisecond) // until it waits
		if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
			t.Error(err)
		}
		time.Sleep(2500 * time.Millisecond) // the program waits for two seconds
		return pair[0]
	}
	l.gave = func() { cmd.Process.Signal(unix.SIGCONT) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text := bufio.NewScanner(out)
	if !text.Scan() {
		t.Fatal("the program says no port")
	}
	client, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", text.Text()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("by TCP")); err != nil {
		t.Error(err)
	}
	defer client.Close()
	text.Scan()
	if got := strings.TrimSpace(text.Text()); got != "by the pair" {
		t.Errorf("the program read %q, want what was sent to the end that its supervisor takes for claimed", got)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
