package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/netns"
)

// completeNetns completes --net.
func completeNetns(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var list []cobra.Completion
	entries, _ := os.ReadDir(netns.Names)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, cobra.ShellCompDirectiveDefault // or a file
}
