package config

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// EnvCopied is the variable by which 'gosmc run' says which variables of a program are copies of the
// file's values: word=hash, with commas. A copy does not take the place of the file, since the file
// may have changed. A variable that somebody has set since has another hash, and is no copy.
const EnvCopied = "GOSMC_RUN_COPIED"

// When says when a change of a word counts for programs that run.
type When string

// AtOnce is for words that programs of all kinds take from a file that has changed; InLibrary for
// those that programs with package smc take, and programs of 'gosmc run' at their next start; AtStart
// for those that no program takes.
const (
	AtOnce    When = "at once"
	InLibrary When = "at once in package smc"
	AtStart   When = "at start"
)

// Takes returns when a change of a word counts.
func Takes(word string) When {
	switch word {
	case SMC, ListenPort, ListenAddress:
		return AtOnce
	case Program, ConnectPort, ConnectAddress, ShortAfter:
		return InLibrary
	}
	return AtStart
}

// CopiedVariable returns [EnvCopied] with its value, for an environment in which the variables of
// these words have values that come from the file.
func CopiedVariable(environ []string, words []string) string {
	var list []string
	for _, word := range words {
		for _, e := range environ {
			if value, ok := strings.CutPrefix(e, Variables[word]+"="); ok && Variables[word] != "" {
				list = append(list, word+"="+hashOf(value))
			}
		}
	}
	return EnvCopied + "=" + strings.Join(list, ",")
}

func hashOf(value string) string {
	h := fnv.New64a()
	h.Write([]byte(value))
	return fmt.Sprintf("%x", h.Sum64())
}

// variable returns the value of a word's variable, "" if it is a copy of the file's.
func variable(getenv func(string) string, word string) string {
	v := getenv(Variables[word])
	if v == "" || slices.Contains(strings.Split(getenv(EnvCopied), ","), word+"="+hashOf(v)) { // rule: TestCopied
		return ""
	}
	return v
}

// A Follower follows the file for a program that runs: the file at the path that it had when the
// program began to follow it, with the environment of that time. Several goroutines may use it.
type Follower struct {
	next atomic.Int64 // time of the next look, in nanoseconds

	environ map[string]string // values of variables when it began
	root    stamp             // of the root directory then: a program may go to another one
	read    func(path string) (*File, error)

	mu      sync.Mutex
	path    string    // absolute
	stamp   stamp     // of the file that was understood, or found wrong, last
	wrong   error     // of that file: the values before are in force
	trouble error     // in reading the file at the last look; it is tried again
	seen    stamp     // of the file at the last look
	since   time.Time // when it was found so
}

// patience is how long a file that has changed has to stay as it is before it counts: editors empty a
// file, or take it away, and write it then. Nobody is to have the policy of half a file.
const patience = 100 * time.Millisecond

// settleLooks is how often [Follower.Settled] looks at a file that does not stay as it is.
const settleLooks = 4

// Follow returns the settings as [Load] does, and a follower of the file that has them.
func Follow() (*Follower, Settings, error) {
	f := &Follower{path: Path(), environ: make(map[string]string), root: stampOf("/"), read: Read}
	if path, err := filepath.Abs(f.path); err == nil {
		f.path = path // the program may change its directory
	}
	for _, name := range append(slices.Collect(maps.Values(Variables)), EnvDisabled, EnvCopied) {
		f.environ[name] = environment(name)
	}
	f.stamp = stampOf(f.path) // first: a change while it is read is found later
	file, err := Read(f.path)
	if f.settle(file, err); f.trouble != nil {
		f.stamp.size = -1 // rule: TestFollowUnreadable: -1 -> f.stamp.size
	}
	f.seen = f.stamp
	s, err := file.settings(err, f.getenv)
	return f, s, err
}

// settle sets the errors of a file that was read with an error.
func (f *Follower) settle(file *File, err error) {
	f.wrong, f.trouble = nil, nil
	if len(file.problems) > 0 {
		f.wrong = file.brief()
	} else {
		f.trouble = err
	}
}

func (f *Follower) getenv(name string) string { return f.environ[name] }

