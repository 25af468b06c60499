package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/service"
)

// A serviceReport is the output of service list --json.
type serviceReport struct {
	Schema   int           `json:"schema"`
	Time     time.Time     `json:"time"`
	Services []serviceLine `json:"services"`
}

type serviceLine struct {
	Unit    string `json:"unit"`
	File    string `json:"file"`              // with 'gosmc run' in it
	State   string `json:"state"`             // ok, outdated, changed, overruled, no unit, by hand
	Why     string `json:"why,omitempty"`     // of a state other than ok
	Dir     string `json:"dir,omitempty"`     // run directory, which clients need
	Running string `json:"running,omitempty"` // stopped; yes: with the library; restart: without, until it is started again; empty: that cannot be found out
}

// serviceFlags are the flags of the commands of the verb service.
type serviceFlags struct {
	root, dir               string
	dryRun, yes, now, force bool
	all                     bool
	json                    bool
}

const serviceRootHelp = "the root `DIR` of a system that does not run, such as an image; systemd is not told"

func newServiceCommand() *cobra.Command {
	var f serviceFlags
	cmd := &cobra.Command{
		Use:   "service [list | enable NAME | disable NAME]",
		Short: "Put services of systemd under gosmc run, and list those that are",
		Long: `Show the services of systemd that are under 'gosmc run'. enable writes a drop-in for a service, disable removes it; the files of the
unit itself stay as they are.

A state other than ok says what is to be done: "outdated", the unit or gosmc has changed since, so enable it again; "changed", somebody has
edited the drop-in; "overruled", another drop-in sets ExecStart= after it; "no unit", the service is not installed any more; "by hand",
gosmc has not written the file. Running says whether what runs has the library: yes, or after a restart.`,
		Example: `  sudo gosmc service enable redis-server --dry-run
  sudo gosmc service enable redis-server --now
  gosmc service list
  sudo gosmc service disable redis-server --now`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("%s has no command %q, but list, enable and disable", verbOf(cmd), args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.list(cmd) },
	}
	list := &cobra.Command{
		Use: "list", Short: "List the services under gosmc run, which is what happens without a command, too", Args: noArguments,
		Example: "  gosmc service list\n  gosmc service list --json | jq -r '.services[] | select(.state != \"ok\").unit'",
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.list(cmd) },
	}
	for _, c := range []*cobra.Command{cmd, list} {
		c.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
		c.Flags().StringVar(&f.root, "root", "/", serviceRootHelp)
		completeDirs(c, "root")
	}
	cmd.AddCommand(list, newServiceEnableCommand(), newServiceDisableCommand())
	return cmd
}

func newServiceEnableCommand() *cobra.Command {
	var f serviceFlags
	cmd := &cobra.Command{
		Use:   "enable NAME",
		Short: "Put a service of systemd under gosmc run",
		Long: `Read the unit NAME, show the drop-in that it needs, and write it: ExecStart= with 'gosmc run' before the program, a run directory, and what
the unit forbids and the library needs. On a terminal it asks before it writes, unless --yes is given. systemd reads the drop-in at
once; a service that runs has the library when it is started again, which --now does.

Clients need the same user and the same run directory, under 'gosmc run'. After an upgrade that changes the unit, 'gosmc service list' shows
the drop-in as outdated, and this command writes it again.`,
		Example: `  sudo gosmc service enable redis-server --dry-run
  sudo gosmc service enable --now --yes nginx
  sudo gosmc service enable postgresql@15-main
  gosmc service enable --root /mnt/image memcached`,
		Args: oneService,
		RunE: func(cmd *cobra.Command, args []string) error { return f.enable(cmd, args[0]) },
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.dryRun, "dry-run", false, "show the drop-in, and write nothing")
	fl.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	fl.BoolVar(&f.now, "now", false, "restart the service, if it runs")
	fl.BoolVar(&f.force, "force", false, "write over a drop-in that somebody has changed")
	fl.StringVar(&f.root, "root", "/", serviceRootHelp)
	fl.StringVar(&f.dir, "dir", "", "run directory `DIR` of the service, instead of /run/gosmc, or one of its own where that is not made at boot")
	completeDirs(cmd, "root")
	completeDirs(cmd, "dir")
	cmd.ValidArgsFunction = f.completeUnits(true)
	return cmd
}

