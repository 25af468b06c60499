package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/survey"
)

// linkEndTime is how long a link that is deleted may take to end: a second at either end for
// connections to leave it, and some for messages that are sent again. linkEndPoll is how often that
// is looked at.
const (
	linkEndTime = 10 * time.Second
	linkEndPoll = 50 * time.Millisecond
)

// A linkDelReport is the output of link del --json.
type linkDelReport struct {
	Schema  int       `json:"schema"`
	Time    time.Time `json:"time"`
	Group   uint32    `json:"link_group"`
	Link    uint8     `json:"link"`
	PID     int       `json:"pid"`
	Command string    `json:"command"`
	Dir     string    `json:"dir"`
}

// linkDelFlags are the flags of link del.
type linkDelFlags struct {
	gatherFlags
	pid int
}

func newLinkDelCommand() *cobra.Command {
	var flags linkDelFlags
	cmd := &cobra.Command{
		Use:   "del LG-ID NUMBER [flags]",
		Short: "End a link of SMC-R in order; its connections go on over another one",
		Long: `End link NUMBER of the link group LG-ID: 'gosmc link --json' has both, 'gosmc ss' those of each connection, and the last two digits of
Link-UID, which 'gosmc link -d' prints, are the number in hexadecimal. The link's connections leave it first, at both ends, and lose nothing; then the
peer is told. Where our end is the client, the server is asked to do so. The command returns when the link has ended; it fails where that takes more than 10 seconds,
and where the link group ends too, as the peer does not answer.

The last link of a group cannot be deleted: it ends with the connections. A link that was deleted is made again, if both ends have the RNICs
for it: by the server, after 10 seconds or more. Who wants to take an interface down does so before.

Only the user of the program that has the group, and root, may do this.`,
		Example: `  gosmc link --json | jq -c '.link_groups[] | [.pid, .lg_id, [.links[].link]]'
  gosmc link del 0000001a 2
  gosmc link del 1a 2 --pid 4711`,
		Args: func(_ *cobra.Command, args []string) error {
			_, _, err := parseLink(args)
			return err
		},
		ValidArgsFunction: completeLinks,
		RunE: func(cmd *cobra.Command, args []string) error {
			group, num, err := parseLink(args)
			if err != nil {
				return err
			}
			return flags.run(cmd, group, num)
		},
	}
	flags.register(cmd)
	cmd.Flags().IntVar(&flags.pid, "pid", 0, "of the process `PID`, where several have a link group of that number")
	mustComplete(cmd, "pid", completeHosts(cmd, hostPID))
	return cmd
}

// parseLGID reads the number of a link group.
func parseLGID(arg string) (uint32, error) {
	id, err := strconv.ParseUint(strings.TrimPrefix(arg, "0x"), 16, 32)
	if err != nil {
		return 0, usagef("%q is no LG-ID: want up to 8 hexadecimal digits, as 'gosmc linkgroup' prints them", arg)
	}
	return uint32(id), nil
}

// parseLink parses the two arguments that name a link.
func parseLink(args []string) (group uint32, num uint8, err error) {
	if len(args) != 2 {
		return 0, 0, usagef("link del takes 2 arguments, but got %d: LG-ID NUMBER", len(args))
	}
	if group, err = parseLGID(args[0]); err != nil {
		return 0, 0, err
	}
	n, err := strconv.ParseUint(args[1], 10, 8)
	if err != nil || n == 0 {
		return 0, 0, usagef("%q is no number of a link: want 1 to 255", args[1])
	}
	return group, uint8(n), nil
}

// linkEnd says how far the end of a link of a host is.
func linkEnd(h *control.Status, group uint32, num uint8) (ended bool, err error) {
	for _, g := range h.Groups {
		if g.ID == group {
			return !slices.ContainsFunc(g.Links, func(l control.StatusLink) bool { return l.Number == num }), nil
		}
	}
	return true, fmt.Errorf("link group %08x has ended, and link %d with it", group, num)
}

// find returns the one host that has a link group.
func (f *linkDelFlags) find(a *survey.Answers, group uint32) (*control.Status, error) {
	var found []*control.Status
	for i := range a.Hosts {
		h := &a.Hosts[i]
		has := slices.ContainsFunc(h.Groups, func(g control.StatusGroup) bool { return g.ID == group })
		if has && (f.pid == 0 || f.pid == h.PID) { // rule: TestLinkDel: f.pid == 0 || f.pid == h.PID -> true
			found = append(found, h)
		}
	}
	switch {
	case a.Missing:
		return nil, incomplete(a)
	case len(found) == 0 && f.pid != 0:
		return nil, fmt.Errorf("process %d has no link group %08x", f.pid, group)
	case len(found) == 0:
		return nil, fmt.Errorf("no host has a link group %08x", group)
	case len(found) > 1: // rule: TestLinkDel
		var who []string
		for _, h := range found {
			who = append(who, process(h.PID, h.Command)+" in "+printable(h.Dir))
		}
		return nil, fmt.Errorf("%d hosts have a link group %08x, choose one with --pid or --dir: %s", len(found), group, strings.Join(who, ", "))
	}
	return found[0], nil
}

func (f *linkDelFlags) run(cmd *cobra.Command, group uint32, num uint8) error {
	a := f.gather(cmd.Context())
	h, err := f.find(&a, group)
	if err != nil {
		if !a.Missing {
			complain(cmd, &a)
		}
		return err
	}
	if err := control.DeleteLink(cmd.Context(), h.Dir, h.Name, group, num); err != nil {
		if e, ok := errors.AsType[*control.Error](err); ok {
			err = e.Err // the host's text is complete in itself
		}
		return fmt.Errorf("%s: %s", process(h.PID, h.Command), printable(err.Error()))
	}
	if err := awaitLinkEnd(cmd.Context(), h, group, num); err != nil {
		return err
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), linkDelReport{jsonSchema, time.Now(), group, num, h.PID, h.Command, h.Dir})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "link %d of link group %08x has ended\n", num, group)
	return err
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
			return fmt.Errorf("link %d of link group %08x is to end, but has not within %v", num, group, linkEndTime)
		case len(errs) > 0: // rule: TestLinkDelLost
			return fmt.Errorf("link %d of link group %08x is to end; whether it has is not known: %s", num, group, printable(errs[0].Error()))
		case len(now) == 0: // rule: TestLinkDelLost: len(now) == 0 -> false
			return fmt.Errorf("%s has ended, and link %d of link group %08x with it", process(h.PID, h.Command), num, group)
		}
		ended, err := linkEnd(&now[0], group, num)
		if ended { // rule: TestLinkDel: ended -> (ended || true)
			return err
		}
		select {
		case <-late.Done():
		case <-time.After(linkEndPoll):
		}
	}
}

// completeLinks completes the arguments of link del, with groups that have several links, and with theirs.
func completeLinks(cmd *cobra.Command, args []string, _ string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
	dir, _ := cmd.Flags().GetString("dir")
	for _, h := range survey.Ask(cmd.Context(), dir).Hosts {
		for _, g := range h.Groups {
			switch {
			case len(g.Links) < 2 || len(args) > 1:
			case len(args) == 0:
				list = append(list, cobra.CompletionWithDesc(lgID(g.ID), process(h.PID, h.Command)))
			default:
				if id, err := parseLGID(args[0]); err == nil && id == g.ID {
					for _, l := range g.Links {
						list = append(list, cobra.CompletionWithDesc(strconv.Itoa(int(l.Number)), printable(l.NetDev)+" to "+printable(l.PeerGID)))
					}
				}
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list), cobra.ShellCompDirectiveNoFileComp
}
