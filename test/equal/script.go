package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// A script is one play of the player: steps, a line each, as player/main.c has them.
type script struct {
	name  string
	notes []string // lines that begin with #, before the steps
	known string   // the row of the table of docs/run.md that has the difference; empty: there is none
	modes []string // in which it is played beside bare TCP; empty: in all
	steps []string
	want  []string // the observation of each step over TCP; nil: nobody has written it down
}

// parseScript reads a script as String writes it.
func parseScript(name, text string) (*script, error) {
	s := &script{name: name}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case strings.HasPrefix(line, "#"):
			s.notes = append(s.notes, strings.TrimSpace(line[1:]))
		case strings.HasPrefix(line, "known:"):
			s.known = strings.TrimSpace(strings.TrimPrefix(line, "known:"))
		case strings.HasPrefix(line, "modes:"):
			s.modes = strings.Fields(strings.TrimPrefix(line, "modes:"))
		default:
			step, want, ok := strings.Cut(line, "=>")
			if step = strings.TrimSpace(step); !isStep(step) {
				return nil, fmt.Errorf("%s:%d: not a step: %q", name, i+1, line)
			}
			s.steps = append(s.steps, step)
			if ok {
				s.want = append(s.want, strings.TrimSpace(want))
			}
		}
	}
	if len(s.want) != 0 && len(s.want) != len(s.steps) {
		return nil, fmt.Errorf("%s: %d steps and %d observations", name, len(s.steps), len(s.want))
	}
	return s, nil
}

// isStep says whether the player takes a line for a step.
func isStep(line string) bool {
	who, what, ok := strings.Cut(strings.TrimLeft(line, "~&"), " ")
	actor, thread, _ := strings.Cut(who, ".")
	return ok && what != "" && len(actor) == 1 && strings.Contains("0123", actor) && len(thread) <= 1 && strings.Trim(thread, "012") == "" && len(what) < 200
}

func readScript(path string) (*script, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseScript(path, string(text))
}

// String is the script as a file has it.
func (s *script) String() string {
	var b strings.Builder
	w := bufio.NewWriter(&b)
	for _, n := range s.notes {
		fmt.Fprintf(w, "# %s\n", n)
	}
	if s.known != "" {
		fmt.Fprintf(w, "known: %s\n", s.known)
	}
	if len(s.modes) > 0 {
		fmt.Fprintf(w, "modes: %s\n", strings.Join(s.modes, " "))
	}
	for i, step := range s.steps {
		if s.want != nil {
			fmt.Fprintf(w, "%-40s => %s\n", step, s.want[i])
		} else {
			fmt.Fprintln(w, step)
		}
	}
	w.Flush()
	return b.String()
}

// without returns the script without the steps from one on, before another.
func (s *script) without(from, to int) *script {
	t := *s
	t.want = nil
	t.steps = append(append([]string(nil), s.steps[:from]...), s.steps[to:]...)
	return &t
}