func newServiceDisableCommand() *cobra.Command {
	var f serviceFlags
	cmd := &cobra.Command{
		Use:   "disable NAME | disable --all",
		Short: "Take a service of systemd from gosmc run",
		Long: `Remove the drop-in that 'gosmc service enable' has written for NAME, and no other file. A service that runs keeps the library until it is started
again, which --now does. The unit itself may be gone. --all removes those of all services; a package that is removed does that.`,
		Example: "  sudo gosmc service disable redis-server --now\n  sudo gosmc service disable --all",
		Args: func(cmd *cobra.Command, args []string) error {
			if f.all {
				return noArguments(cmd, args)
			}
			return oneService(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.disable(cmd, args) },
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.now, "now", false, "restart the service, if it runs")
	fl.BoolVar(&f.all, "all", false, "all services that 'gosmc service enable' was used for")
	fl.BoolVar(&f.force, "force", false, "remove a drop-in that somebody has changed")
	fl.StringVar(&f.root, "root", "/", serviceRootHelp)
	completeDirs(cmd, "root")
	cmd.ValidArgsFunction = f.completeUnits(false)
	return cmd
}

// oneService is the check of a command that takes the name of a service.
func oneService(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes the name of one service, but got %d arguments", verbOf(cmd), len(args))
	}
	if _, err := service.ParseName(args[0]); err != nil {
		return &exitError{exitUsage, err}
	}
	return nil
}

// open opens the tree, and the manager of this machine if the tree is the machine's.
func (f *serviceFlags) open() (*service.Tree, *service.Manager, error) {
	t, err := service.OpenTree(f.root)
	if err != nil {
		return nil, nil, fmt.Errorf("--root: %w", err)
	}
	if !f.isMachine() {
		return t, nil, nil
	}
	return t, service.NewManager(), nil
}

func (f *serviceFlags) isMachine() bool {
	dir, err := filepath.Abs(f.root)
	return err == nil && dir == "/"
}

// options finds the gosmc that services of the tree can execute.
func (f *serviceFlags) options() (service.Options, error) {
	o := service.Options{Dir: f.dir, Obstacle: inspect.Obstacle}
	if f.dir != "" && (!filepath.IsAbs(f.dir) || strings.ContainsAny(f.dir, " %$\"'\\\t\n")) {
		return o, usagef("--dir %q: want an absolute path without blanks, quotes, %% and $", f.dir)
	}
	candidates := []string{"/usr/bin/gosmc", "/usr/local/bin/gosmc"}
	if self, err := os.Executable(); err == nil && f.isMachine() && !strings.ContainsAny(self, " %$\"'\\;") {
		candidates = append([]string{self}, candidates...)
	}
	for _, path := range candidates {
		if info, err := os.Stat(filepath.Join(f.root, filepath.Dir(path), "../lib/gosmc")); err == nil && info.IsDir() {
			if info, err := os.Stat(filepath.Join(f.root, path)); err == nil && info.Mode().IsRegular() {
				o.Command = path
				return o, nil
			}
		}
	}
	return o, fmt.Errorf("gosmc is not installed in %s, where services find it: install the package, or use 'make install'", f.root)
}

func (f *serviceFlags) enable(cmd *cobra.Command, text string) error {
	name, err := service.ParseName(text)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	t, m, err := f.open()
	if err != nil {
		return err
	}
	defer t.Close()
	o, err := f.options()
	if err != nil {
		return err
	}
	u, err := m.Unit(cmd.Context(), t, name)
	if err != nil {
		return err
	}
	p, err := t.Plan(u, o)
	if err != nil {
		return err
	}
	name = p.Unit.Name
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s:\n\n", filepath.Join(f.root, p.Path))
	for line := range strings.Lines(p.Text) {
		fmt.Fprintf(out, "    %s\n", printable(strings.TrimSuffix(line, "\n")))
	}
	fmt.Fprintln(out)
	for _, note := range p.Notes {
		fmt.Fprintln(out, "Note:", printable(note))
	}
	if f.dryRun {
		return nil
	}
	if !f.yes && isTerminal(cmd.InOrStdin()) && !confirmed(cmd.InOrStdin(), out) {
		return errors.New("nothing was written")
	}
	written, err := t.Write(p, f.force)
	if err != nil {
		return err
	}
	if m != nil {
		if err := m.Reload(cmd.Context()); err != nil {
			return err
		}
		if err := m.Check(cmd.Context(), name); err != nil && written {
			return errors.Join(fmt.Errorf("the drop-in was taken back: %w", err), t.Remove(name, true), m.Reload(cmd.Context()))
		}
	}
	if written {
		fmt.Fprintf(out, "%s is under 'gosmc run' when it starts.\n", name.Short())
	} else {
		fmt.Fprintf(out, "%s was under 'gosmc run' already.\n", name.Short())
	}
	if err := f.restart(cmd, m, name, "enable"); err != nil {
		return err
	}
	if p.User != "" {
		fmt.Fprintf(out, "Clients: programs of the user %s under 'gosmc run'%s.\n", printable(p.User), clientDir(p.Dir))
	}
	return nil
}

