package engine

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) {
	smctest.Apart()
	smctest.Main(m)
}

// waitMost bounds each wait of a test.
const waitMost = 30 * time.Second

const testPort = 7000

// built are the gosmc command and the program of the tests.
var built = sync.OnceValues(func() (dir string, err error) {
	dir, err = os.MkdirTemp("", "hosts")
	if err != nil {
		return "", err
	}
	for _, words := range [][]string{
		{"go", "build", "-o", filepath.Join(dir, "gosmc"), "github.com/gosmc/smc/cmd/gosmc"},
		{"gcc", "-O1", "-Wall", "-Werror", "-pthread", "-o", filepath.Join(dir, "hosts"), "testdata/hosts.c"},
	} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%v: %w: %s", words, err, out)
		}
	}
	return dir, nil
})

// A lab is two hosts, which are network namespaces.
type lab struct {
	t      *testing.T
	cables *smctest.Cables
	dirs   [2]string
	env    [2][]string // besides what all have
	files  [2]string   // that may be open; empty: as many as here
	peers  string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skipf("needs gcc: %v", err)
	}
	if _, err := built(); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, cables: smctest.NewCables(t, 1), peers: "10.99.0.0/24"}
	for i := range l.dirs {
		dir, err := os.MkdirTemp("", "h") // a short name: sockets
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		l.dirs[i] = dir
	}
	return l
}

func (l *lab) addr(end int) netip.AddrPort {
	return netip.AddrPortFrom(l.cables.Addr[0][end], testPort)
}

// start starts gosmc at an end.
func (l *lab) start(end int, words ...string) *program {
	l.t.Helper()
	dir, _ := built()
	words = append([]string{filepath.Join(dir, "gosmc")}, words...)
	if l.files[end] != "" {
		words = append([]string{"sh", "-c", `ulimit -n "$0"; exec "$@"`, l.files[end]}, words...)
	}
	p := &program{t: l.t, cmd: exec.Command(words[0], words[1:]...)}
	p.cmd.Env = append(os.Environ(), "GOSMC_DIR="+l.dirs[end], "GOSMC_CONFIG=/dev/null", "GOSMC_UEIDS=GOSMC.TEST",
		"GOSMC_SMCR_PEERS="+l.peers, "GOSMC_BETWEEN_HOSTS=1", "GOSMC_RUN_TOKENS=0") // both ends are on one kernel
	p.cmd.Env = append(p.cmd.Env, l.env[end]...)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	l.cables.Visit(end, func() { err = p.cmd.Start() })
	if err != nil {
		l.t.Fatal(err)
	}
	p.lines = make(chan string, 100)
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	l.t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	return p
}

// run starts the program of the tests under gosmc run.
func (l *lab) run(end int, what string, to netip.AddrPort, words ...string) *program {
	l.t.Helper()
	dir, _ := built()
	port := strconv.Itoa(int(to.Port()))
	return l.start(end, append([]string{"run", filepath.Join(dir, "hosts"), what, to.Addr().String(), port}, words...)...)
}

// serve starts a server at end 0.
func (l *lab) serve(words ...string) *program {
	l.t.Helper()
	p := l.run(0, "serve", l.addr(0), words...)
	p.hear("listening")
	return p
}

// A program is one that runs.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

// hear returns the words behind the first one of the next line, which has to be want.
func (p *program) hear(want string) []string {
	p.t.Helper()
	select {
	case line := <-p.lines:
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != want {
			p.t.Fatalf("the program says %q, want %s", line, want)
		}
		return words[1:]
	case <-time.After(waitMost):
		p.t.Fatalf("the program says nothing, want %s", want)
	}
	return nil
}

// connections returns how many connections the programs at an end have had, by mode.
func (l *lab) connections(end int) map[string]uint64 {
	l.t.Helper()
	p := l.start(end, "stats", "--json", "--dir", l.dirs[end])
	var text strings.Builder
	for line := range p.lines {
		text.WriteString(line)
	}
	var s struct {
		Total struct{ Connections map[string]uint64 }
	}
	if err := json.Unmarshal([]byte(text.String()), &s); err != nil {
		l.t.Fatalf("stats: %v in %s", err, text.String())
	}
	sum := make(map[string]uint64)
	for mode, n := range s.Total.Connections {
		if n > 0 {
			sum[mode] += n
		}
	}
	return sum
}

// want checks the modes at an end.
func (l *lab) want(end int, mode string, n uint64) {
	l.t.Helper()
	if got := l.connections(end); len(got) != 1 || got[mode] != n {
		l.t.Errorf("end %d has had connections %v, want %d of %s", end, got, n, mode)
	}
}

// withOption has the kernel put TCP option 254 on segments of sockets that ask, in the lab that follows.
func withOption(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load eBPF programs")
	}
	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skipf("needs control groups: %v", err)
	}
	group, pins := smctest.EnterCgroup(t, root), filepath.Join(smctest.MountBPF(t), "gosmc")
	if err := bpf.PreparePins(pins); err != nil {
		t.Fatal(err)
	}
	o, err := bpf.AttachOption(group, pins)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		o.Close()
		if err := bpf.DetachOption(pins); err != nil {
			t.Error(err)
		}
	})
}

// processesOf returns the processes of a run directory that have a verb: engines, or supervisors.
func processesOf(t *testing.T, verb, dir string) (pids []int) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range files {
		text, _ := os.ReadFile(name)
		words := strings.Split(string(text), "\x00")
		if len(words) > 2 && words[1] == verb && strings.HasPrefix(words[2], dir) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// library returns a host of package smc at end 1.
func (l *lab) library() *host.Host {
	l.t.Helper()
	h, err := host.New(host.Config{
		Dir: l.dirs[1], UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{l.peers}, Namespace: l.cables.Run[1],
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { h.Close() })
	return h
}

// optionLab is a lab in which TCP option 254 says who speaks SMC-R.
func optionLab(t *testing.T) *lab {
	t.Helper()
	withOption(t)
	l := newLab(t)
	name, value := smctest.LibraryOption()
	for end := range l.env {
		l.env[end] = []string{"GOSMC_SMCR_PEERS=", name + "=" + value}
	}
	return l
}
