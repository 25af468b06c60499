package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/pnet"
	"github.com/gosmc/smc/internal/policy"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/usage"
)

// Verbs for names that hosts have in common: UEIDs, the system's own EID, and PNETIDs. They are in
// the configuration file, which programs read and follow: see config.Takes.

// A namesReport is the output of ueid --json, seid --json and pnet --json.
type namesReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	File   string    `json:"file"`
	UEIDs  []string  `json:"ueids,omitzero"` // that a program started now has
	SEID   *seidOf   `json:"seid,omitempty"`
	PNET   []pnetOf  `json:"pnet,omitzero"`
}

type seidOf struct {
	EID     string `json:"eid"` // empty: there is none
	Enabled bool   `json:"enabled"`
}

// A pnetOf is an interface, and the PNETID that it has.
type pnetOf struct {
	PNETID string `json:"pnet_id"` // empty: none
	NetDev string `json:"net_dev"`
	Exists bool   `json:"exists"` // in this network namespace
}

// namesCommand makes a verb with subcommands, the first of which, show, is the default.
func namesCommand(use, short, long, example string, show func(cmd *cobra.Command, asJSON bool) error) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long + "\n\n" + policy.AboutFile, Example: example,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return show(cmd, asJSON) },
	}
	shows := &cobra.Command{
		Use: "show", Short: "Show them, which is what happens without a command, too", Args: noArguments,
		Example: "  gosmc " + strings.Fields(use)[0] + " show --json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return show(cmd, asJSON) },
	}
	cmd.AddCommand(shows)
	for _, c := range []*cobra.Command{cmd, shows} {
		c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	}
	return cmd
}

// anyNumber is a number of arguments that the command checks itself.
const anyNumber = -1

// change adds a command that changes the configuration file. example is its arguments in an example.
func change(parent *cobra.Command, use, short, example string, args int, do func(f *config.File, args []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Example: strings.TrimRight("  sudo gosmc "+parent.Name()+" "+strings.Fields(use)[0]+" "+example, " "),
		Args: func(cmd *cobra.Command, got []string) error {
			if len(got) != args && args != anyNumber {
				return usagef("%s takes %d argument%s, but got %d: %s",
					verbOf(cmd), args, "s"[:min(args, 2)/2], len(got), use)
			}
			return nil
		},
		ValidArgsFunction: completeNames,
		RunE: func(_ *cobra.Command, args []string) error {
			err := config.Change(config.Path(), func(f *config.File) (bool, error) {
				err := do(f, args)
				return err == nil, err
			})
			if errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("%s cannot be written: run as root, or name another file with %s: %w", config.Path(), config.EnvFile, err)
			}
			return err
		},
	}
	parent.AddCommand(cmd)
	return cmd
}

// add adds a line to the file; one that is there is an error.
func add(f *config.File, word, value string) error {
	switch added, err := f.Add(word, value); {
	case err != nil:
		return exit.With(exit.Usage, err)
	case !added:
		return fmt.Errorf("%s has %s %s already", config.Path(), word, value)
	}
	return nil
}

// drop removes lines from the file; none is an error.
func drop(f *config.File, word, value string, chosen func(string) bool) error {
	if f.Delete(word, chosen) == 0 {
		return fmt.Errorf("%s has no %s %s", config.Path(), word, value)
	}
	return nil
}

func newUEIDCommand() *cobra.Command {
	cmd := namesCommand("ueid [show | add UEID | del UEID | flush]", "Show and change the user-defined enterprise IDs of this machine",
		`Show the UEIDs that a program started now has, in order of preference. Two hosts on different machines use SMC only if they
have one in common: 1 to 32 characters of A-Z, 0-9, dot and hyphen, at most 8 of them. 'add' and 'del' change the configuration file.`,
		"  gosmc ueid\n  sudo gosmc ueid add EXAMPLE.PLEX1\n  gosmc ueid --json | jq .ueids",
		func(cmd *cobra.Command, asJSON bool) error {
			p, err := survey.Look()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), namesReport{Schema: jsonSchema, Time: time.Now(), File: config.Path(), UEIDs: p.UEIDs})
			}
			for _, eid := range p.UEIDs {
				fmt.Fprintln(cmd.OutOrStdout(), printable(eid))
			}
			return nil
		})
	change(cmd, "add UEID", "Add one to the configuration file", "EXAMPLE.PLEX1", 1, func(f *config.File, args []string) error {
		if n := len(f.Values(config.UEID)); n >= pnet.MaxUEIDs {
			return fmt.Errorf("%s has %d UEIDs already, which is the most that a host may have", config.Path(), n)
		}
		return add(f, config.UEID, args[0])
	})
	change(cmd, "del UEID", "Take one out of the configuration file", "EXAMPLE.PLEX1", 1, func(f *config.File, args []string) error {
		return drop(f, config.UEID, args[0], func(v string) bool { return v == args[0] })
	})
	change(cmd, "flush", "Take all out of the configuration file", "", 0, func(f *config.File, _ []string) error {
		f.Delete(config.UEID, func(string) bool { return true })
		return nil
	})
	return cmd
}

