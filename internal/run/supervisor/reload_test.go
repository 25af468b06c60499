package supervisor

import (
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/proto"
)

// replace puts a configuration file in the place of another one.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
}

// TestReload has a supervisor follow its file, also behind a link into another directory: the links
// of its listeners say whether clients have to ask, and who asks is refused. An offer from before is
// not.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	path, file := filepath.Join(dir, "link"), filepath.Join(t.TempDir(), "gosmc.conf")
	replace(t, file, "")
	if err := os.Symlink(file, path); err != nil {
		t.Fatal(err)
	}
	t.Setenv(config.EnvFile, path)
	s := newTestSupervisor(t)
	var warnings []string
	s.Mu.Lock()
	s.followed.warn = func(text string) { warnings = append(warnings, text) }
	s.Mu.Unlock()
	before := s.offer(t)
	local := before.listener.Addr().(*net.TCPAddr).AddrPort()
	link := s.Listeners.Link(local.Port())
	for _, step := range []struct {
		text    string
		letters bool // clients need not ask
		offer   proto.Status
	}{
		{"listen-address !127.0.0.1\n", false, proto.StatusNo},
		{"\n", true, proto.StatusOK},
		{"smc off\n", false, proto.StatusNo},
		{"\n", true, proto.StatusOK},
	} {
		replace(t, file, step.text)
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the kernel tells the supervisor
			target, err := os.Readlink(link)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(target, ".") == step.letters {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("with %q the link still says %q", step.text, target)
			}
		}
		if _, got := s.tryOfferTo(t, before.listener); got != step.offer {
			t.Errorf("with %q an offer gets %d, want %d", step.text, got, step.offer)
		}
	}
	replace(t, file, "listen-port x\n")
	if st := s.followed.status(); st.Error == "" || st.File != path {
		t.Errorf("of a file that is wrong the status says %+v", st)
	}
	s.Mu.Lock()
	if len(warnings) != 1 || !strings.Contains(warnings[0], "listen-port") {
		t.Errorf("the log has %q, want one line on listen-port", warnings)
	}
	if len(s.ByKey) == 0 {
		t.Error("the offer from before the changes is gone")
	}
	s.Mu.Unlock()
	if _, got := s.tryOfferTo(t, before.listener); got != proto.StatusOK {
		t.Errorf("with a file that is wrong an offer gets %d", got)
	}
}

// TestReloadStatus says which words of the file count, where the library of the programs has a
// policy of its own.
func TestReloadStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	t.Setenv(config.EnvFile, path)
	replace(t, path, "listen-port 1-1000\n")
	for _, v := range []string{"GOSMC_LISTEN_PORTS=1-1000", "GOSMC_LISTEN_ADDRESSES=127.0.0.1"} {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	name, value, _ := strings.Cut(config.CopiedVariable([]string{"GOSMC_LISTEN_PORTS=1-1000"}, []string{config.ListenPort}), "=")
	t.Setenv(name, value)
	s := newTestSupervisor(t)
	for text, want := range map[string]string{
		"listen-port 1-1000\nlisten-port !80\n": "smc listen-port",
		"listen-port 2000\n":                    "smc", // the library refuses it
	} {
		replace(t, path, text)
		if got := s.followed.status().Live; got != want {
			t.Errorf("with %q live are %q, want %q", text, got, want)
		}
	}
}

// TestReloadManySupervisors leaves inotifies to others where many supervisors run. A change is found
// when the supervisor is asked.
func TestReloadManySupervisors(t *testing.T) {
	s := newTestSupervisor(t)
	if s.followed.notify < 0 {
		t.Fatal("a supervisor alone has no inotify")
	}
	for range maxWatching {
		mark := filepath.Join(filepath.Dir(s.Path), proto.NewSocketName()+proto.MarkSuffix)
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(mark)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	unix.Close(s.followed.notify)
	s.followed.notify = -1
	s.followed.watch(filepath.Dir(s.Path), minWatching, unix.InotifyInit1)
	if s.followed.notify >= 0 {
		t.Errorf("one of %d supervisors has an inotify", maxWatching+1)
	}
}

// TestReloadFewInotifies takes no inotify of the last ones that a user may have, nor of a supervisor
// that may have few descriptors.
func TestReloadFewInotifies(t *testing.T) {
	s := newTestSupervisor(t)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	unix.Close(s.followed.notify)
	s.followed.notify = -1
	var taken []int
	few := func(flags int) (int, error) {
		if len(taken) == spareWatching {
			return -1, unix.EMFILE
		}
		fd, err := unix.InotifyInit1(flags)
		taken = append(taken, fd)
		return fd, err
	}
	s.followed.watch(filepath.Dir(s.Path), minWatching, few)
	if s.followed.notify >= 0 || len(taken) != spareWatching {
		t.Errorf("of %d inotifies a supervisor has %d, and has tried %d", spareWatching, s.followed.notify, len(taken))
	}
	for _, fd := range taken {
		if _, err := unix.InotifyAddWatch(fd, "/", unix.IN_CREATE); err == nil {
			t.Errorf("inotify %d is still open", fd)
		}
	}
	s.followed.watch(filepath.Dir(s.Path), minWatching-1, func(int) (int, error) {
		t.Error("a supervisor with few descriptors opens an inotify")
		return -1, unix.EMFILE
	})
	s.followed.watch(filepath.Dir(s.Path), minWatching, unix.InotifyInit1)
	if s.followed.notify < 0 {
		t.Error("a supervisor of a user that has inotifies has none")
	}
}

// TestReloadBusyDirectory has others write to the directory of the file all the time: the kernel
// wakes the supervisor once, and then no more until it asks again.
func TestReloadBusyDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	t.Setenv(config.EnvFile, path)
	s := newTestSupervisor(t)
	s.Mu.Lock()
	defer s.Mu.Unlock() // the supervisor itself sees none of it
	f := s.followed
	wakes := func() bool {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "other"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(f.notify), Events: unix.POLLIN}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	now := time.Now()
	if !wakes() {
		t.Fatal("the supervisor does not watch")
	}
	f.event(now)
	if wakes() || f.due() != now.Add(followEvery) {
		t.Errorf("the second write wakes the supervisor, which was to wait for %v", f.due())
	}
	f.turn(now.Add(followEvery - 1))
	if wakes() {
		t.Error("a write wakes the supervisor too early")
	}
	f.turn(now.Add(followEvery))
	if !wakes() || !f.due().IsZero() {
		t.Errorf("the supervisor watches no more, until %v", f.due())
	}
	// A file that is being written is looked at once more soon, and then not before the time.
	f.event(now)
	replace(t, path, "smc off\n")
	if f.look(0) <= 0 || f.again.IsZero() {
		t.Fatalf("a new file counts at once: %+v", f.settings)
	}
	replace(t, path, "smc on\n")
	before := time.Now()
	if f.look(0); f.again.Before(before.Add(followEvery)) {
		t.Errorf("a file that changes all the time is looked at after %v", f.again.Sub(before))
	}
}

// TestReloadSignal has SIGHUP make a supervisor look at a file whose directory it could not watch.
func TestReloadSignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "later", "gosmc.conf")
	t.Setenv(config.EnvFile, path)
	s := newTestSupervisor(t)
	signals := hangups()
	defer signal.Stop(signals)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	replace(t, path, "smc off\n")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	taken := make(chan os.Signal)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.followed.lookAt(taken)
	}()
	taken <- <-signals
	close(taken)
	<-done
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !s.followed.settings.Off {
		t.Error("after SIGHUP the supervisor has the values before")
	}
}
