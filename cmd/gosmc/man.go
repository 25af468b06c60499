package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/roff"
)

// Manual pages, in roff: one for each command, gosmc-VERB(1) and gosmc-VERB-COMMAND(1), with the
// content of --help, gosmc.conf(5) and gosmc-reasons(7).

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages",
		Long:   "Write the manual pages into DIR/man1, DIR/man5 and DIR/man7, as a package installs them in /usr/share/man.",
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("man needs a directory, and got %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			for name, text := range manPages(root) {
				dir := filepath.Join(args[0], "man"+name[len(name)-1:])
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// manPages returns the text of all pages by the name of their file.
func manPages(root *cobra.Command) map[string]string {
	pages := map[string]string{"gosmc.conf.5": manConfig(), "gosmc-reasons.7": manReasons()}
	for _, cmd := range manCommands(root) {
		pages[manName(cmd)+".1"] = manPage(cmd)
	}
	return pages
}

// manCommands returns the commands that have a page: all that help shows.
func manCommands(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			list = append(list, manCommands(c)...)
		}
	}
	return list
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func manPage(cmd *cobra.Command) string {
	var m roff.Page
	m.Head(manName(cmd), 1, cmd.Short)
	m.Section("SYNOPSIS")
	for use := range strings.SplitSeq(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()), " | "+verbOf(cmd)+" ") {
		m.Raw(".B " + roff.Escape(cmd.CommandPath()) + "\n" + roff.Line(strings.TrimSpace(use)) + "\n.br\n")
	}
	m.Section("DESCRIPTION")
	m.Prose(cmp.Or(cmd.Long, cmd.Short+"."))
	if cmd.HasAvailableSubCommands() {
		m.Section("COMMANDS")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				m.Item(c.Name(), c.Short)
			}
		}
	}
	m.Section("OPTIONS")
	cmd.InitDefaultHelpFlag()
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		what, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if what != "" {
			name += " " + what
		}
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" && d != "0s" && d != "0B" {
			usage += " (default " + d + ")"
		}
		m.Item(name, usage)
	})
	m.Section("EXIT STATUS")
	for _, e := range exits(cmd) {
		m.Item(fmt.Sprint(e.code), e.text)
	}
	if note := exitNote(cmd); note != "" {
		m.Raw(".PP\n" + roff.Line(note) + "\n")
	}
	if cmd.Example != "" {
		m.Section("EXAMPLES")
		m.Block(cmd.Example)
	}
	m.Section("ENVIRONMENT")
	m.Item("GOSMC_DIR", "the run directory, where the programs of a machine find each other")
	m.Item("GOSMC_CONFIG", "the configuration file, in place of /etc/gosmc.conf: see gosmc.conf(5), also for the variables that stand in the place of its lines")
	m.Item("GOSMC_DISABLED", "1, true, yes or on: every connection is TCP")
	m.Section("SEE ALSO")
	var see []string
	for _, c := range manCommands(cmd.Root()) {
		if c != cmd && (c.Parent() == cmd || c == cmd.Parent() || c.Parent() == cmd.Root() && cmd.Parent() == cmd.Root()) {
			see = append(see, manName(c)+"(1)")
		}
	}
	m.Raw(roff.Line(strings.Join(append(see, "gosmc.conf(5)"), ", ")) + "\n")
	return m.String()
}

func manConfig() string {
	var m roff.Page
	m.Head("gosmc.conf", 5, "what an operator says for all programs that use Shared Memory Communications")
	m.Section("DESCRIPTION")
	m.Prose(aboutConfig)
	m.Section("FILES")
	m.Item("/etc/gosmc.conf", "the file; it need not exist")
	m.Section("EXAMPLES")
	m.Block("ueid EXAMPLE.PLEX1\npeer 192.0.2.0/24\nlisten-port 8000-8999\nconnect-port !5432\nprogram !sshd")
	m.Section("SEE ALSO")
	m.Raw(roff.Line("gosmc(1), gosmc-config(1), gosmc-policy(1), gosmc-ueid(1), gosmc-seid(1), "+
		"gosmc-pnet(1), gosmc-run(1)") + "\n")
	return m.String()
}
