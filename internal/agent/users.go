package agent

import (
	"os/user"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/introduce"
)

// ParsePolicy looks up names of users and groups, or takes their numbers. The error names the flag of
// gosmc agent, and asks for the exit status of usage.
func ParsePolicy(users, groups []string, everyone bool) (Policy, error) {
	p := Policy{Everyone: everyone}
	for _, name := range users {
		id, err := userID(name)
		if err != nil {
			return p, exit.Usagef("--user %q: %w", name, err)
		}
		p.Users = append(p.Users, id)
	}
	for _, name := range groups {
		id, err := groupID(name)
		if err != nil {
			return p, exit.Usagef("--group %q: %w", name, err)
		}
		p.Groups = append(p.Groups, id)
	}
	return p, nil
}

// ParseIntroduced returns the policy that --introduce of gosmc agent says: any, same, or users, and
// groups behind @. The error asks for the exit status of usage.
func ParseIntroduced(names []string) (*introduce.Users, error) {
	u := &introduce.Users{Mode: introduce.ModeList}
	for _, name := range names {
		group, isGroup := strings.CutPrefix(name, "@")
		var err error
		var id uint32
		switch {
		case name == "any":
			u.Mode = introduce.ModeAny
		case name == "same":
			u.Mode = introduce.ModeSame
		case isGroup:
			id, err = groupID(group)
			u.Groups = append(u.Groups, id)
		default:
			id, err = userID(name)
			u.Users = append(u.Users, id)
		}
		if err != nil {
			return nil, exit.Usagef("--introduce %q: %w", name, err)
		}
	}
	if u.Mode != introduce.ModeList && len(names) > 1 {
		return nil, exit.Usagef("--introduce: any and same stand alone")
	}
	return u, nil
}

func userID(name string) (uint32, error) {
	return idOf(name, func() (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
}

func groupID(name string) (uint32, error) {
	return idOf(name, func() (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
}

// idOf is the number that name is, or stands for.
func idOf(name string, lookup func() (string, error)) (uint32, error) {
	n, err := strconv.ParseUint(name, 10, 32)
	if err == nil {
		return uint32(n), nil
	}
	number, err := lookup()
	if err != nil {
		return 0, err
	}
	n, err = strconv.ParseUint(number, 10, 32)
	return uint32(n), err
}
