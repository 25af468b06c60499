package usage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/exit"
)

// NewHelpCommand is cobra's but for a verb that does not exist, which is an error here.
func NewHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Show the help of a verb",
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return UnknownVerb(root, strings.Join(args, " "))
			}
			of.InitDefaultHelpFlag() // or it would not be listed
			return of.Help()
		},
		ValidArgsFunction: func(
			cmd *cobra.Command, args []string, toComplete string,
		) (list []cobra.Completion, _ cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, c := range cmd.Root().Commands() {
				if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), toComplete) {
					list = append(list, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// Statuses returns the exit statuses of a command, in order.
func Statuses(cmd *cobra.Command) []exit.Status {
	if cmd == cmd.Root() {
		return exit.Statuses("")
	}
	verb, _, _ := strings.Cut(VerbOf(cmd), " ")
	return exit.Statuses(verb)
}

// The functions of templates are cobra's, not a command's: nothing may be added while one runs.
func init() { cobra.AddTemplateFunc("exitStatuses", exitHelp) }

// AddExits puts exit statuses into the help of all commands.
func AddExits(root *cobra.Command) {
	root.SetUsageTemplate(root.UsageTemplate() + "{{exitStatuses .}}")
}

// exitHelp is that part of the help of a command.
func exitHelp(cmd *cobra.Command) string {
	var b strings.Builder
	b.WriteString("\nExit status:\n")
	for _, e := range Statuses(cmd) {
		fmt.Fprintf(&b, "  %-4d %s\n", e.Code, e.Text)
	}
	if note := exit.Note(cmd.Name()); note != "" {
		b.WriteString("  " + note + "\n")
	}
	return b.String()
}
