package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/survey"
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

func (f *linkDelFlags) run(cmd *cobra.Command, group uint32, num uint8) error {
	a := f.gather(cmd.Context())
	if err := incomplete(&a); err != nil {
		return err
	}
	h, err := inventory.GroupOwner(&a, group, f.pid)
	if err != nil {
		complain(cmd, &a)
		return err
	}
	if err := inventory.EndLink(cmd.Context(), h, group, num); err != nil {
		return err
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), linkDelReport{jsonSchema, time.Now(), group, num, h.PID, h.Command, h.Dir})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "link %d of link group %08x has ended\n", num, group)
	return err
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
