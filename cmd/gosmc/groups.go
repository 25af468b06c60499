package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/survey"
)

// Verbs that show link groups, links and devices, with the columns that smcr and smcd have.

// A groupsReport is the output of linkgroup --json and link --json.
type groupsReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	inventory.LinkGroupList
}

func newGroupsReport(a *survey.Answers, only *uint32) groupsReport {
	return groupsReport{jsonSchema, time.Now(), inventory.NewLinkGroupList(a, only)}
}

// A devicesReport is the output of device --json.
type devicesReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	inventory.DeviceList
	Kernel []inventory.KernelDevice `json:"kernel_devices"` // RDMA devices of the kernel
}

func newDevicesReport(a *survey.Answers, kernel []inventory.KernelDevice) devicesReport {
	return devicesReport{jsonSchema, time.Now(), inventory.NewDeviceList(a), kernel}
}

// showFlags are the flags of verbs that show objects of hosts.
type showFlags struct {
	gatherFlags
	details bool
	watch   time.Duration
}

func (f *showFlags) register(cmd *cobra.Command) {
	f.gatherFlags.register(cmd)
	cmd.Flags().BoolVarP(&f.details, "details", "d", false, "show more of each")
	addWatch(cmd, &f.watch)
}

// addWatch adds the flag of a verb that repeats what it shows.
func addWatch(cmd *cobra.Command, every *time.Duration) {
	cmd.Flags().Var((*delay)(every), "watch", "repeat after this many `seconds`; JSON is then one object on a line")
	cmd.RegisterFlagCompletionFunc("watch", cobra.NoFileCompletions)
}

// jsonWriter returns the function that writes a report: one of several takes one line.
func jsonWriter(watched bool) func(io.Writer, any) error {
	if watched {
		return writeJSONLine
	}
	return writeJSON
}

// A passing error ends no watching: its cause may pass.
type passing struct{ error }

func (passing) Transient() {}

func (p passing) Unwrap() error { return p.error }

// whenWatched is err, which ends no watching.
func whenWatched(watched bool, err error) error {
	if watched && err != nil {
		return passing{err} // rule: TestWatchVerbs: passing{err} -> err
	}
	return err
}

// repeated shows something once, or again and again.
func (f *showFlags) repeated(cmd *cobra.Command, show func(watched bool) error) error {
	return repeat(cmd, f.watch, f.json, show)
}

// showArgs are the arguments of such a verb: the optional word show, and as many more as the verb
// takes.
func showArgs(more int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if args = withoutShow(args); len(args) > more {
			return usagef("%s does not know what to do with %q", verbOf(cmd), args[more])
		}
		return nil
	}
}

func withoutShow(args []string) []string {
	if len(args) > 0 && args[0] == "show" {
		return args[1:]
	}
	return args
}

// completeShow completes the arguments of such a verb.
func completeShow(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []cobra.Completion{cobra.CompletionWithDesc("show", "which is what it does without, too")}, cobra.ShellCompDirectiveNoFileComp
}

func newLinkGroupCommand() *cobra.Command {
	var flags showFlags
	cmd := &cobra.Command{
		Use:   "linkgroup [show] [LG-ID] [flags]",
		Short: "Show the link groups of all hosts on this machine",
		Long: `Show every link group of the hosts of this machine, or the one with the number LG-ID in each of them: who the peer is, and how
many connections there are. A group of SMC-R has one link or more, which 'gosmc link' shows. LG-ID is the host's own
number, LG-Role ours in the group, and LG-Type its redundancy: NONE while the first contact is under way, SINGLE with one link,
SYMMETRIC with two or more that have no RNIC in common, ASYMMETRIC with a second one that does. -d counts the links that were lost while there
were others, and the connections that outlived them.

The exit status is 1 if there is no group LG-ID, or if the run directory that --dir or GOSMC_DIR names does not exist.`,
		Example: `  gosmc linkgroup
  gosmc linkgroup show 00000001 -d
  gosmc linkgroup --watch 2
  gosmc linkgroup --json | jq '.link_groups[] | select(.mode == "SMC-R") | .rmb_bytes'`,
		Args:              showArgs(1),
		ValidArgsFunction: completeShow,
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.repeated(cmd, func(watched bool) error {
				return runGroups(cmd, &flags, args, watched, func(w io.Writer, r *groupsReport) error {
					if flags.details {
						return r.WriteDetails(w)
					}
					return r.Write(w)
				})
			})
		},
	}
	flags.register(cmd)
	return cmd
}

