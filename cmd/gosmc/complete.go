package main

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/policy"
	"github.com/gosmc/smc/internal/survey"
)

// completeHosts completes a property of the running hosts: their process IDs, or the names of their
// programs.
func completeHosts(cmd *cobra.Command, what func(pid int, command string) cobra.Completion) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
		for _, h := range survey.Ask(cmd.Context(), "").Hosts {
			list = append(list, what(h.PID, printable(h.Command)))
		}
		slices.Sort(list)
		return slices.Compact(list), cobra.ShellCompDirectiveNoFileComp
	}
}

func hostPID(pid int, command string) cobra.Completion {
	return cobra.CompletionWithDesc(fmt.Sprint(pid), command)
}

func hostName(_ int, command string) cobra.Completion { return command }

// completeNames completes the arguments of commands that change the configuration file: the entries
// that can be deleted, and the known ones among the entries that can be added.
func completeNames(cmd *cobra.Command, args []string, toComplete string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
	word, ofPolicy := cmd.Parent().Name(), cmd.Parent().Name() == "policy"
	all := cmd.Parent().Name() == "config"
	adds := cmd.Name() == "add" || cmd.Name() == "set"
	if (ofPolicy || all) && len(args) > 0 {
		word, args = args[0], args[1:]
	}
	f, _ := config.Read(config.Path()) // an entry that is not understood cannot be completed
	switch {
	case ofPolicy && word == "policy":
		list = slices.Clone(policy.Words)
	case all && word == "config":
		list = slices.Clone(config.Words)
	case cmd.Name() == "del" && len(args) == 0:
		for _, v := range f.Values(word) {
			if word == config.PNET {
				v, _, _ = strings.Cut(v, " ")
			}
			list = append(list, v)
		}
	case !adds:
	case word == config.PNET && len(args) == 1:
		ifaces, _ := net.Interfaces()
		for _, i := range ifaces {
			list = append(list, i.Name)
		}
	case len(args) > 0:
	case word == config.SMC || word == config.SEID || word == config.SMCRv1 || word == config.BetweenHosts:
		list = []cobra.Completion{"on", "off"}
	case word == config.SMCRSpread:
		list = []cobra.Completion{"connections", "bytes"}
	case slices.Contains(policy.Words, word) && !policy.Single(word) && word != config.Program:
		list = []cobra.Completion{"any", "none"}
	}
	list = slices.DeleteFunc(list, func(c string) bool { return !strings.HasPrefix(c, toComplete) })
	return list, cobra.ShellCompDirectiveNoFileComp
}