// clientDir names the setting that clients need besides, for a run directory that is not their
// default.
func clientDir(dir string) string {
	if dir == "/run/gosmc" {
		return ""
	}
	return ", with GOSMC_DIR=" + printable(dir)
}

// confirmed asks.
func confirmed(in io.Reader, out io.Writer) bool {
	fmt.Fprint(out, "Write it? [Y/n] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return err == nil && (answer == "" || answer == "y" || answer == "yes")
}

// restart restarts a service with --now, and says how otherwise.
func (f *serviceFlags) restart(cmd *cobra.Command, m *service.Manager, name service.Name, verb string) error {
	out := cmd.OutOrStdout()
	switch state := m.Running(cmd.Context(), name); {
	case m == nil || state == service.Stopped:
	case verb == "enable" && state == service.WithIt:
	case f.now:
		if err := m.Restart(cmd.Context(), name); err != nil {
			way := "'journalctl -u " + name.Short() + "' says why"
			if verb == "enable" {
				way += "; 'gosmc service disable --now " + name.Short() + "' takes it back"
			}
			return fmt.Errorf("%s did not start again: %w: %s", name.Short(), err, way)
		}
		fmt.Fprintf(out, "%s was started again.\n", name.Short())
	default:
		fmt.Fprintf(out, "It takes effect with the next start: systemctl restart %s\n", name.Short())
	}
	return nil
}

// disable removes the drop-in of one service, or with --all the drop-ins of all services. An error
// with one service does not stop the others.
func (f *serviceFlags) disable(cmd *cobra.Command, args []string) error {
	t, m, err := f.open()
	if err != nil {
		return err
	}
	defer t.Close()
	var names []service.Name
	if f.all {
		names = t.Enabled()
	} else {
		name, err := service.ParseName(args[0])
		if err != nil {
			return &exitError{exitUsage, err}
		}
		names = []service.Name{t.RealName(name)}
	}
	var errs []error
	var removed []service.Name
	for _, name := range names {
		if err := t.Remove(name, f.force); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s is not under 'gosmc run' any more when it starts.\n", name.Short())
		removed = append(removed, name)
	}
	if m != nil && len(removed) > 0 {
		errs = append(errs, m.Reload(cmd.Context()))
	}
	for _, name := range removed {
		errs = append(errs, f.restart(cmd, m, name, "disable"))
	}
	return errors.Join(errs...)
}

func (f *serviceFlags) list(cmd *cobra.Command) error {
	t, m, err := f.open()
	if err != nil {
		return err
	}
	defer t.Close()
	o, _ := f.options() // where gosmc is not installed, drop-ins are outdated
	r := serviceReport{Schema: jsonSchema, Time: time.Now(), Services: []serviceLine{}}
	for _, e := range t.List(o) {
		r.Services = append(r.Services, serviceLine{
			Unit: string(e.Unit), File: filepath.Join(f.root, e.File), State: e.State, Why: e.Why, Dir: e.Dir, Running: string(m.Running(cmd.Context(), e.Unit)),
		})
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	table := table{columns: []column{{title: "Service"}, {title: "State"}, {title: "Running"}, {title: "Run directory"}, {title: "File"}, {}}}
	for _, s := range r.Services {
		table.add(printable(strings.TrimSuffix(s.Unit, ".service")), s.State, orNA(s.Running), orNA(s.Dir), printable(s.File), printable(s.Why))
	}
	return table.write(cmd.OutOrStdout())
}

// completeUnits completes the names of services: of all, or of those that have a drop-in.
func (f *serviceFlags) completeUnits(all bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, toComplete string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
		t, err := service.OpenTree(f.root)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer t.Close()
		var names []service.Name
		if all {
			names = t.Names()
		} else {
			for _, e := range t.List(service.Options{}) {
				names = append(names, e.Unit)
			}
		}
		for _, n := range names {
			if strings.HasPrefix(n.Short(), toComplete) {
				list = append(list, n.Short())
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}
