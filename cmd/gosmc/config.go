package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/usage"
)

// A configReport is the output of config show --json.
type configReport struct {
	Schema  int            `json:"schema"`
	Time    time.Time      `json:"time"`
	File    string         `json:"file"`
	Entries []config.Entry `json:"entries"`
}

// A configCheck is the output of config check --json.
type configCheck struct {
	Schema   int              `json:"schema"`
	Time     time.Time        `json:"time"`
	File     string           `json:"file"`
	Problems []config.Problem `json:"problems"`
}

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config [show | check [FILE] | set WORD VALUE... | unset WORD]",
		Short: "Show, check and change the configuration file",
		Long: `Show the configuration that a program gets which starts now: each word with its value and its
source. The source is a line of the file, a variable of the environment, or a flag. --effective
shows the words that nobody has set, too, with their defaults. The flags of 'gosmc run' can be
given to see their effect.

'check' reports each line of a file that is not understood or has no effect, with its number and
the nearest word. Its exit status is 1 then. 'set' gives a word new values in place of all that it
has, 'unset' removes its lines. Both keep comments and the order of lines, and replace the file at
once. 'gosmc policy', 'ueid' and 'pnet' add single entries to lists.

Programs that run follow the file for new connections. Connections that there are do not change.
show says when a change of each word counts: "at once" everywhere, "at once in package smc" where
programs of 'gosmc run' take it at their next start, or "at start" of the program. A program of
'gosmc run' takes listen-port and listen-address at once to be refused more, and keeps what its
own start has refused. Values of the environment, of flags and of the program's own code stay. 'set'
and 'unset' name the programs that have the new value, and those that keep the old one. A file with
a line that is not understood changes no program that runs; the log says so.`,
		Example: `  gosmc config show --effective
  gosmc config check /etc/gosmc.conf
  sudo gosmc config set memory 1GiB
  sudo gosmc config set listen-port 80 8000-8999
  sudo gosmc config unset memory`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.UnknownCommand(cmd, args[0])
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	shows := &cobra.Command{
		Use: "show", Short: "Show each value, and its source", Example: "  gosmc config show --effective",
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
	}
	showConfig(cmd)
	showConfig(shows)
	cmd.AddCommand(shows, newConfigCheckCommand())
	sayPolicy(change(cmd, "set WORD VALUE...", "Give a word new values in place of the old ones",
		"memory 1GiB", anyNumber, setConfig))
	sayPolicy(change(cmd, "unset WORD", "Remove all lines of a word", "memory", 1,
		func(f *config.File, args []string) error {
			word, _ := config.Canonical(args[0], "")
			if err := isWord(word); err != nil {
				return err
			}
			return drop(f, word, "", func(string) bool { return true })
		}))
	return cmd
}

// showConfig has a command show the configuration.
func showConfig(cmd *cobra.Command) {
	var asJSON, effective bool
	var flags policyFlags
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&effective, "effective", false,
		"show words that nobody has set, too, with their defaults")
	flags.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, err := flags.settings(cmd); err != nil {
			return err
		}
		list, err := config.Effective()
		for i := range list {
			if f := cmd.Flags().Lookup(list[i].Word); f != nil && f.Changed {
				list[i].Override(strings.Split(strings.Trim(f.Value.String(), "[]"), ","))
			}
		}
		if !effective {
			list = slices.DeleteFunc(list, func(e config.Entry) bool { return e.Source == "" })
		}
		r := configReport{jsonSchema, time.Now(), config.Path(), list}
		write := r.write
		if asJSON {
			write = func(w io.Writer) error { return writeJSON(w, r) }
		}
		if e := write(cmd.OutOrStdout()); e != nil {
			return e
		}
		return err
	}
}

func newConfigCheckCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "check [FILE]", Short: "Report each line that is not understood or has no effect",
		Example: "  gosmc config check /etc/gosmc.conf",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("config check takes one file, but got %q, too", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return checkConfig(cmd.OutOrStdout(), append(args, config.Path())[0], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// checkConfig prints the problems of a file.
func checkConfig(w io.Writer, file string, asJSON bool) error {
	list, err := config.Problems(file)
	if err != nil {
		return err
	}
	switch {
	case asJSON:
		err = writeJSON(w, configCheck{jsonSchema, time.Now(), file, append([]config.Problem{}, list...)})
	case len(list) == 0:
		_, err = fmt.Fprintf(w, "%s: every line is understood\n", printable(file))
	}
	for _, p := range list {
		if !asJSON {
			fmt.Fprintf(w, "%s:%d: %s\n", printable(file), p.Line, printable(p.Message))
		}
	}
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("%s: lines to mend: %d", file, len(list))
	}
	return err
}

// isWord returns an error if a word is none of the file.
func isWord(word string) error {
	if slices.Contains(config.Words, word) {
		return nil
	}
	return exit.With(exit.Usage, config.Check(word, ""))
}

// setConfig is the work of config set: args are a word and its values.
func setConfig(f *config.File, args []string) error {
	if len(args) < 2 {
		return usagef("config set takes a word and a value, as in 'gosmc config set memory 1GiB'")
	}
	word, values := args[0], args[1:]
	for i, v := range values {
		_, values[i] = config.Canonical(word, v)
	}
	word, _ = config.Canonical(word, "")
	if err := isWord(word); err != nil {
		return err
	}
	switch {
	case word == config.PNET:
		values = []string{strings.Join(values, " ")}
	case !config.IsList(word) && len(values) > 1:
		return usagef("%s has one value, but got %d", word, len(values))
	}
	if err := f.Set(word, values...); err != nil {
		return exit.With(exit.Usage, err)
	}
	return nil
}

func (r *configReport) write(w io.Writer) error {
	t := table{Columns: []column{
		{Title: "Word"}, {Title: "Value"}, {Title: "Takes effect"}, {Title: "Source"},
	}}
	for _, e := range r.Entries {
		source, separator := e.Source, " "
		if e.Word == config.PNET {
			separator = ", "
		}
		value := strings.Join(e.Values, separator)
		switch {
		case source == "":
			source, value = "default", e.Default
		case len(e.Lines) > 0:
			source += ":" + strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Lines), " ", ","), "[]")
		}
		t.Add(e.Word, orNA(value), string(e.Takes), printable(source))
	}
	return t.Write(w)
}
