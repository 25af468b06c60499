package service

import (
	"path"
	"slices"
	"strings"
)

// States of drop-ins.
const (
	StateOK       = "ok"       // as gosmc would write it now
	StateOld      = "outdated" // the unit or gosmc has changed since: enable it again
	StateChanged  = "changed"  // somebody has changed the drop-in
	StateOverrule = "overruled"
	StateGone     = "no unit"
	StateByHand   = "by hand" // a file that gosmc has not written has 'gosmc run'
)

// An Entry is a service that is put under 'gosmc run'.
type Entry struct {
	Unit  Name
	File  string // the drop-in, or the file with 'gosmc run' that gosmc has not written
	State string
	Dir   string // run directory, "" if that is not known
	Why   string // of a state other than ok
}

// List returns the services under 'gosmc run', sorted. It looks at units and drop-ins of the
// administrator's, in /etc.
func (t *Tree) List(o Options) (list []Entry) {
	seen := make(map[Name]bool)
	for _, file := range t.names(unitsDir) {
		name, err := ParseName(strings.TrimSuffix(file, ".d"))
		if err != nil || string(name) != strings.TrimSuffix(file, ".d") || seen[name] {
			continue
		}
		if _, linked := t.link(path.Join(unitsDir, file)); linked && !strings.HasSuffix(file, ".d") {
			continue // another name
		}
		seen[name] = true
		if e, ok := t.entry(name, o); ok {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(string(a.Unit), string(b.Unit)) })
	return list
}

// Enabled returns the units that have a drop-in of gosmc, sorted. They need not be there any more.
func (t *Tree) Enabled() (list []Name) {
	for _, file := range t.names(unitsDir) {
		name, err := ParseName(strings.TrimSuffix(file, ".d"))
		if err == nil && file == string(name)+".d" && t.exists(dropInPath(name)) {
			list = append(list, name)
		}
	}
	return list
}

// entry looks at one unit.
func (t *Tree) entry(name Name, o Options) (e Entry, ok bool) {
	file := dropInPath(name)
	text, err := t.read(file)
	own := err == nil
	e = Entry{Unit: name, File: "/" + file}
	u, err := t.Unit(name)
	switch {
	case err != nil && own:
		e.State, e.Why = StateGone, err.Error()
		return e, true
	case err != nil:
		return e, false
	}
	e.Dir = u.environment("GOSMC_DIR")
	commands, err := u.commands()
	i := slices.IndexFunc(commands, command.isUnder)
	switch {
	case !own && (err != nil || i < 0):
		return e, false
	case !own:
		starts := u.all("ExecStart")
		e.File, e.State = u.Files[starts[len(starts)-1].file].Path, StateByHand
		return e, true
	case err != nil || i < 0: // rule: TestList
		e.State, e.Why = StateOverrule, "a drop-in that sorts after "+dropInFile+" has another ExecStart="
		return e, true
	case !signed(text):
		e.State, e.Why = StateChanged, "'gosmc service enable --force "+name.Short()+"' writes it again"
		return e, true
	}
	p, err := t.Plan(u, o)
	switch {
	case err != nil:
		e.State, e.Why = StateOld, err.Error()
	case p.Text != text: // rule: TestList
		e.State, e.Why = StateOld, "'gosmc service enable "+name.Short()+"' writes it again"
	default:
		e.State = StateOK
	}
	return e, true
}

// environment returns the value of a variable that a unit sets.
func (u *Unit) environment(name string) (value string) {
	for _, s := range u.all("Environment") {
		words, err := splitWords(s.value)
		if err != nil {
			continue
		}
		for _, w := range words {
			if v, ok := strings.CutPrefix(w.text, name+"="); ok {
				value = v
			}
		}
	}
	return value
}
