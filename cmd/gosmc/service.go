package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/service"
	"github.com/gosmc/smc/internal/usage"
)

// A serviceReport is the output of service list --json.
type serviceReport struct {
	Schema   int              `json:"schema"`
	Time     time.Time        `json:"time"`
	Services []service.Status `json:"services"`
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
				return usage.UnknownCommand(cmd, args[0])
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
		return exit.With(exit.Usage, err)
	}
	return nil
}

// open opens the system.
func (f *serviceFlags) open() (*service.System, error) {
	s, err := service.OpenSystem(f.root)
	if err != nil {
		return nil, fmt.Errorf("--root: %w", err)
	}
	return s, nil
}

// options are those of drop-ins of a system. They are incomplete with an error.
func (f *serviceFlags) options(s *service.System) (o service.Options, err error) {
	o = service.Options{Dir: f.dir, Obstacle: inspect.Obstacle}
	if f.dir != "" && (!filepath.IsAbs(f.dir) || strings.ContainsAny(f.dir, " %$\"'\\\t\n")) {
		return o, usagef("--dir %q: want an absolute path without blanks, quotes, %% and $", f.dir)
	}
	o.Command, err = s.Command()
	return o, err
}

func (f *serviceFlags) enable(cmd *cobra.Command, text string) error {
	name, err := service.ParseName(text)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	s, err := f.open()
	if err != nil {
		return err
	}
	defer s.Close()
	o, err := f.options(s)
	if err != nil {
		return err
	}
	p, err := s.PlanFor(cmd.Context(), name, o)
	if err != nil {
		return err
	}
	name = p.Unit.Name
	out := cmd.OutOrStdout()
	if err := s.WritePlan(out, p); err != nil {
		return err
	}
	if f.dryRun {
		return nil
	}
	if !f.yes && isTerminal(cmd.InOrStdin()) && !confirmed(cmd.InOrStdin(), out) {
		return errors.New("nothing was written")
	}
	written, err := s.Enable(cmd.Context(), p, f.force)
	if err != nil {
		return err
	}
	if written {
		fmt.Fprintf(out, "%s is under 'gosmc run' when it starts.\n", name.Short())
	} else {
		fmt.Fprintf(out, "%s was under 'gosmc run' already.\n", name.Short())
	}
	if err := f.restart(cmd, s, name, true); err != nil {
		return err
	}
	if p.User != "" {
		fmt.Fprintf(out, "Clients: programs of the user %s under 'gosmc run'%s.\n", printable(p.User), p.ClientDir())
	}
	return nil
}

// confirmed asks.
func confirmed(in io.Reader, out io.Writer) bool {
	fmt.Fprint(out, "Write it? [Y/n] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return err == nil && (answer == "" || answer == "y" || answer == "yes")
}

// restart restarts a service with --now, and says how otherwise.
func (f *serviceFlags) restart(cmd *cobra.Command, s *service.System, name service.Name, enabled bool) error {
	effect, err := s.Restart(cmd.Context(), name, enabled, f.now)
	switch {
	case err != nil:
		return err
	case effect == service.Restarted:
		fmt.Fprintf(cmd.OutOrStdout(), "%s was started again.\n", name.Short())
	case effect == service.NextStart:
		fmt.Fprintf(cmd.OutOrStdout(), "It takes effect with the next start: systemctl restart %s\n", name.Short())
	}
	return nil
}

// disable removes the drop-in of one service, or with --all the drop-ins of all services. An error
// with one service does not stop the others.
func (f *serviceFlags) disable(cmd *cobra.Command, args []string) error {
	s, err := f.open()
	if err != nil {
		return err
	}
	defer s.Close()
	var names []service.Name
	if f.all {
		names = s.Enabled()
	} else {
		name, err := service.ParseName(args[0])
		if err != nil {
			return exit.With(exit.Usage, err)
		}
		names = []service.Name{s.RealName(name)}
	}
	removed, err := s.Disable(cmd.Context(), names, f.force)
	for _, name := range removed {
		fmt.Fprintf(cmd.OutOrStdout(), "%s is not under 'gosmc run' any more when it starts.\n", name.Short())
	}
	errs := []error{err}
	for _, name := range removed {
		errs = append(errs, f.restart(cmd, s, name, false))
	}
	return errors.Join(errs...)
}

func (f *serviceFlags) list(cmd *cobra.Command) error {
	sys, err := f.open()
	if err != nil {
		return err
	}
	defer sys.Close()
	o, _ := f.options(sys) // where gosmc is not installed, drop-ins are outdated
	r := serviceReport{Schema: jsonSchema, Time: time.Now(), Services: sys.Statuses(cmd.Context(), o)}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	return service.WriteStatuses(cmd.OutOrStdout(), r.Services)
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