func newSEIDCommand() *cobra.Command {
	cmd := namesCommand("seid [show | enable | disable]", "Show, enable and disable the system's own enterprise ID",
		`Show the system EID, which all programs of this machine have in common, and whether it is enabled. It is derived from the
kernel's boot id, and good for SMC-D within the machine. Without it programs need a UEID in common for that, too, so it
cannot be disabled while there is none.`,
		"  gosmc seid\n  sudo gosmc seid disable",
		func(cmd *cobra.Command, asJSON bool) error {
			p, err := survey.Look()
			if err != nil {
				return err
			}
			s := seidOf{EID: p.SEID, Enabled: p.SEID != ""}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), namesReport{Schema: jsonSchema, Time: time.Now(), File: config.Path(), SEID: &s})
			}
			state := "[disabled]"
			if s.Enabled {
				state = printable(s.EID) + " [enabled]"
			}
			fmt.Fprintln(cmd.OutOrStdout(), state)
			return nil
		})
	set := func(value string) func(*config.File, []string) error {
		return func(f *config.File, _ []string) error {
			if value == "off" && len(f.Values(config.UEID)) == 0 {
				return fmt.Errorf("%s has no UEID: without one, the system EID cannot be disabled", config.Path())
			}
			f.Delete(config.SEID, func(string) bool { return true })
			return add(f, config.SEID, value)
		}
	}
	change(cmd, "enable", "Use it", "", 0, set("on"))
	change(cmd, "disable", "Do without it", "", 0, set("off"))
	return cmd
}

func newPNETCommand() *cobra.Command {
	cmd := namesCommand("pnet [show | add PNETID INTERFACE | del PNETID | flush]", "Show and change which physical network an interface is on",
		`Show the interfaces of this machine with their PNETIDs, also those that have none. Interfaces with the same PNETID are on one
physical network: SMC-R for a TCP connection over one of them may use a device on another one. A device ('device' below) on a
network that is known to be another one is not used. A PNETID is 1 to 16 characters of A-Z and 0-9.`,
		"  gosmc pnet\n  sudo gosmc pnet add NET1 eth1\n  sudo gosmc pnet del NET1",
		func(cmd *cobra.Command, asJSON bool) error {
			list, err := pnetTable()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), namesReport{Schema: jsonSchema, Time: time.Now(), File: config.Path(), PNET: list})
			}
			t := table{Columns: []column{{Title: "PNET-ID"}, {Title: "Net-Dev"}, {}}}
			for _, p := range list {
				note := ""
				if !p.Exists {
					note = "there is no such interface here"
				}
				t.Add(orNA(p.PNETID), printable(p.NetDev), note)
			}
			return t.Write(cmd.OutOrStdout())
		})
	change(cmd, "add PNETID INTERFACE", "Say which network an interface is on", "NET1 eth1", 2, func(f *config.File, args []string) error {
		for _, v := range f.Values(config.PNET) {
			if id, iface, _ := strings.Cut(v, " "); iface == args[1] && id != args[0] {
				return fmt.Errorf("%s has %s for %s already", config.Path(), id, iface)
			}
		}
		return add(f, config.PNET, args[0]+" "+args[1])
	})
	change(cmd, "del PNETID", "Forget a network", "NET1", 1, func(f *config.File, args []string) error {
		return drop(f, config.PNET, args[0], func(v string) bool { id, _, _ := strings.Cut(v, " "); return id == args[0] })
	})
	change(cmd, "flush", "Forget all networks", "", 0, func(f *config.File, _ []string) error {
		f.Delete(config.PNET, func(string) bool { return true })
		return nil
	})
	return cmd
}

// pnetTable lists interfaces with their PNETIDs: those that are here, and those that the
// configuration file names.
func pnetTable() ([]pnetOf, error) {
	s, err := config.Load()
	if err != nil {
		return nil, err
	}
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	list := []pnetOf{}
	for _, iface := range ifaces {
		list = append(list, pnetOf{PNETID: s.PNET[iface.Name], NetDev: iface.Name, Exists: true})
		delete(s.PNET, iface.Name)
	}
	for iface, id := range s.PNET {
		list = append(list, pnetOf{PNETID: id, NetDev: iface})
	}
	slices.SortFunc(list, func(a, b pnetOf) int { return strings.Compare(a.NetDev, b.NetDev) })
	return list, nil
}
