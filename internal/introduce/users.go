package introduce

import "slices"

// A Mode says which kind of policy a [Users] is.
type Mode uint8

// The modes.
const (
	ModeSame Mode = 0 // programs of the same user
	ModeAny  Mode = 1 // programs of every user that is not excepted
	ModeList Mode = 2 // programs of the same user, and of those in the lists that are not excepted
)

// Users is a policy: the users whose programs a process shares memory with. The zero value admits the
// process's own user. Numbers are those of the agent's user namespace.
type Users struct {
	Mode     Mode
	Users    []uint32
	Groups   []uint32 // their members, also by a supplementary group
	Excepted []uint32 // users
}

// NewUsers returns the policy of a list of users, as package config has it, with its parts: whether
// anything is said at all, whether all users are admitted, and the users that are and are not. Where
// nothing is said it is all users. Numbers are those of the agent's user namespace. A list that is too
// long admits the own user alone.
func NewUsers(said, anyUser bool, allowed, excepted []int) Users {
	u := Users{Mode: ModeList}
	switch {
	case len(allowed)+len(excepted) > MaxUsers: // rule: TestNewUsers
		return Users{}
	case !said || anyUser:
		u.Mode = ModeAny
	}
	for _, uid := range allowed {
		u.Users = append(u.Users, uint32(uid))
	}
	for _, uid := range excepted {
		u.Excepted = append(u.Excepted, uint32(uid))
	}
	return u
}

// Len returns the number of entries of all lists.
func (u *Users) Len() int { return len(u.Users) + len(u.Groups) + len(u.Excepted) }

// Admits reports whether a process with the policy may share memory with another one.
func (u *Users) Admits(own, other *Identity) bool {
	return own.UID == other.UID || u.lists(other)
}

// admitsBoth is Admits for the policy of the machine, which has no user of its own.
func (u *Users) admitsBoth(a, b *Identity) bool {
	return a.UID == b.UID || u.lists(a) && u.lists(b)
}

// lists reports whether another user is admitted.
func (u *Users) lists(who *Identity) bool {
	if u.Mode == ModeSame || slices.Contains(u.Excepted, who.UID) { // rule: TestUsers
		return false
	}
	return u.Mode == ModeAny || slices.Contains(u.Users, who.UID) || slices.Contains(u.Groups, who.GID) ||
		slices.ContainsFunc(who.Groups, func(g uint32) bool { return slices.Contains(u.Groups, g) })
}

// An Identity is a process that has connected to the agent, as the kernel says, in the agent's user and
// PID namespaces.
type Identity struct {
	PID      int32
	UID, GID uint32
	Groups   []uint32 // supplementary
	Account  Account
	Limited  bool // the quotas of the account hold for it
}

// An Account is the unit of the quotas: a user or a range of users, or the root of a network namespace.
type Account struct {
	User  uint32
	Netns uint64
}
