package usage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/roff"
)

// Pages returns the manual pages of all commands by the name of their file, in roff: gosmc-VERB and
// gosmc-VERB-COMMAND in the section of the verb, with the content of --help.
func Pages(root *cobra.Command) map[string]string {
	pages := make(map[string]string)
	for _, cmd := range Commands(root) {
		pages[fmt.Sprintf("%s.%d", PageName(cmd), Section(cmd))] = page(cmd)
	}
	return pages
}

// forRoot are the verbs that an administrator uses: they change settings of the whole machine.
var forRoot = []string{"agent", "off", "on", "pnet", "policy", "seid", "service", "ueid"}

// Section is the section of the manual that has a command's page: 8 for administration, else 1.
func Section(cmd *cobra.Command) int {
	verb, _, _ := strings.Cut(VerbOf(cmd), " ")
	if slices.Contains(forRoot, verb) {
		return 8
	}
	return 1
}

// Reference names a command's manual page with its section, as in "gosmc-ss(1)".
func Reference(cmd *cobra.Command) string {
	return fmt.Sprintf("%s(%d)", PageName(cmd), Section(cmd))
}

// Commands returns cmd and the commands below it that have a manual page: all that help shows.
func Commands(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			list = append(list, Commands(c)...)
		}
	}
	return list
}

// PageName is the name of a command's manual page, without the section.
func PageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func page(cmd *cobra.Command) string {
	var m roff.Page
	m.Head(PageName(cmd), Section(cmd), cmd.Short)
	m.Section("SYNOPSIS")
	uses := strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())
	for use := range strings.SplitSeq(uses, " | "+VerbOf(cmd)+" ") {
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
	for _, e := range Statuses(cmd) {
		m.Item(fmt.Sprint(e.Code), e.Text)
	}
	if note := exit.Note(cmd.Name()); note != "" {
		m.Raw(".PP\n" + roff.Line(note) + "\n")
	}
	if cmd.Example != "" {
		m.Section("EXAMPLES")
		m.Block(cmd.Example)
	}
	m.Section("ENVIRONMENT")
	m.Item("GOSMC_DIR", "the run directory, where the programs of a machine find each other")
	m.Item("GOSMC_CONFIG", "the configuration file, in place of /etc/gosmc.conf: see gosmc.conf(5), "+
		"also for the variables that stand in the place of its lines")
	m.Item("GOSMC_DISABLED", "1, true, yes or on: every connection is TCP")
	m.Section("SEE ALSO")
	var see []string
	for _, c := range Commands(cmd.Root()) {
		verbs := c.Parent() == cmd.Root() && cmd.Parent() == cmd.Root()
		if c != cmd && (c.Parent() == cmd || c == cmd.Parent() || verbs) {
			see = append(see, Reference(c))
		}
	}
	m.Raw(roff.Line(strings.Join(append(see, "gosmc.conf(5)", "gosmc(7)"), ", ")) + "\n")
	return m.String()
}
