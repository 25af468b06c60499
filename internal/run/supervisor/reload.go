package supervisor

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
)

// changes are the events of a directory after which a file in it may be another one. The kernel tells
// of one, and no more until it is asked again: others may write to the directory all the time.
const changes = unix.IN_ONLYDIR | unix.IN_ONESHOT | // rule: TestReloadBusyDirectory: unix.IN_ONESHOT -> 0
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
	rewatch  time.Time    // when it is asked again; the zero time: it watches
	again    time.Time    // when a file that is being changed is looked at; the zero time: there is none
	over     bool         // the supervisor has ended
}

// newFollowed reads the configuration. Errors of it are told to the user that starts a program.
func newFollowed() (*followed, error) {
	f := &followed{notify: -1, warn: warnLater()}
	f.follower, f.settings, _ = config.Follow()
	var err error
	f.policy, err = f.settings.PolicyFor(config.Filter{}, config.Filter{}, "")
	return f, err
}

// users returns the users with whose programs ours share connections if an agent introduces them: all,
// where nothing is said, and none but our own where the list is not understood.
func (f *followed) users() introduce.Users {
	users, _ := config.NewUsers(f.settings.Users) // rule: TestSupervisorUsers: f.settings.Users -> nil
	anyUser, allowed, excepted := users.Lists()
	return introduce.NewUsers(users.Said(), anyUser, allowed, excepted)
}

// warnLater returns a function that tells the log of the system, which may take its time, and does
// not wait. What comes while a line is on its way is not told.
func warnLater() func(text string) {
	var busy atomic.Bool
	return func(text string) {
		if busy.CompareAndSwap(false, true) {
			go func() {
				defer busy.Store(false)
				logWarning(text)
			}()
		}
	}
}

// watch has the kernel tell of changes, where supervisors in a directory are few: a user may have few
// inotifies, 128 as a rule, for all programs. Where many supervisors run, or few inotifies or
// descriptors are left, a supervisor looks when something happens, and when it is asked.
func (f *followed) watch(supervisors string, limit uint64, inotify func(flags int) (int, error)) {
	marks, _ := filepath.Glob(supervisors + "/*" + proto.MarkSuffix)
	if len(marks) > maxWatching || limit < minWatching { // rule: TestReloadManySupervisors
		return
	}
	fds := make([]int, 0, 1+spareWatching)
	for range cap(fds) {
		fd, err := inotify(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			proto.CloseAll(fds) // rule: TestReloadFewInotifies
			return
		}
		fds = append(fds, fd)
	}
	proto.CloseAll(fds[1:])
	if f.broker.Poll.Add(fds[0], unix.EPOLLIN) != nil {
		unix.Close(fds[0])
		return
	}
	f.notify = fds[0]
	f.watchDirs()
}

// watchDirs watches the directory of the file, and the one of the file that it is a link to. A
// directory that cannot be watched is left to looks at the file.
func (f *followed) watchDirs() {
	path, _ := f.follower.State()
	unix.InotifyAddWatch(f.notify, filepath.Dir(path), changes)
	if real := config.Behind(path); real != path {
		unix.InotifyAddWatch(f.notify, filepath.Dir(real), changes)
	}
	f.rewatch = time.Time{}
}

// event takes an event of a directory.
func (f *followed) event(now time.Time) {
	var events [4096]byte
	for range maxNotes {
		if n, err := unix.Read(f.notify, events[:]); n <= 0 || err != nil {
			break // EAGAIN as a rule
		}
	}
	if f.rewatch.IsZero() {
		f.rewatch = now.Add(followEvery)
	}
	f.look(0)
}

// turn does what is due, and looks at the file if that was not done for a while.
func (f *followed) turn(now time.Time) {
	age := followEvery
	if !f.rewatch.IsZero() && !now.Before(f.rewatch) {
		f.watchDirs() // first: a change after the look is told
		age = 0
	}
	if !f.again.IsZero() && !now.Before(f.again) {
		age = 0
	}
	f.look(age)
}

// due is when there is something to do though no event comes; the zero time: never.
func (f *followed) due() time.Time { return broker.Earliest(f.again, f.rewatch) }

// look takes over a file that has changed, unless it was looked at less than age ago. The caller has
// the lock. The result is the time after which another look finds more, of a file that is being
// changed.
func (f *followed) look(age time.Duration) (again time.Duration) {
	again, err := f.follower.Look(age, func(settings *config.Settings) {
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
	switch {
	case again > 0 && f.again.IsZero():
		f.again = time.Now().Add(again)
	case again > 0: // once more: somebody writes it all the time
		f.again = time.Now().Add(followEvery)
	case age == 0:
		f.again = time.Time{}
	}
	return again
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
	f.follower.Settled(func() (again time.Duration) {
		f.broker.Mu.Lock()
		defer f.broker.Mu.Unlock()
		if f.over {
			return 0
		}
		return f.look(0)
	})
	f.broker.Mu.Lock()
	defer f.broker.Mu.Unlock()
	path, err := f.follower.State()
	st := &control.StatusConfig{File: path}
	if err != nil {
		st.Error = err.Error()
	}
	var live []string
	if !f.follower.Set(config.SMC) {
		live = append(live, config.SMC)
	}
	for word, now := range map[string][]string{
		config.ListenPort: f.settings.Listen.Ports, config.ListenAddress: f.settings.Listen.Addresses,
	} {
		library := strings.Fields(strings.ReplaceAll(os.Getenv(config.Variables[word]), ",", " "))
		if !f.follower.Set(word) && config.Narrower(now, library) { // rule: TestReloadStatus
			live = append(live, word)
		}
	}
	st.Live = strings.Join(live, " ")
	return st
}
