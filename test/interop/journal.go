package main

import (
	"fmt"
	"strings"
	"sync"
)

// journalLines is how many lines a journal keeps: the events of one damage to a link are about ten.
const journalLines = 60

// A journal keeps the last lines of our hosts' log, for a case that fails: the guest is slow, and such a case seldom fails again
// while somebody looks. Several goroutines may write to it. Each write is a line.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.lines) == journalLines {
		j.lines = j.lines[1:] // rule: TestJournal: j.lines[1:] -> j.lines
	}
	j.lines = append(j.lines, strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}

// indented is text for the lines below a case. Equal lines that follow each other are one, with their number:
// a hundred connections may all say the same.
func indented(text string) string {
	var lines []string
	n := 1
	flush := func() {
		if n > 1 {
			lines[len(lines)-1] += fmt.Sprintf(" (%d times)", n)
		}
		n = 1
	}
	previous := ""
	for i, line := range strings.Split(text, "\n") {
		if i > 0 && line == previous {
			n++
			continue
		}
		flush()
		lines, previous = append(lines, line), line
	}
	flush()
	return strings.Join(lines, "\n      ")
}
