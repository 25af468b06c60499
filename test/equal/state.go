package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// An outcome is the way in which a script has ended.
type outcome int

const (
	equal   outcome = iota
	dropped         // TCP does not observe the same each time
	differs
	outcomes
)

// A span is a line of the file of -state: scripts that one gosmc has played, of the seeds from one
// to before another.
type span struct {
	from, to uint64
	ended    [outcomes]uint64
	version  string // of gosmc; a word
}

func (s span) String() string {
	return fmt.Sprintf("%d %d %d %d %d %s\n", s.from, s.to, s.ended[equal], s.ended[dropped], s.ended[differs], s.version)
}

// A ledger is the file of -state, which adds up the scripts of many runs. It only grows: a run that
// is killed loses the scripts since its last line, and plays them again. Runs may share the file.
//
// It is not safe for use by several goroutines at a time.
type ledger struct {
	path    string // empty: there is none
	spans   []span // that the file had in the beginning
	current span   // not written yet
	late    map[uint64]outcome
}

// parseSpans reads the lines of a file. Its errors name the line.
func parseSpans(text string) ([]span, error) {
	var spans []span
	for i, line := range strings.Split(text, "\n") {
		if line == "" {
			continue
		}
		var s span
		_, err := fmt.Sscanf(line+"\n", "%d %d %d %d %d %s\n", &s.from, &s.to, &s.ended[equal], &s.ended[dropped], &s.ended[differs], &s.version)
		if err == nil && (s.from >= s.to || s.ended[equal]+s.ended[dropped]+s.ended[differs] != s.to-s.from) {
			err = errors.New("its numbers do not add up")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d, %q: %w", i+1, line, err)
		}
		spans = append(spans, s)
	}
	return spans, nil
}

// openLedger reads a file, which need not be there yet.
func openLedger(path string) (*ledger, error) {
	l := &ledger{path: path, late: make(map[uint64]outcome)}
	if path == "" {
		return l, nil
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if l.spans, err = parseSpans(string(text)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// begin says from which seed on scripts are played from now on, and by which gosmc.
func (l *ledger) begin(seed uint64, gosmc string) {
	l.current = span{from: seed, to: seed, version: "unknown"}
	if text, err := exec.Command(gosmc, "version").Output(); err == nil && len(strings.Fields(string(text))) > 1 {
		l.current.version = strings.Fields(string(text))[1]
	}
}

// note has the script of a seed ended. Those before it may end later: a span has no gaps.
func (l *ledger) note(seed uint64, o outcome) {
	l.late[seed] = o
	for {
		o, ok := l.late[l.current.to]
		if !ok {
			return
		}
		delete(l.late, l.current.to)
		l.current.ended[o]++
		l.current.to++
	}
}

// write adds the scripts since the last time to the file.
func (l *ledger) write() error {
	s := l.current
	if l.path == "" || s.from == s.to {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.String()) // a line at once, so that runs can share the file
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		l.spans = append(l.spans, s)
		l.current = span{from: s.to, to: s.to, version: s.version}
	}
	return err
}

// next is the seed with which a run goes on that has been given none; 0: the file has no scripts.
func next(spans []span) uint64 {
	var to uint64
	for _, s := range spans {
		to = max(to, s.to)
	}
	return to
}

// total adds spans up, for each version of gosmc, and for all. A span with seeds that one of the
// same version has had counts for nothing: its scripts are no more.
func total(spans []span) (all [outcomes]uint64, text string) {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b span) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return 0
	})
	sums, ends := make(map[string][outcomes]uint64), make(map[string]uint64)
	var versions []string
	for _, s := range spans {
		if s.from < ends[s.version] {
			continue
		}
		ends[s.version] = s.to
		if _, ok := sums[s.version]; !ok {
			versions = append(versions, s.version)
		}
		sum := sums[s.version]
		for o := range outcomes {
			sum[o] += s.ended[o]
			all[o] += s.ended[o]
		}
		sums[s.version] = sum
	}
	var b strings.Builder
	for _, v := range versions {
		fmt.Fprintf(&b, "%s: %s\n", v, counts(sums[v]))
	}
	fmt.Fprintf(&b, "total: %s\n", counts(all))
	return all, b.String()
}

func counts(n [outcomes]uint64) string {
	return fmt.Sprintf("%d scripts were equal, %d dropped, %d differed", n[equal], n[dropped], n[differs])
}
