package supervisor

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
)

// changes are the events of a directory after which a file in it may be another one.
const changes = unix.IN_ONLYDIR |
	unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO

// A followed is the configuration file, and the policy for listeners that follows it. The libraries
// of programs read their part of the configuration when the programs start, and keep it: a supervisor
// can refuse more than they do, and allow that again. The broker's lock guards it.
type followed struct {
	follower *config.Follower
	broker   *broker.Broker
	policy   *config.Policy
	settings config.Settings
	warn     func(string) // tells the log of the system
	notify   int          // an inotify; -1: changes are found when something else happens
	target   int          // its number of the directory behind links; -1: none
	over     bool         // the supervisor has ended
}

// newFollowed reads the configuration. Errors of it are told to the user that starts a program.
func newFollowed() (*followed, error) {
	f := &followed{notify: -1, target: -1, warn: logWarning}
	f.follower, f.settings, _ = config.Follow()
	var err error
	f.policy, err = f.settings.PolicyFor(config.Filter{}, config.Filter{}, "")
	return f, err
}

// watch has the kernel tell of changes, where supervisors in a directory are few: a user may have few
// inotifies, 128 as a rule, for all programs. Where many supervisors run, the others look when
// something happens, and when they are asked.
func (f *followed) watch(supervisors string) {
	marks, _ := filepath.Glob(supervisors + "/*" + proto.MarkSuffix)
	if len(marks) > maxWatching { // rule: TestReloadManySupervisors
		return
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	if f.broker.Poll.Add(fd, unix.EPOLLIN) != nil {
		unix.Close(fd)
		return
	}
	f.notify = fd
	f.watchDirs()
}

// watchDirs watches the directory of the file, and the one of the file that it is a link to.
func (f *followed) watchDirs() {
	path, _ := f.follower.State()
	wd, err := unix.InotifyAddWatch(f.notify, filepath.Dir(path), changes)
	if err != nil {
		return
	}
	old := f.target
	f.target = -1
	if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(real) != filepath.Dir(path) {
		target, err := unix.InotifyAddWatch(f.notify, filepath.Dir(real), changes)
		if err == nil && target != wd {
			f.target = target
		}
	}
	if old >= 0 && old != f.target {
		unix.InotifyRmWatch(f.notify, uint32(old))
	}
}

// event takes an event of a directory.
func (f *followed) event() {
	var events [4096]byte
	for {
		if n, err := unix.Read(f.notify, events[:]); n <= 0 || err != nil {
			break // EAGAIN as a rule
		}
	}
	f.look(0)
	f.watchDirs()
}

// look takes over a file that has changed, unless it was looked at less than age ago. The caller has
// the lock.
func (f *followed) look(age time.Duration) {
	err := f.follower.Look(age, func(settings *config.Settings) {
		policy, err := settings.PolicyFor(config.Filter{}, config.Filter{}, "")
		if err != nil {
			return // it was checked
		}
		f.policy, f.settings = policy, *settings
		f.broker.Listeners.Reload(policy) // rule: TestReload
	})
	if err != nil {
		f.warn("the configuration file has changed and is not understood; its values before stay in force: " +
			strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// hangups returns a channel of SIGHUP, which ends this process no more.
func hangups() chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c
}

// lookAt looks at the file at each signal. It returns when the channel is closed.
func (f *followed) lookAt(signals chan os.Signal) {
	for range signals {
		f.status()
	}
}

// status says which words of the file are in force for the listeners of our programs. It looks at the
// file before.
func (f *followed) status() *control.StatusConfig {
	f.broker.Mu.Lock()
	defer f.broker.Mu.Unlock()
	if !f.over {
		f.look(0)
	}
	path, err := f.follower.State()
	st := &control.StatusConfig{File: path}
	if err != nil {
		st.Error = err.Error()
	}
	var live []string
	if !config.Set(config.SMC) {
		live = append(live, config.SMC)
	}
	for word, now := range map[string][]string{
		config.ListenPort: f.settings.Listen.Ports, config.ListenAddress: f.settings.Listen.Addresses,
	} {
		library := strings.Fields(strings.ReplaceAll(os.Getenv(config.Variables[word]), ",", " "))
		if !config.Set(word) && config.Narrower(now, library) { // rule: TestReloadStatus
			live = append(live, word)
		}
	}
	st.Live = strings.Join(live, " ")
	return st
}
