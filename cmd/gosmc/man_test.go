package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/roff"
	"github.com/gosmc/smc/internal/usage"
)

// documented calls f for every command that people may use.
func documented(t *testing.T, f func(t *testing.T, cmd *cobra.Command)) {
	root := newRootCommand()
	usage.AddCompletion(root)
	for _, cmd := range usage.Commands(root) {
		t.Run(usage.PageName(cmd), func(t *testing.T) { f(t, cmd) })
	}
}

// Every command has a page, which has all of its flags, an example and its exit statuses; and so has its help.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if got := gosmc(t, "", "man", dir); got.code != exitOK {
		t.Fatalf("gosmc man = %d, %q", got.code, got.stderr)
	}
	documented(t, func(t *testing.T, cmd *cobra.Command) {
		section := usage.Section(cmd)
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("man%d", section), fmt.Sprintf("%s.%d", usage.PageName(cmd), section)))
		if err != nil {
			t.Fatal(err)
		}
		page := string(text)
		for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "ENVIRONMENT", "SEE ALSO"} {
			if !strings.Contains(page, "\n.SH "+section+"\n") {
				t.Errorf("there is no %s", section)
			}
		}
		if cmd.Short == "" || cmd.Example == "" {
			t.Errorf("short help %q, examples %q; want both", cmd.Short, cmd.Example)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(page, roff.Escape("--"+f.Name)) {
				t.Errorf("there is no --%s", f.Name)
			}
		})
		help := gosmc(t, "", append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
		if help.code != exitOK || !strings.Contains(help.stdout, "\nExit status:\n") || !strings.Contains(help.stdout, cmd.Example) {
			t.Errorf("--help = %d, and has no exit status or no examples:\n%s", help.code, help.stdout)
		}
		for _, e := range usage.Statuses(cmd) {
			if !strings.Contains(page, roff.Line(e.Text)) || !strings.Contains(help.stdout, e.Text) {
				t.Errorf("exit status %d is not explained", e.Code)
			}
		}
	})
	text, err := os.ReadFile(filepath.Join(dir, "man5", "gosmc.conf.5"))
	if err != nil {
		t.Fatal(err)
	}
	for word, name := range config.Variables {
		if !strings.Contains(string(text), roff.Escape(word)) || !strings.Contains(string(text), roff.Escape(name)) {
			t.Errorf("gosmc.conf(5) has no %s or no %s", word, name)
		}
	}
	// The overview has each verb with the section that its page is in.
	overview, err := os.ReadFile(filepath.Join(dir, "man7", "gosmc.7"))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range verbGroups {
		for _, verb := range g.verbs {
			found := false
			for _, section := range []string{"1", "8"} {
				if _, err := os.Stat(filepath.Join(dir, "man"+section, "gosmc-"+verb+"."+section)); err == nil {
					found = strings.Contains(string(overview), roff.Escape("gosmc-"+verb+"("+section+")"))
				}
			}
			if !found {
				t.Errorf("gosmc(7) does not have %s, or another section than its page", verb)
			}
		}
	}
	for _, name := range []string{"agent", "policy", "pnet", "ueid"} {
		if _, err := os.Stat(filepath.Join(dir, "man8", "gosmc-"+name+".8")); err != nil {
			t.Errorf("administration: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "man1", "gosmc-completion-powershell.1")); err == nil {
		t.Error("there is a page about a shell of another system")
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		return // its remarks about the pages are for machines that have it
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man?", "*"))
	if err != nil || len(pages) < 30 {
		t.Fatalf("pages %q, %v", pages, err)
	}
	if out, err := exec.Command(groff, append([]string{"-man", "-Tutf8", "-ww", "-z"}, pages...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}

// The shell learns the possible values of every flag, or that the value is no file.
func TestFlagsComplete(t *testing.T) {
	documented(t, func(t *testing.T, cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			_, ok := cmd.GetFlagCompletionFunc(f.Name)
			_, dir := f.Annotations[cobra.BashCompSubdirsInDir]
			for _, name := range usage.FileFlags {
				ok = ok || f.Name == name
			}
			if !ok && !dir && f.Value.Type() != "bool" {
				t.Errorf("--%s offers files", f.Name)
			}
		})
	})
}

// Every verb with exit statuses of its own exists.
func TestExitsOfVerbs(t *testing.T) {
	root := newRootCommand()
	for _, verb := range exit.Verbs() {
		cmd, rest, err := root.Find([]string{verb})
		if err != nil || len(rest) > 0 || cmd == root {
			t.Errorf("%s is no verb", verb)
		}
		list := exit.Statuses(verb)
		for i, e := range list {
			if e.Text == "" || i > 0 && list[i-1].Code >= e.Code {
				t.Errorf("%s: exit statuses %+v, want them in order and explained", verb, list)
			}
		}
	}
}
