package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/preload"
)

// socketCases are the cases of testdata/sockets.c.
var socketCases = []string{"addresses", "options", "told", "again", "messages", "flags", "queued", "copied", "ipv6", "epoll", "shared", "heirs", "ends", "refused"}

func compiler(t testing.TB) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler")
	}
	return cc
}

func compile(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(compiler(t), args...).CombinedOutput(); err != nil {
		t.Fatalf("cc %v: %v\n%s", args, err, out)
	}
}

func sockets(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sockets")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/sockets.c")
	return path
}

// runSockets runs the cases one after another. Several programs at a time may take each other's ends
// out of a letterbox. On a busy machine an end is then given back later than its server asks for it,
// and that server's connection stays TCP.
func runSockets(t *testing.T, path string, environ []string) {
	for _, name := range socketCases {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			cmd := exec.CommandContext(ctx, path, name)
			cmd.Env = append(os.Environ(), environ...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestBare has the program of the other tests succeed without us: it checks the behaviour of TCP.
func TestBare(t *testing.T) {
	runSockets(t, sockets(t), []string{"MOVED=0"})
}

// TestLibrary has it notice nothing under the library that is committed, though its connections are moved.
func TestLibrary(t *testing.T) {
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	program := sockets(t)
	s := newTestSupervisor(t)
	library := filepath.Join(t.TempDir(), "libgosmc.so")
	if err := os.WriteFile(library, preload.Library(), 0o555); err != nil {
		t.Fatal(err)
	}
	runSockets(t, program, []string{"MOVED=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path})
}

// TestLibraryDisabled has GOSMC_DISABLED, and a supervisor that has gone, make everything TCP.
func TestLibraryDisabled(t *testing.T) {
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	program := sockets(t)
	s := newTestSupervisor(t)
	library := filepath.Join(t.TempDir(), "libgosmc.so")
	if err := os.WriteFile(library, preload.Library(), 0o555); err != nil {
		t.Fatal(err)
	}
	t.Run("disabled", func(t *testing.T) {
		runSockets(t, program, []string{"MOVED=0", "GOSMC_DISABLED=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path})
	})
	t.Run("gone", func(t *testing.T) {
		runSockets(t, program, []string{"MOVED=0", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path + "x"})
	})
}

// TestLibrarySanitized builds the library from its source with the sanitizers for addresses and for undefined behaviour.
func TestLibrarySanitized(t *testing.T) {
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	library := sanitizedLibrary(t)
	program := sockets(t)
	s := newTestSupervisor(t)
	runSockets(t, program, []string{"MOVED=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path})
}

// TestLibraryWithoutDlsym has the library find libc's functions by itself, as it must where glibc is older than 2.34 and the program
// has not loaded libdl. The case "heirs" forks.
func TestLibraryWithoutDlsym(t *testing.T) {
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	program := sockets(t)
	library := filepath.Join(t.TempDir(), "libgosmc-dlsym.so")
	source, err := filepath.Glob("../../../preload/src/*.c")
	if err != nil || len(source) == 0 {
		t.Fatalf("no source: %v", err)
	}
	compile(t, append([]string{"-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Ddlsym=none_such", "-o", library}, source...)...)
	s := newTestSupervisor(t)
	runSockets(t, program, []string{"MOVED=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path})
}
