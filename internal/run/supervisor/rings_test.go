package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/preload"
)

// Cases of testdata/rings: those in which two programs exchange a stream, whatever the size of the rings, and others.
var (
	streamCases = []string{
		"large", "large-nonblocking", "small", "small-nonblocking", "phases", "phases-nonblocking", "duplex", "killed", "threads", "turns", "readers",
		"files", "files-nonblocking", "asked",
	}
	ringCases = []string{
		"poll", "signal", "dup", "standard", "standard-zero", "fork", "exec", "passed", "others", "peek", "starved", "small-files", "fortified", "spawned", "parts", "gone", "stream", "daemon",
		"scribble", "flood", "cork", "after-close", "told", "copy-after", "shut-elsewhere", "unread", "reuse", "answers", "cork-said",
		"nothing", "no-messages", "counted", "peekers", "limit", "nowait",
	}
	paceCases = []string{"corked"} // which a slow library does not pass
)

func ringProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rings")
	source, err := filepath.Glob("testdata/rings/*.c")
	if err != nil || len(source) == 0 {
		t.Fatalf("no source: %v", err)
	}
	compile(t, append([]string{"-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path}, source...)...)
	return path
}

func runRings(t *testing.T, path string, cases []string, seed int, environ ...string) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
			defer stop()
			cmd := exec.CommandContext(ctx, path, name, strconv.Itoa(seed))
			cmd.Env = append(os.Environ(), environ...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("seed %d: %v\n%s", seed, err, out)
			}
		})
	}
}

func committedLibrary(t testing.TB) string {
	t.Helper()
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	library := filepath.Join(t.TempDir(), "libgosmc.so")
	if err := os.WriteFile(library, preload.Library(), 0o555); err != nil {
		t.Fatal(err)
	}
	return library
}

// sanitizer returns the path of the library that a sanitized one needs, "" if there is none.
func sanitizer(t testing.TB) string {
	t.Helper()
	asan, err := exec.Command(compiler(t), "-print-file-name=libasan.so").Output()
	path, err2 := filepath.EvalSymlinks(strings.TrimSpace(string(asan)))
	if err != nil || err2 != nil || !filepath.IsAbs(path) {
		return ""
	}
	return path
}

// sanitizedLibrary builds the library with the sanitizers, and returns the files that have to be
// preloaded.
func sanitizedLibrary(t testing.TB) string {
	t.Helper()
	path := sanitizer(t)
	if path == "" {
		t.Skip("needs libasan")
	}
	library := filepath.Join(t.TempDir(), "libgosmc-asan.so")
	source, err := filepath.Glob("../../../preload/src/*.c")
	if err != nil || len(source) == 0 {
		t.Fatalf("no source: %v", err)
	}
	compile(t, append([]string{"-std=gnu11", "-g", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
		"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", library}, source...)...)
	return path + ":" + library
}

// TestRingsBare has TCP do all that is expected of rings.
func TestRingsBare(t *testing.T) {
	runRings(t, ringProgram(t), slices.Concat(streamCases, ringCases, paceCases), 1)
}

// TestRings has connections go over to rings, with the library that is committed.
func TestRings(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, ringProgram(t), slices.Concat(streamCases, ringCases, paceCases), 1, "RINGS=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// TestRingsOff has GOSMC_RUN_RINGS=0 and a high GOSMC_RING_AFTER keep them in-band.
func TestRingsOff(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	program := ringProgram(t)
	cases := []string{"duplex", "dup"}
	runRings(t, program, cases, 1, "RINGS=0", "GOSMC_RUN_RINGS=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	runRings(t, program, cases, 1, "RINGS=0", "GOSMC_RING_AFTER=1000000000", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// TestRingsReserved has a ring take all of its memory when it is made where the kernel overcommits
// nothing (vm.overcommit_memory=2), as a page can be refused there later, by SIGBUS. Elsewhere, and
// where the setting cannot be read, pages are taken when they are written.
func TestRingsReserved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a mount namespace in which /proc says that the kernel overcommits nothing")
	}
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	program := ringProgram(t)
	for _, tt := range []struct{ mode, reserved string }{{"0\n", "0"}, {"1\n", "0"}, {"2\n", "1"}, {"", "0"}} {
		file := filepath.Join(t.TempDir(), "overcommit_memory")
		if err := os.WriteFile(file, []byte(tt.mode), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `mount --make-rprivate / && mount --bind "$1" /proc/sys/vm/overcommit_memory && exec env LD_PRELOAD="$3" "$2" reserved`,
			"sh", file, program, library)
		cmd.Env = append(os.Environ(), "RINGS=1", "RESERVED="+tt.reserved, proto.EnvSocket+"="+s.Path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("mode %q: %v\n%s", tt.mode, err, out)
		}
	}
}

// TestRingsShaken has directions join and leave tiny rings at random.
func TestRingsShaken(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	program := ringProgram(t)
	for seed := 1; seed <= 3; seed++ {
		runRings(t, program, streamCases, seed, "RINGS=1", "GOSMC_RUN_SHAKE="+strconv.Itoa(seed), "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	}
}

// TestRingsSanitized has the sanitizers look at all of it.
func TestRingsSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	program := ringProgram(t)
	environ := []string{"RINGS=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path}
	runRings(t, program, slices.Concat(streamCases, ringCases), 1, environ...)
	runRings(t, program, streamCases, 7, append(environ, "GOSMC_RUN_SHAKE=7")...)
}
