package config

import (
	"io/fs"
	"os"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestUsers has lists of users, and the same as numbers, which programs of 'gosmc run' get, decide
// alike.
func TestUsers(t *testing.T) {
	const some, other = 4242, 4243
	for _, tt := range []struct {
		list              string
		root, some, other bool // are admitted
		otherwise         bool // other is, in a directory that is not the machine's
	}{
		{"", true, true, true, false},
		{"same", false, false, false, false},
		{"none", false, false, false, false},
		{"any", true, true, true, true},
		{"4242", false, true, false, false},
		{"root 4243", true, false, true, true},
		{"same root", true, false, false, false},
		{"any !4242", true, false, true, true},
		{"!4242", true, false, true, true},
		{"!any", false, false, false, false},
		{"4242 !any", false, false, false, false},
		{"@0", true, false, false, false},
		{"@root !root", false, false, false, false},
		{"nobody-has-this-name @nor-this", false, false, false, false},
	} {
		list := strings.Fields(tt.list)
		u, err := NewUsers(list)
		if err != nil {
			t.Errorf("%s: %v", tt.list, err)
			continue
		}
		check := func(u *Users, how string) {
			t.Helper()
			got := [4]bool{u.Admits(0, true), u.Admits(some, true), u.Admits(other, true), u.Admits(other, false)}
			if want := [4]bool{tt.root, tt.some, tt.other, tt.otherwise}; got != want {
				t.Errorf("%q%s: %v, want %v", tt.list, how, got, want)
			}
		}
		check(&u, "")
		s := Settings{Users: list}
		for _, v := range s.Environ() {
			value, ok := strings.CutPrefix(v, Variables[UsersWord]+"=")
			if !ok {
				continue
			}
			again, err := NewUsers(strings.Split(value, ","))
			if err != nil || strings.Trim(value, "0123456789!,anysme") != "" {
				t.Errorf("%q as numbers is %q, %v", tt.list, value, err)
			}
			check(&again, " as numbers")
		}
		if u.Said() == (tt.list == "") {
			t.Errorf("%q: said %t", tt.list, u.Said())
		}
	}
	for _, item := range []string{"", "!", "@", "!@", "a b", "a,b", "a:b", "@@x", strings.Repeat("x", 65)} {
		if u, err := NewUsers([]string{"any", item}); err == nil || u.Admits(some, true) {
			t.Errorf("%q is no error, or admits others", item)
		}
	}
	var many []string
	for i := range maxUsers + 1 {
		many = append(many, strconv.Itoa(i))
	}
	if u, err := NewUsers(many); err == nil || u.Admits(1, true) {
		t.Error("a list that is too long is no error, or admits others")
	}
}

// TestUsersRefuse has an entry that is not understood admit nobody, in the file and in the environment.
func TestUsersRefuse(t *testing.T) {
	path := t.TempDir() + "/gosmc.conf"
	if err := os.WriteFile(path, []byte("users any\nusers a:b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvFile, path)
	check := func() {
		t.Helper()
		s, err := Load()
		if err == nil {
			t.Error("no error")
		}
		if u, err := NewUsers(s.Users); err != nil || u.Admits(4242, true) {
			t.Errorf("%q admits others, %v", s.Users, err)
		}
	}
	check()
	t.Setenv(EnvFile, "/dev/null")
	t.Setenv(Variables[UsersWord], "any,a:b")
	check()
}

// accounts writes a file with these lines.
func accounts(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "accounts")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMembersLongLine has the members of a group be found behind a group with very many members: they
// may be an exception.
func TestMembersLongLine(t *testing.T) {
	many := "staff:x:50:" + strings.Repeat("somebody,", 20000) + "carol"
	groups := accounts(t, many, "guests:x:60:bob")
	users := accounts(t, "alice:x:1000:50::/:/bin/sh", "bob:x:1001:50::/:/bin/sh", "carol:x:1002:60::/:/bin/sh")
	for gid, want := range map[string][]int{"50": {1000, 1001, 1002}, "60": {1001, 1002}, "70": nil} {
		if got, err := membersIn(groups, users, gid); err != nil || !slices.Equal(got, want) {
			t.Errorf("members of %s: %v, %v; want %v", gid, got, err, want)
		}
	}
}

// TestMembersUnreadable has a list of which a part cannot be read admit nobody, rather than lose an
// exception. A file that is not there has no names.
func TestMembersUnreadable(t *testing.T) {
	users := accounts(t, "bob:x:1001:60::/:/bin/sh")
	endless := accounts(t, strings.Repeat("x", maxAccountLine+1), "guests:x:60:bob")
	for _, groups := range []string{endless, t.TempDir()} {
		if got, err := membersIn(groups, users, "60"); err == nil {
			t.Errorf("members by %s: %v, want an error", groups, got)
		}
	}
	if got, err := membersIn(filepath.Join(t.TempDir(), "none"), users, "60"); err != nil || !slices.Equal(got, []int{1001}) {
		t.Errorf("members without /etc/group: %v, %v; want 1001", got, err)
	}
}

// TestUnknownNames has a name that nobody has stand for nobody, and a look-up that fails be an error.
// An exception with such a name has a list admit nobody, also as numbers.
func TestUnknownNames(t *testing.T) {
	for _, err := range []error{osuser.UnknownUserError("bob"), osuser.UnknownGroupError("guests"), &fs.PathError{Op: "open", Path: "/etc/passwd", Err: fs.ErrNotExist}} {
		if got := unlessUnknown(err); got != nil {
			t.Errorf("%v: %v, want none", err, got)
		}
	}
	if unlessUnknown(&fs.PathError{Op: "open", Path: "/etc/passwd", Err: fs.ErrPermission}) == nil {
		t.Error("a file that may not be read is no error")
	}
	for list, want := range map[string][]string{
		"!nobody-has-this-name":          {"!nobody-has-this-name"},
		"4242 !@nor-this":                {"!@nor-this"},
		"any !4243 !@nor-this !neither ": {"!@nor-this", "!neither"},
		"!4243":                          nil,
		"nobody-has-this-name":           nil,
	} {
		entries := strings.Fields(list)
		u, err := NewUsers(entries)
		if err != nil || !slices.Equal(u.Unknown(), want) {
			t.Errorf("%q: unknown %q, %v; want %q", list, u.Unknown(), err, want)
		}
		if admits := u.Admits(4242, true) || u.Some(true); admits != (list == "!4243") {
			t.Errorf("%q admits others: %t", list, admits)
		}
		s := Settings{Users: entries}
		if v := strings.Join(s.Environ(), " "); want != nil && v != "GOSMC_USERS=same" {
			t.Errorf("%q is %q in the environment, want same", list, v)
		}
	}
}

// TestNearestAccount has an entry with a slip get the one that was meant, of users, groups and words.
func TestNearestAccount(t *testing.T) {
	users := accounts(t, "root:x:0:0::/:/bin/sh", "redis:x:100:100::/:/bin/sh",
		"www-data:x:33:33::/:/bin/sh", "bin:x:2:2::/:/bin/sh", "")
	groups := accounts(t, "root:x:0:", "smc:x:900:", "staff:x:50:")
	names := accountNames(users, groups)
	for name, want := range map[string]string{
		"rediss": "redis", "wwwdata": "www-data", "@staf": "@staff", "smc": "@smc", "@redis": "redis",
		"sam": "same", "bob": "", "somebody": "", "nay": "", "@": "",
	} {
		if got := nearestAccount(name, names); got != want {
			t.Errorf("nearestAccount(%q) = %q, want %q", name, got, want)
		}
	}
	if names := accountNames("/nonexistent/a", "/nonexistent/b"); len(names) != 3 {
		t.Errorf("without files: %q", names)
	}
}
