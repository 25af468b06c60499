package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/doctor"
	"github.com/gosmc/smc/internal/policy"
)

// A policyReport is the output of policy --json.
type policyReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	policy.Report
}

func newPolicyCommand() *cobra.Command {
	cmd := namesCommand("policy [show | add WORD VALUE | del WORD VALUE | flush]", "Show and change what may leave TCP, and what stays with it",
		`Show what a program started now may move from TCP: which programs, ports and addresses, as servers and as clients. What is refused
stays TCP, with the reason NOT_ALLOWED. 'gosmc run --explain HOST:PORT' says what that means for a server.`,
		"  gosmc policy\n  sudo gosmc policy add listen-port 8000-8999\n  sudo gosmc policy add program '!sshd'\n  gosmc policy --json | jq -r '.policy[] | select(.source != \"\")'",
		func(cmd *cobra.Command, asJSON bool) error {
			report, err := policy.NewReport()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), policyReport{jsonSchema, time.Now(), report})
			}
			return report.Write(cmd.OutOrStdout())
		})
	adds := change(cmd, "add WORD VALUE", "Add a line to the configuration file", "listen-port 8000-8999", 2,
		func(f *config.File, args []string) error {
			if err := policy.Check(args[0]); err != nil {
				return err
			}
			if policy.Single(args[0]) { // the new value takes the place of the old one
				f.Delete(args[0], func(v string) bool { return v != args[1] })
			}
			return add(f, args[0], args[1])
		})
	dels := change(cmd, "del WORD VALUE", "Take a line out of the configuration file",
		"listen-port 8000-8999", 2, func(f *config.File, args []string) error {
			if err := policy.Check(args[0]); err != nil {
				return err
			}
			return drop(f, args[0], args[1], func(v string) bool { return v == args[1] })
		})
	flushes := change(cmd, "flush", "Take all of the policy out of the configuration file", "", 0,
		func(f *config.File, _ []string) error {
			for _, word := range policy.Words {
				f.Delete(word, func(string) bool { return true })
			}
			return nil
		})
	for _, c := range []*cobra.Command{adds, dels, flushes} {
		sayPolicy(c)
	}
	return cmd
}

// sayPolicy has a command that changes the policy say, on standard error, the consequence that
// nobody may have had in mind: for servers that the list does not have, and for programs that run.
func sayPolicy(cmd *cobra.Command) {
	apply := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		before := policy.Closed()
		if err := apply(cmd, args); err != nil {
			return err
		}
		after := policy.Closed()
		for _, word := range policy.Words {
			switch {
			case !before[word] && after[word]: // rule: TestPolicyNotes
				cmd.PrintErrf("gosmc: it is the first %s without '!': what the list does not name stays TCP "+
					"from now on\n", word)
			case before[word] && !after[word]:
				cmd.PrintErrf("gosmc: no %s without '!' is left: all but exceptions may leave TCP from now "+
					"on\n", word)
			}
		}
		word := append(args, "")[0]
		if word == config.UsersWord && cmd.Name() != "del" {
			warnUnknown(cmd, args[1:])
		}
		sayReach(cmd, doctor.Reached(cmd.Context(), "", word))
		return nil
	}
}

// sayReach says which programs that run have a new value.
func sayReach(cmd *cobra.Command, r *doctor.Reach) {
	if len(r.Took) > 0 {
		cmd.PrintErrf("gosmc: programs that run have the new value now: %s\n", some(programNames(r.Took)))
	}
	if len(r.Later) > 0 {
		cmd.PrintErrf("gosmc: programs that run keep the old value until they are started again: %s\n",
			some(programNames(r.Later)))
	}
}

// programNames returns programs as PID/NAME.
func programNames(list []doctor.Program) (names []string) {
	for _, p := range list {
		names = append(names, process(p.PID, p.Command))
	}
	return names
}

// some lists the first few names.
func some(names []string) string {
	const most = 4
	if n := len(names) - most; n > 0 {
		names = append(names[:most:most], fmt.Sprintf("%d more", n))
	}
	return strings.Join(names, ", ")
}
