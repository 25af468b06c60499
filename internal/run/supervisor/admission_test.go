package supervisor

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// Of the table of admissions, see [admission.Table].
const (
	tableAt  = 4096
	entryLen = 64
)

// An admissionRig is a server of testdata/admission.c and its clients, under the library.
type admissionRig struct {
	t       *testing.T
	s       *supervisor
	path    string
	port    uint16
	environ []string
	server  *exec.Cmd
}

func newAdmissionRig(t *testing.T) *admissionRig {
	t.Helper()
	return newAdmissionRigWith(t, committedLibrary(t))
}

// newAdmissionRigWith is newAdmissionRig with the path of the library.
func newAdmissionRigWith(t *testing.T, library string) *admissionRig {
	t.Helper()
	r := &admissionRig{t: t, s: newTestSupervisor(t), path: filepath.Join(t.TempDir(), "admission")}
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", r.path, "testdata/admission.c")
	r.environ = append(os.Environ(), "LD_PRELOAD="+library, proto.EnvSocket+"="+r.s.Path)
	r.serve()
	return r
}

// serve starts the server, in the rig's environment.
func (r *admissionRig) serve() {
	r.t.Helper()
	r.server = exec.CommandContext(r.t.Context(), r.path, "serve")
	r.server.Env = r.environ
	out, err := r.server.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.server.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		r.server.Process.Kill()
		r.server.Wait()
	})
	if _, err := fmt.Fscanln(out, &r.port); err != nil {
		r.t.Fatal(err)
	}
}

// command is a client that makes connections, and leaves others to TCP after so many short ones; none if that is empty.
func (r *admissionRig) command(after string, kinds ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), r.path, append([]string{fmt.Sprint(r.port)}, kinds...)...)
	cmd.Env, cmd.Stderr = r.environ, os.Stderr
	if after != "" {
		cmd.Env = append(r.environ, proto.EnvShortAfter+"="+after)
	}
	return cmd
}

// connect returns the outcome of connections: see testdata/admission.c.
func (r *admissionRig) connect(after string, kinds ...string) (lines []string) {
	r.t.Helper()
	out, err := r.command(after, kinds...).Output()
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.Fields(string(out))
}

func (r *admissionRig) table() string {
	return filepath.Join(filepath.Dir(r.s.Path), admission.Table.File)
}

var (
	allMoved  = regexp.MustCompile(`^m+$`)
	shortOnes = regexp.MustCompile(`^m{16}t{31}mt{63}mt{127}mt{255}mt{255}m$`)
)

// TestAdmission has short connections stay TCP when there were enough, and now and then one be moved; and all again when one of these has carried more.
func TestAdmission(t *testing.T) {
	for _, long := range []string{"turns", "polls", "bulk"} {
		r := newAdmissionRig(t)
		lines := r.connect("16", "short:752", long+":256", "short:15", long+":1", "short:15")
		if !shortOnes.MatchString(lines[0]) {
			t.Errorf("short connections: %s", lines[0])
		}
		if want := strings.Repeat("t", 255) + "m"; lines[1] != want {
			t.Errorf("%s, after short ones: %s, want %s", long, lines[1], want)
		}
		for _, l := range lines[2:] {
			if !allMoved.MatchString(l) {
				t.Errorf("after a connection (%s) that was worth it: %s, want that all are moved", long, l)
			}
		}
	}
}

