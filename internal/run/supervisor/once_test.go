package supervisor

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
)

// TestListenersAtOnce has a program of ours listen where another one does that is ours, too, and about to be announced: both are. Where the other one
// has no supervisor none is.
func TestListenersAtOnce(t *testing.T) {
	s := newTestSupervisor(t)
	for _, tt := range []struct {
		environ string
		want    bool
	}{{proto.EnvSocket + "=" + s.Path, true}, {proto.EnvSocket + "=" + s.Path + "x", false}} {
		other := listenTCP(t, "127.0.0.1:0")
		file, err := other.File()
		if err != nil {
			t.Fatal(err)
		}
		program := exec.Command("sleep", "60")
		program.Env, program.ExtraFiles = []string{tt.environ}, []*os.File{file}
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		file.Close()
		l := broker.NewListeners(filepath.Dir(s.Path), filepath.Base(s.Path), s.Listeners.NetNS)
		l.Programs = s.ours
		if got := l.Add(proto.Message{NetNS: l.NetNS, Local: other.Addr().(*net.TCPAddr).AddrPort(), Unique: 1 << 62}); got != tt.want {
			t.Errorf("beside a program with %s: announced %t, want %t", tt.environ, got, tt.want)
		}
		l.Close()
		program.Process.Kill()
		program.Wait()
	}
}
