package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/policy"
	"github.com/gosmc/smc/internal/reason"
	"github.com/gosmc/smc/internal/roff"
	"github.com/gosmc/smc/internal/usage"
)

// Manual pages, in roff: one for each command, gosmc-VERB and gosmc-VERB-COMMAND in section 1, or 8 for
// administration, with the content of --help; gosmc.conf(5), gosmc-reasons(7), and gosmc(7), which
// tells where to begin.

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages",
		Long:   "Write the manual pages into DIR/man1, DIR/man5, DIR/man7 and DIR/man8, as a package installs them in /usr/share/man.",
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("man needs a directory, and got %d arguments", len(args))
			}
			if c, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				return usagef("%s is a command, of which 'gosmc %[1]s --help' tells; a directory with the name is ./%[1]s", c.Name())
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
	pages := usage.Pages(root)
	pages["gosmc.conf.5"], pages["gosmc-reasons.7"] = manConfig(), reason.ManPage()
	pages["gosmc.7"] = manOverview(root)
	return pages
}

// manOverview is gosmc(7): the ways to use SMC, and the commands by task.
func manOverview(root *cobra.Command) string {
	var m roff.Page
	m.Head("gosmc", 7, "TCP connections over shared memory and RDMA: the overview")
	m.Section("DESCRIPTION")
	m.Prose(`Shared Memory Communications (SMC) moves the bytes of TCP connections through shared memory within a
machine (SMC-D), or by RDMA between machines (SMC-R). Programs keep their addresses, ports and sockets. A connection that
cannot use SMC stays TCP, and has a reason.

These are the ways to use it:`)
	m.Item("gosmc run PROGRAM", "starts an unchanged program. Its connections to other such programs of this machine leave TCP")
	m.Item("gosmc go build", "compiles an unchanged Go program so that its TCP connections use SMC")
	m.Item("package smc", "is for Go programs: Dial and Listen in place of package net's, within a machine and between machines")
	m.Section("FIRST STEPS")
	m.Block("  gosmc demo\n  gosmc run redis-server --port 7001 &\n  gosmc run redis-benchmark -p 7001 -q -t get\n  gosmc ss --summary\n  sudo gosmc doctor")
	for _, g := range verbGroups {
		m.Section(strings.ToUpper(strings.TrimSuffix(g.title, ":")))
		for _, verb := range g.verbs {
			if cmd, _, err := root.Find([]string{verb}); err == nil {
				m.Item(usage.Reference(cmd), cmd.Short)
			}
		}
	}
	m.Section("FILES")
	m.Item("/etc/gosmc.conf", "the configuration: see gosmc.conf(5)")
	m.Item("/run/gosmc, $XDG_RUNTIME_DIR/gosmc, /tmp/gosmc-UID", "the run directory, where programs of a machine find each other; GOSMC_DIR names another one")
	m.Item("/run/gosmc-agent.sock", "the agent: see gosmc-agent(8)")
	m.Section("SEE ALSO")
	m.Raw(roff.Line("gosmc(1), gosmc.conf(5), gosmc-reasons(7)") + "\n")
	return m.String()
}

func manConfig() string {
	var m roff.Page
	m.Head("gosmc.conf", 5, "what an operator says for all programs that use Shared Memory Communications")
	m.Section("DESCRIPTION")
	m.Prose(policy.AboutFile)
	m.Section("FILES")
	m.Item("/etc/gosmc.conf", "the file; it need not exist")
	m.Section("EXAMPLES")
	m.Block("ueid EXAMPLE.PLEX1\npeer 192.0.2.0/24\nlisten-port 8000-8999\nconnect-port !5432\nprogram !sshd")
	m.Section("SEE ALSO")
	m.Raw(roff.Line("gosmc(1), gosmc-config(1), gosmc-policy(8), gosmc-ueid(8), gosmc-seid(8), "+
		"gosmc-pnet(8), gosmc-run(1), gosmc(7)") + "\n")
	return m.String()
}