func newLinkCommand() *cobra.Command {
	var flags showFlags
	cmd := &cobra.Command{
		Use:   "link [show] [LG-ID] [flags]",
		Short: "Show the links of SMC-R of all hosts on this machine",
		Long: `Show the links of all link groups of SMC-R, or of those with the number LG-ID: one queue pair of ours and one of the
peer each. IB-Dev is the address of the device, which 'gosmc device' shows; its port is 1 always. With --details there are the
link's user ID, both ends, and what went over it. 'gosmc link del' ends one in order.

Link-State is LINK_ACTIVATING while a link is made, LINK_ACTIVE, LINK_LEAVING when it is about to end in order, from when its connections leave it until the
peer has answered, and LINK_INACTIVE when it has failed.

The exit status is 1 if there is no group LG-ID, or if the run directory that --dir or GOSMC_DIR names does not exist.`,
		Example: `  gosmc link
  gosmc link -d
  gosmc link --json | jq '.link_groups[].links[].retransmitted'`,
		Args:              showArgs(1),
		ValidArgsFunction: completeShow,
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.repeated(cmd, func(watched bool) error {
				return runGroups(cmd, &flags, args, watched, func(w io.Writer, r *groupsReport) error { return r.WriteLinks(w, flags.details) })
			})
		},
	}
	flags.register(cmd)
	cmd.AddCommand(newLinkDelCommand())
	return cmd
}

// runGroups shows link groups once, by a function for people. watched says that it is one of several times.
func runGroups(cmd *cobra.Command, flags *showFlags, args []string, watched bool, write func(io.Writer, *groupsReport) error) error {
	var only *uint32
	if args = withoutShow(args); len(args) == 1 {
		id, err := parseLGID(args[0])
		if err != nil {
			return err
		}
		only = new(id)
	}
	g := flags.gather(cmd.Context())
	r := newGroupsReport(&g, only)
	err := incomplete(&g)
	if only != nil && len(r.Groups) == 0 && err == nil {
		err = whenWatched(watched, fmt.Errorf("no host has a link group %08x: 'gosmc linkgroup' has those that there are", *only))
	}
	if flags.json {
		return errors.Join(jsonWriter(watched)(cmd.OutOrStdout(), r), err)
	}
	if e := write(cmd.OutOrStdout(), &r); e != nil {
		return e
	}
	complain(cmd, &g)
	return err
}

func newDeviceCommand() *cobra.Command {
	var flags showFlags
	cmd := &cobra.Command{
		Use:   "device [show] [flags]",
		Short: "Show the devices of SMC-R of all hosts, and the kernel's RDMA devices",
		Long: `Show the RoCEv2 devices that the hosts of this machine have open, and those that could not be opened, with the reason. A
device is software, a UDP socket at one address of an interface, or an RDMA device of the kernel with its name under Type. The address is its name
under IB-Dev. Hosts open one when a connection first needs it, and close it when it has not been used for a while. Crit says that a link group
would end with it.

A second table has the RDMA devices of the kernel, a row for each port. Named is Yes if the configuration file or the environment lets SMC-R use
the device, as with 'device rdma:rxe0', and Usable is Yes if programs of this user can open it now. The last column has the reason why
connections do not use it. -d adds the limits of the devices, and a third table has their GIDs.

The exit status is 1 if the run directory that --dir or GOSMC_DIR names does not exist, or if a part of the configuration is not understood.`,
		Example: `  gosmc device
  gosmc device -d
  gosmc device --json | jq '.devices[] | select(.state != "ACTIVE") | .why'
  gosmc device --json | jq '.kernel_devices[] | select(.named and (.usable | not)) | .name, .why'`,
		Args:              showArgs(0),
		ValidArgsFunction: completeShow,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.repeated(cmd, func(watched bool) error { return showDevices(cmd, &flags, watched) })
		},
	}
	flags.register(cmd)
	return cmd
}

// showDevices shows the devices once. watched says that it is one of several times.
func showDevices(cmd *cobra.Command, flags *showFlags, watched bool) error {
	kernel, err := inventory.ConfiguredDevices()
	g := flags.gather(cmd.Context())
	r := newDevicesReport(&g, kernel)
	err = errors.Join(err, incomplete(&g))
	if flags.json {
		return errors.Join(jsonWriter(watched)(cmd.OutOrStdout(), r), err)
	}
	if err := r.write(cmd.OutOrStdout(), flags.details); err != nil {
		return err
	}
	complain(cmd, &g)
	return err
}

func (r *devicesReport) write(w io.Writer, details bool) error {
	return errors.Join(r.Write(w, details), inventory.WriteKernel(w, r.Kernel, details))
}
