package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/reason"
	"github.com/gosmc/smc/wire/clc"
)

// A reasonReport is the output of reason --json.
type reasonReport struct {
	Schema  int            `json:"schema"`
	Reasons []reason.Entry `json:"reasons"`
}

func newReasonCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reason [CODE | TAG]...",
		Short: "Explain why connections stay TCP: the cause and the remedy of each reason",
		Long: `Explain the reasons that 'gosmc ss', 'stats' and 'dump' show for connections that stay TCP: the likely cause, and the remedy.
CODE is a number, as 0x03010000. TAG is a name, as PEER_NO_SMC. Without an argument all reasons are listed; gosmc-reasons(7) explains all
of them. A code that a peer with z/OS or AIX has sent may mean another reason: the documentation of that system explains it.`,
		Example: `  gosmc reason OTHER_USER
  gosmc reason 0x03010000
  gosmc reason --json | jq -r '.reasons[] | .tag + ": " + .advice'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r := reasonReport{Schema: jsonSchema, Reasons: []reason.Entry{}}
			for _, arg := range args {
				found, err := reason.Find(arg)
				if err != nil {
					return err
				}
				r.Reasons = append(r.Reasons, reason.NewEntry(found))
			}
			if len(args) == 0 {
				for _, known := range clc.Reasons() {
					r.Reasons = append(r.Reasons, reason.NewEntry(known))
				}
			}
			switch {
			case asJSON:
				return writeJSON(cmd.OutOrStdout(), r)
			case len(args) == 0:
				return reason.WriteList(cmd.OutOrStdout(), r.Reasons)
			}
			return reason.Write(cmd.OutOrStdout(), r.Reasons)
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, toComplete string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
			for _, r := range clc.Reasons() {
				if strings.HasPrefix(r.Tag, strings.ToUpper(toComplete)) {
					list = append(list, cobra.CompletionWithDesc(r.Tag, r.Sentence))
				}
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
