package config

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gosmc/smc/internal/rundir"
)

// Words are all words of the file, in the order of its documentation.
var Words = []string{
	SMC, Program, ListenPort, ListenAddress, ConnectPort, ConnectAddress, UsersWord, MachineAddress,
	Memory, RingAfter, ShortAfter,
	UEID, SEID, Peer, Device, SMCRv1, PNET, BetweenHosts,
	SMCRLinks, SMCRConns, SMCRSpread, SMCRKeepAlive, Spin, ReadBuffer,
}

// Defaults say what holds for a word that nobody sets. A value that a line of the file could have is
// written as there; other defaults are a description in parentheses.
var Defaults = map[string]string{
	SMC: "on", Program: "any", ListenPort: "any", ListenAddress: "any", ConnectPort: "any",
	ConnectAddress: "any", UsersWord: "(same; any in /run/gosmc)", MachineAddress: "(private networks)",
	Memory: "(by the memory of the machine)", RingAfter: "256KiB",
	ShortAfter: "16", UEID: "(none)", SEID: "on", Peer: "(peers with TCP option 254)",
	Device: "(the address of the connection)", SMCRv1: "off", PNET: "(none)",
	SMCRLinks: "2", SMCRConns: "255", SMCRSpread: "connections", SMCRKeepAlive: "30s", Spin: "50us",
	ReadBuffer:   "(by the caches and the memory of the machine)",
	BetweenHosts: "off",
}

// IsList reports whether a word may have several values.
func IsList(word string) bool {
	switch word {
	case SMC, Memory, RingAfter, ShortAfter, SEID, SMCRv1, BetweenHosts,
		SMCRLinks, SMCRConns, SMCRSpread, SMCRKeepAlive, Spin, ReadBuffer:
		return false
	}
	return true
}

// An Entry is the value of a word that counts, and the place where it is set.
type Entry struct {
	Word string `json:"word"`
	// Values are those in force. They are empty if nobody sets the word; Default holds then. A word
	// that is no list has one value.
	Values  []string `json:"values"`
	Default string   `json:"default"`
	// Source is a file, or a variable after "$", or a flag after "--". It is empty if nobody sets
	// the word.
	Source string `json:"source"`
	Lines  []int  `json:"lines,omitempty"` // of the file, from 1, one for each value
	// Takes says when a change of the word counts for programs that run.
	Takes When `json:"takes_effect"`
}

// Effective returns an entry for each word, in the order of [Words]. The error tells of values that
// are not understood and left out.
func Effective() ([]Entry, error) {
	f, err := Read(Path())
	values, err := f.merged(err, environment)
	if v := os.Getenv(EnvDisabled); v != "" {
		off, _ := ParseDisabled(v)
		values[SMC] = []string{map[bool]string{true: "off", false: "on"}[off]}
	}
	list := make([]Entry, 0, len(Words))
	for _, word := range Words {
		e := Entry{
			Word: word, Values: append([]string{}, values[word]...), Default: Defaults[word],
			Source: Source(word), Takes: Takes(word),
		}
		if e.Source == Path() && !slices.Contains(f.wrong, word) {
			e.Lines = f.numbers(word)
		}
		if n := len(e.Values); n > 1 && !IsList(word) { // the last one counts
			e.Values = e.Values[n-1:]
			if len(e.Lines) == n {
				e.Lines = e.Lines[n-1:]
			}
		}
		list = append(list, e)
	}
	return list, err
}

// numbers returns the numbers of the lines of a word, in order, from 1.
func (f *File) numbers(word string) (list []int) {
	for i, l := range f.lines {
		if l.word == word {
			list = append(list, i+1)
		}
	}
	return list
}

// Override has a flag of a command take the place of the other sources of an entry.
func (e *Entry) Override(values []string) {
	e.Values, e.Source, e.Lines = values, "--"+e.Word, nil
}

// A Problem is a line of a file that is not understood, that has no effect, or that names a user or
// a group that is not there.
type Problem struct {
	Line    int    `json:"line"` // from 1; 0: the file as a whole
	Word    string `json:"word"` // first of the line
	Near    string `json:"near"` // the word, or entry of users, that was probably meant; empty: none
	Message string `json:"message"`
}

// Problems returns all that is wrong with a file, in the order of its lines. A file that cannot be
// read is an error, also one that is not there.
func Problems(path string) ([]Problem, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: all is as 'gosmc config show --effective' shows", err)
	} else if err != nil {
		return nil, err
	}
	f, err := Read(path)
	list := f.problems
	if err != nil && len(list) == 0 {
		return nil, err
	}
	last := make(map[string]int) // line by word, or by interface for a PNETID
	for i := len(f.lines) - 1; i >= 0; i-- {
		l, n := f.lines[i], i+1
		if l.word == "" || IsList(l.word) && l.word != PNET {
			continue
		}
		key := l.word
		if l.word == PNET {
			key += " for " + l.iface()
		}
		if later := last[key]; later > 0 { // rule: TestProblems
			list = append(list, Problem{n, l.word, "", fmt.Sprintf(
				"%s has no effect here: line %d sets it again", key, later)})
			continue
		}
		last[key] = n
	}
	for i, l := range f.lines {
		if l.word != UsersWord {
			continue
		}
		if p := unknownUser(l.value); p != nil {
			p.Line = i + 1
			list = append(list, *p)
		}
	}
	if whole := f.whole(); whole != nil {
		list = append(list, *whole)
	}
	slices.SortStableFunc(list, func(a, b Problem) int { return a.Line - b.Line })
	return list, nil
}

// whole returns a problem that is in no line alone: lines that exclude each other.
func (f *File) whole() *Problem {
	if ids := f.numbers(UEID); len(ids) > maxUEIDs { // rule: TestProblems
		return &Problem{ids[maxUEIDs], UEID, "", fmt.Sprintf(
			"ueid number %d: a host may have %d, and none of them counts", maxUEIDs+1, maxUEIDs)}
	}
	seids := f.Values(SEID)
	if len(seids) == 0 || len(f.Values(UEID)) > 0 || variable(rundir.Getenv, UEID) != "" {
		return nil
	}
	if on, _ := ParseSwitch(seids[len(seids)-1]); !on { // rule: TestProblems
		numbers := f.numbers(SEID)
		return &Problem{numbers[len(numbers)-1], SEID, "",
			"seid off has no effect: without a UEID the system EID cannot be disabled"}
	}
	return nil
}
