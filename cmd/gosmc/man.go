package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	var m man
	m.head(manName(cmd), 1, cmd.Short)
	m.section("SYNOPSIS")
	for use := range strings.SplitSeq(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()), " | "+verbOf(cmd)+" ") {
		m.text(".B " + roff(cmd.CommandPath()) + "\n" + roffLine(strings.TrimSpace(use)) + "\n.br\n")
	}
	m.section("DESCRIPTION")
	m.prose(cmp.Or(cmd.Long, cmd.Short+"."))
	if cmd.HasAvailableSubCommands() {
		m.section("COMMANDS")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				m.item(c.Name(), c.Short)
			}
		}
	}
	m.section("OPTIONS")
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
		m.item(name, usage)
	})
	m.section("EXIT STATUS")
	for _, e := range exits(cmd) {
		m.item(fmt.Sprint(e.code), e.text)
	}
	if note := exitNote(cmd); note != "" {
		m.text(".PP\n" + roffLine(note) + "\n")
	}
	if cmd.Example != "" {
		m.section("EXAMPLES")
		m.block(cmd.Example)
	}
	m.section("ENVIRONMENT")
	m.item("GOSMC_DIR", "the run directory, where the programs of a machine find each other")
	m.item("GOSMC_CONFIG", "the configuration file, in place of /etc/gosmc.conf: see gosmc.conf(5), also for the variables that stand in the place of its lines")
	m.item("GOSMC_DISABLED", "1, true, yes or on: every connection is TCP")
	m.section("SEE ALSO")
	var see []string
	for _, c := range manCommands(cmd.Root()) {
		if c != cmd && (c.Parent() == cmd || c == cmd.Parent() || c.Parent() == cmd.Root() && cmd.Parent() == cmd.Root()) {
			see = append(see, manName(c)+"(1)")
		}
	}
	m.text(roffLine(strings.Join(append(see, "gosmc.conf(5)"), ", ")) + "\n")
	return m.b.String()
}

func manConfig() string {
	var m man
	m.head("gosmc.conf", 5, "what an operator says for all programs that use Shared Memory Communications")
	m.section("DESCRIPTION")
	m.prose(aboutConfig)
	m.section("FILES")
	m.item("/etc/gosmc.conf", "the file; it need not exist")
	m.section("EXAMPLES")
	m.block("ueid EXAMPLE.PLEX1\npeer 192.0.2.0/24\nlisten-port 8000-8999\nconnect-port !5432\nprogram !sshd")
	m.section("SEE ALSO")
	m.text(roffLine("gosmc(1), gosmc-config(1), gosmc-policy(1), gosmc-ueid(1), gosmc-seid(1), "+
		"gosmc-pnet(1), gosmc-run(1)") + "\n")
	return m.b.String()
}

// A man is a page that is being written.
type man struct{ b strings.Builder }

func (m *man) text(s string) { m.b.WriteString(s) }

func (m *man) head(name string, section int, short string) {
	fmt.Fprintf(&m.b, ".TH \"%s\" %d \"\" \"gosmc\" \"gosmc manual\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), section, name, roff(short))
}

func (m *man) section(title string) { fmt.Fprintf(&m.b, ".SH %s\n", title) }

func (m *man) item(term, text string) {
	fmt.Fprintf(&m.b, ".TP\n.B %s\n%s\n", roff(term), roffLine(text))
}

// prose writes paragraphs, which empty lines separate. A paragraph with lines that begin with a
// space is kept as it is.
func (m *man) prose(s string) {
	for p := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		if strings.HasPrefix(p, " ") || strings.Contains(p, "\n ") {
			m.block(p)
			continue
		}
		m.text(".PP\n")
		for line := range strings.SplitSeq(p, "\n") {
			m.text(roffLine(strings.TrimSpace(line)) + "\n")
		}
	}
}

// block writes lines as they are.
func (m *man) block(s string) {
	m.text(".PP\n.nf\n")
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		m.text(roffLine(line) + "\n")
	}
	m.text(".fi\n")
}

var roffEscapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// roff escapes text within a line.
func roff(s string) string { return roffEscapes.Replace(s) }

// roffLine escapes a line of text, which is no request.
func roffLine(s string) string {
	s = roff(s)
	if strings.HasPrefix(s, ".") {
		return `\&` + s
	}
	return s
}
