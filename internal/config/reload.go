package config

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/rundir"
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

// A Follower follows the file for a program that runs. Several goroutines may use it.
type Follower struct {
	next atomic.Int64 // time of the next look, in nanoseconds

	mu    sync.Mutex
	path  string
	stamp stamp
	err   error // of the file as it is now: the values before are in force
}

// Follow returns the settings as [Load] does, and a follower of the file that has them.
func Follow() (*Follower, Settings, error) {
	f := &Follower{path: Path()}
	f.stamp = stampOf(f.path) // first: a change while it is read is found later
	s, err := Load()
	return f, s, err
}

// Look looks whether the file has changed, unless that was done less than age ago. If so, it calls
// apply with the settings now, one call at a time. A file that is not understood changes nothing; the
// error says so, once.
func (f *Follower) Look(age time.Duration, apply func(s *Settings)) error {
	now := time.Now().UnixNano()
	if next := f.next.Load(); now < next && next-now <= int64(age) { // else the clock was set back
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next.Store(now + int64(age))
	stamp := stampOf(f.path)
	if stamp == f.stamp {
		return nil
	}
	f.stamp = stamp
	if _, f.err = Read(f.path); f.err != nil { // rule: TestFollow: f.err != nil -> false
		return f.err
	}
	s, _ := Load() // variables that are wrong were told of at the start
	apply(&s)
	return nil
}

// State returns the path of the file, and why it is not in force as it is, if so.
func (f *Follower) State() (path string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.path, f.err
}

// Set reports whether a word has a value of the environment, which a change of the file does not
// change.
func Set(word string) bool {
	if word == SMC {
		return rundir.Getenv(EnvDisabled) != ""
	}
	return variable(rundir.Getenv, word) != ""
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
