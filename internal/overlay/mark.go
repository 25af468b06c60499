package overlay

import (
	"bufio"
	"io"
	"os"
	"strings"
)

// markBegin and markEnd enclose the mark of a program. They are in two parts so that the gosmc
// command, which has them here, has no mark.
var (
	markBegin = strings.Join([]string{"gosmc", "go: "}, " ")
	markEnd   = ";"
)

// makeMark returns the mark in a program that was built with an overlay: the versions of gosmc and
// of Go.
func makeMark(version, toolchain string) string {
	keep := func(r rune) rune {
		if r <= ' ' || r > '~' || r == '"' || r == '\\' || r == ';' {
			return '_'
		}
		return r
	}
	return markBegin + strings.Map(keep, version) + " " + strings.Map(keep, toolchain) + markEnd
}

// maxMark is the length of the longest mark that is looked for.
const maxMark = 200

// FindMark looks for the mark in a program and returns the version of gosmc that it was built with.
// It returns "" for a program without it.
func FindMark(file string) (version string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<16)
	for {
		window, err := r.Peek(1 << 16)
		if begin := strings.Index(string(window), markBegin); begin >= 0 {
			if begin > 0 {
				r.Discard(begin)
				window, _ = r.Peek(maxMark)
			}
			text := strings.TrimPrefix(string(window[:min(len(window), maxMark)]), markBegin)
			if version, _, ok := strings.Cut(text, markEnd); ok && strings.Count(version, " ") == 1 {
				version, _, _ = strings.Cut(version, " ")
				return version, nil
			}
			r.Discard(1)
			continue
		}
		switch {
		case err == io.EOF:
			return "", nil
		case err != nil:
			return "", err
		}
		r.Discard(len(window) - len(markBegin) + 1)
	}
}
