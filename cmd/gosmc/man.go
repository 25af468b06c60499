package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/reason"
	"github.com/gosmc/smc/internal/roff"
	"github.com/gosmc/smc/internal/usage"
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
	pages := usage.Pages(root)
	pages["gosmc.conf.5"], pages["gosmc-reasons.7"] = manConfig(), reason.ManPage()
	return pages
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
