package config

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/gosmc/smc/internal/near"
)

// LogUsers is [NewUsers], and tells a log why a list admits no other user that was to admit some.
func LogUsers(list []string, log *slog.Logger) (Users, error) {
	const message = "no other users are admitted"
	u, err := NewUsers(list)
	if err != nil {
		log.Warn(message, "word", UsersWord, "err", err)
	}
	for _, p := range UnknownUsers(u.unknown) { // rule: internal/host TestUsersUnknown: u.unknown -> nil
		log.Warn(message, "word", UsersWord, "err", p.Message, "next", "gosmc config check")
	}
	return u, err
}

// UnknownUsers returns a problem for each entry of a list of users whose name nobody here has. Line
// is 0 in each. Near is the entry that was probably meant.
func UnknownUsers(list []string) (problems []Problem) {
	for _, item := range list {
		if p := unknownUser(item); p != nil {
			problems = append(problems, *p)
		}
	}
	return problems
}

// unknownUser is [UnknownUsers] for one entry; nil: nothing is wrong with the name.
func unknownUser(item string) *Problem {
	name, not := strings.CutPrefix(item, "!")
	if name == matchAny || name == usersSame || name == matchNone || checkUsers(item) != nil {
		return nil
	}
	_, known, err := numbersOf(name)
	if err != nil {
		return &Problem{Word: UsersWord, Message: fmt.Sprintf("%s %q: %v", UsersWord, item, err)}
	}
	if known {
		return nil
	}
	kind, effect, sign := "user", "the entry admits nobody", ""
	if not {
		effect, sign = "until this is right, no other user is admitted", "!"
	}
	bare, isGroup := strings.CutPrefix(name, groupSign)
	if isGroup {
		kind = "group"
	}
	p := &Problem{Word: UsersWord}
	hint := fmt.Sprintf("a %s of a directory service needs its number", kind)
	if meant := nearestAccount(name, accountNames("/etc/passwd", "/etc/group")); meant != "" {
		p.Near = sign + meant
		hint = fmt.Sprintf("did you mean %s?", p.Near)
	}
	p.Message = fmt.Sprintf("%s %q: no %s has the name %q: %s; %s", UsersWord, item, kind, bare, effect, hint)
	return p
}

// accountNames returns the entries that could be meant: the words of a list, and the users and groups
// of two files.
func accountNames(users, groups string) (names []string) {
	names = []string{usersSame, matchAny, matchNone}
	for _, file := range []struct{ path, sign string }{{users, ""}, {groups, groupSign}} {
		// An error leaves out names, and an entry without a hint.
		eachLine(file.path, func(fields []string) {
			if len(fields) > 2 && checkUsers(file.sign+fields[0]) == nil {
				names = append(names, file.sign+fields[0])
			}
		})
	}
	return names
}

// nearestAccount returns the one of some entries that may have been meant, or "" if none is near. A
// user and a group of the same name are near to each other.
func nearestAccount(name string, names []string) string {
	least, best := 3, "" // letters that differ
	for _, n := range names {
		if d := near.Distance(name, n); d < least && 2*d < len(n) { // rule: TestNearestAccount: 2*d < len(n) -> true
			least, best = d, n
		}
	}
	return best
}