// TestAdmissionPrograms has the memory of connections outlive a program, though that closes
// nothing; and serve no other program.
func TestAdmissionPrograms(t *testing.T) {
	r := newAdmissionRig(t)
	for range 16 {
		r.connect("16", "open:1")
	}
	if got := r.connect("16", "short:1")[0]; got != "t" {
		t.Errorf("after 16 programs with a short connection each: %s, want TCP", got)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Link(r.path, other); err != nil {
		t.Fatal(err)
	}
	if got := (&admissionRig{t: t, s: r.s, path: other, port: r.port, environ: r.environ}).connect("16", "short:1")[0]; got != "t" {
		t.Errorf("by another name of the file: %s, want TCP", got)
	}
	text, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other+".copy", text, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := (&admissionRig{t: t, s: r.s, path: other + ".copy", port: r.port, environ: r.environ}).connect("16", "short:1")[0]; got != "m" {
		t.Errorf("another program: %s, want it moved", got)
	}
}

// TestAdmissionOff has all connections moved: by default, where it is switched off, where there is no table, and where others have a connection, too.
func TestAdmissionOff(t *testing.T) {
	r := newAdmissionRig(t)
	for _, after := range []string{"", "0", "off"} {
		if got := r.connect(after, "short:50")[0]; !allMoved.MatchString(got) {
			t.Errorf("%q: %s, want that all are moved", after, got)
		}
	}
	if got := r.connect("16", "fork:50")[0]; !allMoved.MatchString(got) {
		t.Errorf("connections that two processes have: %s, want that all are moved", got)
	}
	if err := os.Remove(r.table()); err != nil {
		t.Fatal(err)
	}
	if got := r.connect("16", "short:50")[0]; !allMoved.MatchString(got) {
		t.Errorf("without a table: %s, want that all are moved", got)
	}
}

// TestAdmissionHostile has a table that was cut off, is another one, or is full of others' entries.
func TestAdmissionHostile(t *testing.T) {
	r := newAdmissionRig(t)
	good, err := os.ReadFile(r.table())
	if err != nil {
		t.Fatal(err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	full := func(used int64) []byte {
		b := append([]byte{}, good...)
		for at := tableAt; at < len(b); at += entryLen {
			binary.NativeEndian.PutUint64(b[at:], 7)
			binary.NativeEndian.PutUint32(b[at+36:], uint32(used))
		}
		return b
	}
	for what, c := range map[string]struct {
		table []byte
		moved *regexp.Regexp
	}{
		"short file":    {good[:tableAt], allMoved},
		"another magic": {append([]byte{1}, good[1:]...), allMoved},
		"full":          {full(int64(now.Sec)), allMoved},
		"full, unused":  {full(int64(now.Sec) - 100), regexp.MustCompile(`^m{16}t{31}mt+$`)},
	} {
		if err := os.WriteFile(r.table(), c.table, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := r.connect("16", "short:60")[0]; !c.moved.MatchString(got) {
			t.Errorf("%s: %s", what, got)
		}
	}
	// It is cut off while a client has it.
	if err := os.WriteFile(r.table(), good, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := r.command("16", "short:3000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for maps := ""; !strings.Contains(maps, r.table()); {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		maps = string(text)
	}
	if err := os.Truncate(r.table(), tableAt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("a client whose table was cut off: %v", err)
	}
}

// TestAdmissionSeen has the tools tell of connections that are TCP because those before were short.
func TestAdmissionSeen(t *testing.T) {
	r := newAdmissionRig(t)
	r.connect("16", "short:40")
	program, err := admission.ProgramHash(r.path, "-x")
	if err != nil {
		t.Fatal(err)
	}
	server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), r.port)
	want := admission.Memory{Short: 16, Kept: 24, Probe: 32}
	if got := admission.Lookup(filepath.Dir(r.s.Path), admission.Key(server, r.s.Listeners.NetNS, program)); got != want {
		t.Errorf("the table has %+v, want %+v", got, want)
	}
	st := view{&r.s.record, r.s.Path, nil}.Status()
	if n := st.Counters.Connections["TCP"]; n != 24 || len(st.Counters.Fallbacks) != 1 || st.Counters.Fallbacks[0].Tag != "SHORT" {
		t.Errorf("stats have %d of TCP and %+v; want 24, SHORT", n, st.Counters.Fallbacks)
	}
	// A process with a hash of its own: by its file, and by that and its first argument.
	ours, err := inspect.ProgramHash(os.Getpid())
	if err != nil || ours == program {
		t.Errorf("the hash of this process is %x, %v; want another one than %x", ours, err, program)
	}
	if with, err := admission.ProgramHash(r.path, "testdata/admission.c"); err != nil || with == program {
		t.Errorf("the hash with a script is %x, %v; want another one than %x", with, err, program)
	}
	a := inspect.Connection{Local: netip.MustParseAddrPort("127.0.0.1:9"), Peer: server, PID: r.server.Process.Pid}
	b := inspect.Connection{Local: server, Peer: a.Local, PID: os.Getpid(), Server: true}
	programs := map[int]string{a.PID: r.s.Path, b.PID: r.s.Path}
	if got := inspect.WhyTCP(&a, &b, programs, r.s.Listeners.NetNS); got != clc.DiagShort {
		t.Errorf("the reason of a connection of that program is %v, want SHORT", clc.Lookup(got, clc.OSUnspecified))
	}
	a.PID, b.PID = b.PID, a.PID
	if got := inspect.WhyTCP(&a, &b, programs, r.s.Listeners.NetNS); got != clc.DiagNone {
		t.Errorf("the reason of a connection of another one is %v, want none", clc.Lookup(got, clc.OSUnspecified))
	}
}
