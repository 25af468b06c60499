package config

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	osuser "os/user"
)

// The words of a list of [Users] that are no names.
const (
	usersSame = "same" // of no other user
	groupSign = "@"    // before the name of a group
)

// maxUsers bounds the users that the entries of a list stand for.
const maxUsers = 1024

// maxAccountLine bounds a line of /etc/group, in bytes: a group of a directory service has a line of
// megabytes with a hundred thousand members.
const maxAccountLine = 16 << 20

// Users are the other users with whose programs connections may leave TCP. The zero value says
// nothing: then all may where the run directory is the machine's, and none otherwise. The own user
// is none of them: its programs may always. Several goroutines may use it.
type Users struct {
	said     bool
	any      bool
	allowed  []int    // sorted
	excepted []int    // sorted
	unknown  []string // exceptions for names that nobody has
}

// NewUsers makes the users of a list: same, any, none, names and numbers of users, and names and
// numbers of groups behind an @, and exceptions behind an exclamation mark. Members of a group are
// those that /etc/passwd and /etc/group name. A name that nobody has stands for nobody; behind an
// exclamation mark it has the list admit no other user, see [Users.Unknown]. A file that cannot be
// read is an error, as an exception would be lost otherwise. An empty list says nothing.
func NewUsers(list []string) (Users, error) {
	u := Users{said: len(list) > 0}
	only := true // there are no entries but exceptions
	for _, item := range list {
		if err := checkUsers(item); err != nil {
			return Users{said: true}, err
		}
		name, not := strings.CutPrefix(item, "!")
		switch {
		case name == matchAny && not, name == usersSame && !not, name == matchNone && !not:
			if not {
				u.allowed, u.any, only = nil, false, false
				return u, nil
			}
			only = false
		case name == matchAny:
			u.any, only = true, false
		case name == usersSame || name == matchNone: // !same says nothing more than the other entries
		default:
			numbers, known, err := numbersOf(name)
			if err != nil {
				return Users{said: true}, fmt.Errorf("%s %q: %w", UsersWord, item, err)
			}
			switch {
			case not && !known:
				u.unknown = append(u.unknown, item)
			case not:
				u.excepted = append(u.excepted, numbers...)
			default:
				u.allowed, only = append(u.allowed, numbers...), false
			}
		}
	}
	u.any = u.any || u.said && only
	if len(u.unknown) > 0 { // rule: TestUnknownNames: len(u.unknown) > 0 -> false
		u.any, u.allowed = false, nil // the user that was meant may be any of them
	}
	slices.Sort(u.allowed)
	slices.Sort(u.excepted)
	u.allowed, u.excepted = slices.Compact(u.allowed), slices.Compact(u.excepted)
	if len(u.allowed)+len(u.excepted) > maxUsers {
		err := fmt.Errorf("%s: the entries stand for more than %d users", UsersWord, maxUsers)
		return Users{said: true}, err
	}
	return u, nil
}

// checkUsers returns an error if an entry is invalid.
func checkUsers(item string) error {
	name := strings.TrimPrefix(strings.TrimPrefix(item, "!"), groupSign)
	if name == "" || len(name) > maxProgram || strings.ContainsAny(name, " ,:!"+groupSign) {
		return fmt.Errorf("%q: want same, any, a user or @GROUP, ! before an exception", item)
	}
	return nil
}

// Admits reports whether connections with the programs of another user may leave TCP. machine says
// that the run directory is the machine's, by which the default is decided.
func (u *Users) Admits(uid int, machine bool) bool {
	if !u.said {
		return machine
	}
	if _, found := slices.BinarySearch(u.excepted, uid); found { // rule: TestUsers
		return false
	}
	_, found := slices.BinarySearch(u.allowed, uid)
	return u.any || found
}

// Some reports whether another user may be admitted at all.
func (u *Users) Some(machine bool) bool {
	if !u.said {
		return machine
	}
	return u.any || len(u.allowed) > 0
}

// Unknown returns the exceptions of the list whose names nobody has. If there are any, the list admits
// no other user: the one that was meant is not known.
func (u *Users) Unknown() []string { return u.unknown }

// Said reports whether the list says anything.
func (u *Users) Said() bool { return u.said }

// Lists returns the parts of the policy: whether all users are admitted but for the excepted ones, or
// else the users that are, in ascending order. They are the callee's.
func (u *Users) Lists() (anyUser bool, allowed, excepted []int) { return u.any, u.allowed, u.excepted }

// numeric is the value of the environment that says the same by numbers: a program in a container
// with other names gets them.
func (u *Users) numeric() string {
	var words []string
	switch {
	case !u.said:
		return ""
	case u.any:
		words = append(words, matchAny)
	case len(u.allowed) == 0:
		return usersSame
	}
	for _, uid := range u.allowed {
		words = append(words, strconv.Itoa(uid))
	}
	for _, uid := range u.excepted {
		words = append(words, "!"+strconv.Itoa(uid))
	}
	return strings.Join(words, ",")
}

// numbersOf returns the users that an entry stands for. It reports false for a name that nobody has.
func numbersOf(name string) (numbers []int, known bool, err error) {
	group, isGroup := strings.CutPrefix(name, groupSign)
	if isGroup {
		return membersOf(group)
	}
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return []int{int(n)}, true, nil
	}
	u, err := osuser.Lookup(name)
	if err != nil {
		return nil, false, unlessUnknown(err)
	}
	if n, err := strconv.Atoi(u.Uid); err == nil {
		return []int{n}, true, nil
	}
	return nil, false, nil
}

// unlessUnknown returns the error of a look-up, but nil if it says that nobody has the name.
func unlessUnknown(err error) error {
	var user osuser.UnknownUserError
	var group osuser.UnknownGroupError
	if errors.As(err, &user) || errors.As(err, &group) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err // rule: TestUnknownNames: err -> nil
}

// membersOf returns the members of a group: users whose first group it is, and those that it lists.
// It reports false for a name that no group has.
func membersOf(group string) (uids []int, known bool, err error) {
	gid := group
	if _, err := strconv.ParseUint(group, 10, 32); err != nil {
		g, err := osuser.LookupGroup(group)
		if err != nil {
			return nil, false, unlessUnknown(err)
		}
		gid = g.Gid
	}
	uids, err = membersIn("/etc/group", "/etc/passwd", gid)
	return uids, err == nil, err
}

// membersIn is membersOf for the number of a group, and with the paths of the two files.
func membersIn(groups, users, gid string) (uids []int, err error) {
	listed := make(map[string]bool)
	err = eachLine(groups, func(fields []string) { // name:password:number:members
		if len(fields) == 4 && fields[2] == gid {
			for name := range strings.SplitSeq(fields[3], ",") {
				listed[name] = true
			}
		}
	})
	if err != nil {
		return nil, err
	}
	err = eachLine(users, func(fields []string) { // name:password:number:group:...
		if len(fields) < 4 || fields[3] != gid && !listed[fields[0]] {
			return
		}
		if n, err := strconv.ParseUint(fields[2], 10, 32); err == nil {
			uids = append(uids, int(n))
		}
	})
	return uids, err
}

// eachLine calls f with the parts of each line of a file, which need not exist.
func eachLine(path string, f func(fields []string)) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxAccountLine) // rule: TestMembersLongLine: maxAccountLine -> bufio.MaxScanTokenSize
	for lines.Scan() {
		f(strings.Split(lines.Text(), ":"))
	}
	if err := lines.Err(); err != nil { // rule: TestMembersUnreadable: err != nil -> false && err != nil
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