// Look looks whether the file has changed, unless that was done less than age ago. If so, it calls
// apply with the settings now, one call at a time. A file that is not understood changes nothing. One
// that cannot be read neither, and is tried again. The error says so, once, in a few lines. If the
// file is being changed, the result is the time after which another look finds more; 0: none.
// A look for an age above 0 never waits for another one.
func (f *Follower) Look(age time.Duration, apply func(s *Settings)) (again time.Duration, err error) {
	now := time.Now().UnixNano()
	if age > 0 {
		if next := f.next.Load(); now < next && next-now <= int64(age) { // else the clock was set back
			return 0, nil
		}
		if !f.mu.TryLock() { // rule: TestFollowBusy
			return 0, nil
		}
	} else {
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	f.next.Store(now + int64(age))
	return f.look(apply)
}

// look is [Follower.Look] with the lock.
func (f *Follower) look(apply func(s *Settings)) (again time.Duration, err error) {
	if root := stampOf("/"); root.dev != f.root.dev || root.ino != f.root.ino { // rule: TestFollowElsewhere
		f.trouble = errElsewhere
		return 0, nil
	}
	now := stampOf(f.path)
	if now == f.stamp {
		f.seen, f.trouble = now, nil
		return 0, nil
	}
	if now != f.seen {
		f.seen, f.since = now, time.Now()
	}
	wait := patience - time.Since(f.since)
	if wait > 0 && !now.older(patience) { // rule: TestFollowHalf: wait > 0 -> wait > patience
		return wait, nil
	}
	file, err := f.read(f.path)
	if stampOf(f.path) != now { // rule: TestFollowHalf
		return patience, nil
	}
	before := f.trouble
	if f.settle(file, err); f.trouble != nil { // such as a lack of descriptors, which may pass
		if before != nil && before.Error() == f.trouble.Error() { // rule: TestFollowUnreadable
			return 0, nil
		}
		return 0, f.trouble
	}
	f.stamp = now
	if f.wrong != nil { // rule: TestFollow: f.wrong != nil -> false
		return 0, f.wrong
	}
	s, _ := file.settings(nil, f.getenv) // variables that are wrong were told of at the start
	apply(&s)
	return 0, nil
}

// errElsewhere is the error of a program that has another root directory than when it began.
var errElsewhere = errors.New("the program has another root directory now, and keeps its values")

// Settled looks at the file as it is now, and waits for one that is being changed.
func (f *Follower) Settled(look func() (again time.Duration)) {
	for range settleLooks {
		again := look()
		if again <= 0 {
			return
		}
		time.Sleep(again)
	}
}

// Lengths of an error for a log: lines of a file that are told of, and bytes of each.
const (
	briefLines = 3
	briefBytes = 200
)

// brief is the error of a file that is wrong for a log. It is short however long the file is.
func (f *File) brief() error {
	var list []string
	for _, p := range f.problems {
		if len(list) == briefLines { // rule: TestFollowHostile: len(list) == briefLines -> false
			list = append(list, fmt.Sprintf("lines not understood: %d", len(f.problems)))
			break
		}
		text := strings.ToValidUTF8(p.Message[:min(len(p.Message), briefBytes)], "?")
		list = append(list, fmt.Sprintf("%s:%d: %s", f.path, p.Line, text))
	}
	return errors.New(strings.Join(list, "\n"))
}

// State returns the path of the file, and why it is not in force as it is, if so.
func (f *Follower) State() (path string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.path, cmp.Or(f.wrong, f.trouble)
}

// Set is [Set] for the environment with which the program began to follow the file.
func (f *Follower) Set(word string) bool { return isSet(word, f.getenv) }

// Set reports whether a word has a value of the environment, which a change of the file does not
// change.
func Set(word string) bool { return isSet(word, environment) }

func isSet(word string, getenv func(string) string) bool {
	if word == SMC {
		return getenv(EnvDisabled) != ""
	}
	return variable(getenv, word) != ""
}

// Refusing returns a policy that refuses everything, for this reason.
func Refusing(why string) *Policy {
	return &Policy{Listen: Rules{refuseAll: why}, Connect: Rules{refuseAll: why}}
}

// whyOff is why a program stays with TCP that was there when SMC was switched off.
const whyOff = "SMC is switched off by smc off"

// PolicyFor returns the policy of s for servers and clients of a program. The program's own filters
// come before the lists of s. An empty program is one that other rules than those of [Program] are
// for.
func (s *Settings) PolicyFor(listen, connect Filter, program string) (*Policy, error) {
	for _, l := range []struct{ list, value *[]string }{
		{&listen.Ports, &s.Listen.Ports}, {&listen.Addresses, &s.Listen.Addresses},
		{&connect.Ports, &s.Connect.Ports}, {&connect.Addresses, &s.Connect.Addresses},
	} {
		if len(*l.list) == 0 {
			*l.list = *l.value
		}
	}
	programs := s.Programs
	if program == "" {
		programs = nil
	}
	p, err := NewPolicy(listen, connect, programs, program)
	if err == nil && s.Off { // rule: TestFollow
		return Refusing(whyOff), nil
	}
	return p, err
}

// ServerPolicy returns the policy that the supervisor of a program of 'gosmc run' has now for its
// listeners, by the environment of that program.
func ServerPolicy(getenv func(string) string) *Policy {
	path := getenv(EnvFile)
	if path == "" {
		path = DefaultPath
	}
	f, err := Read(path)
	if err != nil {
		return new(Policy) // the values before are in force, which nobody but the supervisor knows
	}
	list := func(word string) []string {
		if v := variable(getenv, word); v != "" {
			return nil // the library has it
		}
		return f.Values(word)
	}
	s := Settings{Listen: Filter{list(ListenPort), list(ListenAddress)}}
	for _, v := range f.Values(SMC) {
		on, _ := ParseSwitch(v)
		s.Off = !on && getenv(EnvDisabled) == ""
	}
	p, err := s.PolicyFor(Filter{}, Filter{}, "")
	if err != nil {
		return new(Policy)
	}
	return p
}

// Narrower reports whether a list of the policy allows nothing that another one refuses, as far as
// its entries show it.
func Narrower(list, than []string) bool {
	has := func(in []string, v string) bool { return slices.Contains(in, v) || slices.Contains(in, matchAny) }
	positives := func(in []string) (out []string) {
		for _, v := range in {
			if !strings.HasPrefix(v, "!") && v != matchAny {
				out = append(out, v)
			}
		}
		return out
	}
	for _, v := range than {
		if strings.HasPrefix(v, "!") && !slices.Contains(list, v) {
			return false
		}
	}
	if old := positives(than); len(old) > 0 && !slices.Contains(than, matchAny) {
		allowed := positives(list)
		if len(allowed) == 0 || slices.Contains(list, matchAny) {
			return false
		}
		return !slices.ContainsFunc(allowed, func(v string) bool { return v != matchNone && !has(old, v) })
	}
	return true
}
