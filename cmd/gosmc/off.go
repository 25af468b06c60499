package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/doctor"
	"github.com/gosmc/smc/internal/survey"
)

// An offReport is the output of off --json and on --json.
type offReport struct {
	Schema      int               `json:"schema"`
	Time        time.Time         `json:"time"`
	File        string            `json:"file"` // the configuration file
	FileError   string            `json:"file_error,omitempty"`
	Programs    []string          `json:"programs"`    // that do not follow the file, as "PID/NAME"
	Followed    []string          `json:"followed"`    // that follow it: new connections do at once
	Directories []survey.Switched `json:"directories"` // that were switched
}

func newOffCommand() *cobra.Command {
	var dir string
	var now, asJSON bool
	cmd := &cobra.Command{
		Use:   "off",
		Short: "Switch SMC off: new connections stay TCP",
		Long: `Write "smc off" into the configuration file: programs that start from now on use TCP, and so do new
connections of programs that run and follow the file. Those that do not are listed: programs with
package smc and programs of 'gosmc run' follow it, unless a variable, a flag or their code says
otherwise, or they are of an earlier release.

With --now no new connection leaves TCP, of programs that run either: they find each other no more, in the run directories of all users for root, and in
those of its own for another user. It takes effect at once, and needs nothing of the programs. Connections that have left TCP stay as they are until they
end, as their TCP connection is closed; to end them, restart the programs. A run directory that several users share takes root.

'gosmc on' reverses both.`,
		Example: "  sudo gosmc off\n  sudo gosmc off --now",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := newOffReport()
			err := writeSwitch(true)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			r.ask(cmd, dir)
			if now {
				r.Directories = append(r.Directories, survey.Switch(dir, true)...)
			}
			return r.finish(cmd, asJSON, true, now, err)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "new connections of programs that run stay TCP, too")
	switchFlags(cmd, &dir, &asJSON)
	return cmd
}

func newOnCommand() *cobra.Command {
	var dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "on",
		Short:   "Reverse gosmc off",
		Long:    `Take "smc off" out of the configuration file, and have programs find each other again where 'gosmc off --now' has kept them from that.`,
		Example: "  sudo gosmc on",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := newOffReport()
			err := writeSwitch(false)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			r.Directories = append(r.Directories, survey.Switch(dir, false)...)
			r.ask(cmd, dir) // rule: TestOffLibrary
			return r.finish(cmd, asJSON, false, true, err)
		},
	}
	switchFlags(cmd, &dir, &asJSON)
	return cmd
}

func switchFlags(cmd *cobra.Command, dir *string, asJSON *bool) {
	cmd.Flags().StringVar(dir, "dir", "", "the run directory `DIR` only")
	cmd.Flags().BoolVar(asJSON, "json", false, "print one JSON object")
	completeDirs(cmd, "dir")
}

func newOffReport() *offReport {
	return &offReport{
		Schema: jsonSchema, Time: time.Now(), File: config.Path(), Programs: []string{}, Followed: []string{},
		Directories: []survey.Switched{},
	}
}

// ask asks the programs that run, which look at the file before they answer.
func (r *offReport) ask(cmd *cobra.Command, dir string) {
	reached := doctor.Reached(cmd.Context(), dir, config.SMC)
	r.Followed = append(r.Followed, programNames(reached.Took)...)
	r.Programs = append(r.Programs, programNames(reached.Later)...)
}

// writeSwitch puts "smc off" into the configuration file, or takes it out.
func writeSwitch(off bool) error {
	return config.Change(config.Path(), func(f *config.File) (changed bool, err error) {
		changed = f.Delete(config.SMC, func(v string) bool {
			on, _ := config.ParseSwitch(v) // checked
			return on == off
		}) > 0
		if !off {
			return changed, nil
		}
		added, err := f.Add(config.SMC, "off")
		return changed || added, err
	})
}

// finish prints the report. The error names the steps that failed.
func (r *offReport) finish(cmd *cobra.Command, asJSON, off, now bool, fileError error) error {
	var errs []error
	if fileError != nil {
		r.FileError = fileError.Error()
		errs = append(errs, fmt.Errorf("%s cannot be written: run as root, or name another file with %s: %w", r.File, config.EnvFile, fileError))
	}
	for _, d := range r.Directories {
		if d.Error != "" {
			errs = append(errs, errors.New(printable(d.Error)))
		}
	}
	out := cmd.OutOrStdout()
	if asJSON {
		return errors.Join(append(errs, writeJSON(out, r))...)
	}
	word := map[bool]string{true: "off", false: "on"}[off]
	if fileError == nil {
		fmt.Fprintf(out, "%s: programs that start from now on have SMC switched %s.\n", printable(r.File), word)
	}
	for _, d := range r.Directories {
		if d.Error == "" {
			fmt.Fprintf(out, "%s: switched %s for programs that run.\n", printable(d.Dir), word)
		}
	}
	if name, v := config.EnvDisabled, os.Getenv(config.EnvDisabled); v != "" {
		fmt.Fprintf(out, "%s=%s in the environment takes the place of the file.\n", name, printable(v))
	}
	if len(r.Followed) > 0 {
		fmt.Fprintf(out, "New connections of these have it switched %s, too: %s\n",
			word, strings.Join(r.Followed, ", "))
	}
	switch {
	case off && len(r.Programs) > 0 && !now:
		fmt.Fprintf(out, "These go on as they are, until they are started again or 'gosmc off --now' is used: %s\n", strings.Join(r.Programs, ", "))
	case !off && len(r.Programs) > 0:
		fmt.Fprintf(out, "These may have to be started again: %s\n", strings.Join(r.Programs, ", "))
	}
	if off && len(r.Programs)+len(r.Followed) > 0 {
		fmt.Fprintln(out, "Connections that have left TCP stay as they are until they end. To end them, restart the programs.")
	}
	return errors.Join(errs...)
}
