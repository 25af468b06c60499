package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/text"
)

// linkEndTime is how long a link that is deleted may take to end: a second at either end for
// connections to leave it, and some for messages that are sent again. linkEndPoll is how often that
// is looked at.
const (
	linkEndTime = 10 * time.Second
	linkEndPoll = 50 * time.Millisecond
)

// A LinkGroupList has the link groups of the machine, as far as the caller may see them.
type LinkGroupList struct {
	Groups []LinkGroup    `json:"link_groups"`
	Errors []survey.Error `json:"errors"`
	Denied int            `json:"other_users"` // hosts that the caller may not ask
}

// A LinkGroup is a link group and the host that it belongs to.
type LinkGroup struct {
	control.StatusGroup
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Dir     string `json:"dir"`
}

// NewLinkGroupList returns the link groups of the hosts that have answered: all, or those with the
// number only.
func NewLinkGroupList(a *survey.Answers, only *uint32) LinkGroupList {
	r := LinkGroupList{Groups: []LinkGroup{}, Errors: a.Errors, Denied: a.Denied}
	if r.Errors == nil {
		r.Errors = []survey.Error{}
	}
	for _, h := range a.Hosts {
		for _, g := range h.Groups {
			if only == nil || *only == g.ID {
				r.Groups = append(r.Groups, LinkGroup{g, h.PID, h.Command, h.Dir})
			}
		}
	}
	return r
}

// A DeviceList has the RNICs of the machine, as far as the caller may see them.
type DeviceList struct {
	Devices []Device       `json:"devices"`
	Errors  []survey.Error `json:"errors"`
	Denied  int            `json:"other_users"` // hosts that the caller may not ask
}

// A Device is an RNIC and the host that it belongs to.
type Device struct {
	control.StatusDevice
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Dir     string `json:"dir"`
}

// NewDeviceList returns the RNICs of the hosts that have answered.
func NewDeviceList(a *survey.Answers) DeviceList {
	r := DeviceList{Devices: []Device{}, Errors: slices.Clone(a.Errors), Denied: a.Denied}
	if r.Errors == nil {
		r.Errors = []survey.Error{}
	}
	for _, h := range a.Hosts {
		for _, d := range h.Devices {
			r.Devices = append(r.Devices, Device{d, h.PID, h.Command, h.Dir})
		}
	}
	return r
}

// GroupOwner returns the one host that has a link group with the number, of the process pid unless
// that is 0. None is an error, and so are several. The result points into a.
func GroupOwner(a *survey.Answers, group uint32, pid int) (*control.Status, error) {
	var found []*control.Status
	for i := range a.Hosts {
		h := &a.Hosts[i]
		has := slices.ContainsFunc(h.Groups, func(g control.StatusGroup) bool { return g.ID == group })
		if has && (pid == 0 || pid == h.PID) { // rule: cmd/gosmc TestLinkDel: pid == 0 || pid == h.PID -> true
			found = append(found, h)
		}
	}
	switch {
	case len(found) == 0 && pid != 0:
		return nil, fmt.Errorf("process %d has no link group %08x", pid, group)
	case len(found) == 0:
		return nil, fmt.Errorf("no host has a link group %08x", group)
	case len(found) > 1: // rule: TestGroupOwner, cmd/gosmc TestLinkDel
		var owners []string
		for _, h := range found {
			owners = append(owners, text.Process(h.PID, h.Command)+" in "+text.Printable(h.Dir))
		}
		return nil, fmt.Errorf("%d hosts have a link group %08x, choose one with --pid or --dir: %s",
			len(found), group, strings.Join(owners, ", "))
	}
	return found[0], nil
}

// EndLink asks a host to end a link of a link group in order, and waits until the link has ended: 10
// seconds at most. Errors are ctx's, the host's refusal, and that the link has not ended, or not alone.
// Their texts are printable.
func EndLink(ctx context.Context, h *control.Status, group uint32, num uint8) error {
	if err := control.DeleteLink(ctx, h.Dir, h.Name, group, num); err != nil {
		if e, ok := errors.AsType[*control.Error](err); ok {
			err = e.Err // the host's text is complete in itself
		}
		return fmt.Errorf("%s: %s", text.Process(h.PID, h.Command), text.Printable(err.Error()))
	}
	return awaitLinkEnd(ctx, h, group, num)
}

// awaitLinkEnd waits until a host does not have a link any more.
func awaitLinkEnd(ctx context.Context, h *control.Status, group uint32, num uint8) error {
	late, cancel := context.WithTimeout(ctx, linkEndTime)
	defer cancel()
	for {
		now, errs := control.GatherSome(late, h.Dir, func(name string) bool { return name == h.Name })
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case late.Err() != nil:
			return fmt.Errorf("link %d of link group %08x is to end, but has not within %v",
				num, group, linkEndTime)
		case len(errs) > 0: // rule: cmd/gosmc TestLinkDelLost
			return fmt.Errorf("link %d of link group %08x is to end; whether it has is not known: %s",
				num, group, text.Printable(errs[0].Error()))
		case len(now) == 0: // rule: cmd/gosmc TestLinkDelLost: len(now) == 0 -> false
			return fmt.Errorf("%s has ended, and link %d of link group %08x with it",
				text.Process(h.PID, h.Command), num, group)
		}
		ended, err := linkEnd(&now[0], group, num)
		if ended { // rule: cmd/gosmc TestLinkDel: ended -> (ended || true)
			return err
		}
		select {
		case <-late.Done():
		case <-time.After(linkEndPoll):
		}
	}
}

// linkEnd says how far the end of a link of a host is.
func linkEnd(h *control.Status, group uint32, num uint8) (ended bool, err error) {
	for _, g := range h.Groups {
		if g.ID == group {
			is := func(l control.StatusLink) bool { return l.Number == num }
			return !slices.ContainsFunc(g.Links, is), nil
		}
	}
	return true, fmt.Errorf("link group %08x has ended, and link %d with it", group, num)
}
