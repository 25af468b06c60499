package inspect

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sockdiag"
)

// TestConnectionOf knows the ends of ours among the Unix sockets: by their names, and those that came
// out of a letterbox by its path.
func TestConnectionOf(t *testing.T) {
	client := proto.Name{Role: proto.RoleClient, Local: netip.MustParseAddrPort("127.0.0.1:40000"), Peer: netip.MustParseAddrPort("127.0.0.1:80"), Unique: 7}
	server := proto.Name{Role: proto.RoleServer, Local: client.Peer, Peer: client.Local, Unique: 7}
	for _, tt := range []struct {
		name string
		want Connection
		ours bool
	}{
		{client.String(), Connection{Local: client.Local, Peer: client.Peer, unique: 7}, true},
		{server.String(), Connection{Local: client.Peer, Peer: client.Local, unique: 7, Server: true}, true},
		{"/run/gosmc/run/0123456789abcdef.in3", Connection{Server: true, boxed: true}, true},
		{"@0123456789abcdef.in3", Connection{}, false},
		{"/run/other", Connection{}, false},
		{"", Connection{}, false},
	} {
		tt.want.Inode, tt.want.UID, tt.want.RecvQ, tt.want.peer = 1, 2, 3, 4
		got, ours := connectionOf(sockdiag.UnixSocket{Name: tt.name, Inode: 1, UID: 2, RecvQ: 3, Peer: 4})
		if ours != tt.ours || ours && got != tt.want {
			t.Errorf("connectionOf(%q) = %+v, %t; want %+v, %t", tt.name, got, ours, tt.want, tt.ours)
		}
	}
}

// TestRingsOfConnection tells the directions of two connections of one process apart.
func TestRingsOfConnection(t *testing.T) {
	const maps = "00000000000000ab.s (deleted)\n00000000000000cd.c (deleted)\n"
	for _, tt := range []struct {
		c               Connection
		sends, receives bool
	}{
		{Connection{unique: 0xab, Server: true}, true, false},
		{Connection{unique: 0xab}, false, true},
		{Connection{unique: 0xcd, Server: true}, false, true},
		{Connection{unique: 0xb}, false, false},
	} {
		if tt.c.rings(maps); tt.c.Sends != tt.sends || tt.c.Receives != tt.receives {
			t.Errorf("%+v, want %v and %v", tt.c, tt.sends, tt.receives)
		}
	}
}

// TestRefusalReloaded says why a server is refused by a configuration file that has changed after it
// was started.
func TestRefusalReloaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	if err := os.WriteFile(path, []byte("listen-port !80\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := netip.MustParseAddrPort("127.0.0.1:80")
	for _, tt := range []struct {
		where uintptr // namespaces of its own
		want  string
	}{
		{0, "port 80 is refused by listen-port !80"},
		{syscall.CLONE_NEWNS, ""}, // the path may lead to another file there
	} {
		life := exec.Command("sleep", "1000")
		life.Env = []string{config.EnvFile + "=" + path}
		if life.SysProcAttr = (&syscall.SysProcAttr{Cloneflags: tt.where}); tt.where != 0 && os.Geteuid() != 0 {
			life.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		}
		if err := life.Start(); err != nil {
			t.Fatal(err)
		}
		defer life.Wait()
		defer life.Process.Kill()
		for procs.Variable(life.Process.Pid, config.EnvFile) == "" {
			time.Sleep(time.Millisecond) // the kernel shows the environment a moment after exec
		}
		if why := refusal(life.Process.Pid, server, false); why != tt.want {
			t.Errorf("with namespaces %#x refusal = %q, want %q", tt.where, why, tt.want)
		}
		if why := refusal(life.Process.Pid, server, true); why != "" {
			t.Errorf("refusal of a client = %q", why)
		}
	}
}
