package service

import (
	"slices"
	"strings"
)

// A Unit has the settings from the files of a unit.
type Unit struct {
	Name  Name
	Asked Name // by which name it was asked for: another one is an alias
	Files []File
	set   []setting
}

// A File is one of the files of a unit, the unit file first, then drop-ins in the order in which they apply.
type File struct {
	Path string // in the system
	text string
}

// A setting is a line of a unit's files.
type setting struct {
	section, key, value string
	file                int // index into Files
}

// newUnit reads files.
func newUnit(name, asked Name, files []File) *Unit {
	u := &Unit{Name: name, Asked: asked, Files: files}
	for i, f := range files {
		u.set = append(u.set, parse(f.text, i)...)
	}
	return u
}

// parse reads a file as systemd.syntax(7) has it: comments begin with # or ;, a backslash at the
// end of a line joins it to the next one by a space, and comments in between are left out.
func parse(text string, file int) (list []setting) {
	section, joined, open := "", "", false
	take := func(line string) {
		line = strings.TrimSpace(line)
		if line == "" {
			return
		}
		if line[0] == '[' && line[len(line)-1] == ']' {
			section = line[1 : len(line)-1]
			return
		}
		key, value, ok := strings.Cut(line, "=")
		if ok {
			list = append(list, setting{section, strings.TrimSpace(key), strings.TrimSpace(value), file})
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if start := strings.TrimLeft(line, " \t"); start != "" && (start[0] == '#' || start[0] == ';') { // rule: TestParse
			continue
		}
		if rest, ok := strings.CutSuffix(line, `\`); ok {
			joined, open = joined+rest+" ", true
			continue
		}
		take(joined + line)
		joined, open = "", false
	}
	if open {
		take(joined)
	}
	return list
}

// last returns the value of a key of [Service] that has one value, the last one.
func (u *Unit) last(key string) string {
	value := ""
	for _, s := range u.set {
		if s.section == "Service" && s.key == key {
			value = s.value
		}
	}
	return value
}

// all returns the lines of a key of [Service] that makes a list. A line without a value empties it.
func (u *Unit) all(key string) (list []setting) { return u.allOf("Service", key) }

func (u *Unit) allOf(section, key string) (list []setting) {
	for _, s := range u.set {
		switch {
		case s.section != section || s.key != key:
		case s.value == "":
			list = nil // rule: TestReset
		default:
			list = append(list, s)
		}
	}
	return list
}

// words returns the words of all lines of a key.
func (u *Unit) words(key string) (list []string) {
	for _, s := range u.all(key) {
		list = append(list, strings.Fields(s.value)...)
	}
	return list
}

// on reports whether a key with a boolean value is true.
func (u *Unit) on(key string) bool { return isTrue(u.last(key)) }

func isTrue(value string) bool {
	return slices.Contains([]string{"1", "yes", "y", "true", "t", "on"}, strings.ToLower(value))
}

// without returns the unit without one of its files.
func (u *Unit) without(path string) *Unit {
	files := slices.DeleteFunc(slices.Clone(u.Files), func(f File) bool { return f.Path == path })
	return newUnit(u.Name, u.Asked, files)
}
