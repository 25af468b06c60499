package supervisor

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestLoops has a supervisor tell once of a server with connections that are TCP though both ends
// are programs of 'gosmc run', and of no other.
func TestLoops(t *testing.T) {
	library := filepath.Join(t.TempDir(), "libgosmc-loops.so") // by this name it is found in the maps of a process
	if err := os.Rename(committedLibrary(t), library); err != nil {
		t.Fatal(err)
	}
	s := newTestSupervisor(t)
	other := newTestSupervisor(t)
	cmd := exec.Command(cornerProgram(t), "loop")
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	port := strings.TrimSpace(line)
	var said []string
	l := loops{told: make(map[string]bool), warn: func(text string) { said = append(said, text) }}
	l.look(other.Path, other.record.loops)
	if len(said) != 0 {
		t.Errorf("the supervisor of others says %q", said)
	}
	for range 2 {
		l.look(s.Path, s.record.loops)
	}
	want := "connections to corners (pid " + strconv.Itoa(cmd.Process.Pid) + ") at port " + port + " are TCP"
	if len(said) != 1 || !strings.HasPrefix(said[0], want) {
		t.Errorf("it says %q, want once %q", said, want)
	}
	follow, err := view{&s.record, s.Path, nil}.Trace().Listen(100)
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Leave()
	events, _ := follow.Read(nil, 100)
	noted := 0
	for _, e := range events {
		if e.Mode == "TCP" && strings.HasPrefix(e.Text, "though both") && strings.HasSuffix(e.Local.String(), ":"+port) {
			noted++
		}
	}
	if noted != 1 {
		t.Errorf("%d events of it, want 1: %v", noted, events)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
