package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/near"
)

// usagef makes the error for a command line that is not understood.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// verbOf names a command as people do: without the program, unless it is that.
func verbOf(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// noArguments is the check of a verb that takes flags only.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("%s takes no arguments, but got %q", verbOf(cmd), args[0])
}

// oneAddress is the check of a verb that takes one address, as joinAddress has it.
func oneAddress(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return usagef("%s needs an address, HOST:PORT", verbOf(cmd))
	case 1, 2:
		return checkAddr(joinAddress(args))
	}
	return usagef("%s takes one address, HOST:PORT or HOST PORT, but got %d arguments", verbOf(cmd), len(args))
}

// joinAddress makes HOST:PORT of arguments in the forms that netcat takes, too: HOST PORT, and a
// number alone, which is a port of this machine. Other words stay as they are.
func joinAddress(args []string) string {
	if len(args) == 2 {
		return net.JoinHostPort(strings.Trim(args[0], "[]"), args[1])
	}
	if _, err := strconv.ParseUint(args[0], 10, 16); err == nil {
		return ":" + args[0]
	}
	return args[0]
}

// wantedValues describes the values that flags take, by their type. Types of our own say it in
// their errors.
var wantedValues = map[string]string{
	"bool":     "true or false, or no value",
	"int":      "a whole number",
	"uint64":   "a whole number, 0 or more",
	"uint16":   "a whole number from 0 to 65535",
	"duration": "a time such as 500ms, 10s or 1m30s",
	"intSlice": "whole numbers, separated by commas",

	"stringSlice": "words, separated by commas",
}

// flagError reports the mistake in the flags of a command line, and the values that would be right.
func flagError(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if want, ok := wantedValues[e.GetFlag().Value.Type()]; ok {
			return usagef("--%s %q: want %s", e.GetFlag().Name, e.GetValue(), want)
		}
		return usagef("--%s %q: %w", e.GetFlag().Name, e.GetValue(), e.Unwrap())
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		what, _ := pflag.UnquoteUsage(e.GetFlag())
		return usagef("--%s needs a value: %s", e.GetFlag().Name, what)
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if group := e.GetSpecifiedShortnames(); group != "" {
			return usagef("%s has no flag -%s", verbOf(cmd), e.GetSpecifiedName())
		}
		name := e.GetSpecifiedName()
		if near := nearestFlag(cmd, name); near != "" {
			return usagef("%s has no flag --%s; did you mean --%s?", verbOf(cmd), name, near)
		}
		return usagef("%s has no flag --%s", verbOf(cmd), name)
	}
	return &exitError{exitUsage, err}
}

// nearestFlag is the flag that may have been meant, or "".
func nearestFlag(cmd *cobra.Command, name string) string {
	const far = 3 // letters that differ
	best, least := "", far
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		d := near.Distance(name, f.Name)
		if strings.HasPrefix(f.Name, name) {
			d = 1
		}
		if !f.Hidden && d < least {
			best, least = f.Name, d
		}
	})
	return best
}

// addCompletion adds cobra's verb completion, with checks of its arguments. It keeps the output
// that root has then.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = "  source <(gosmc completion bash)"
		c.Args, c.RunE = noArguments, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		for _, shell := range c.Commands() {
			shell.Args = noArguments
			shell.Example = "  gosmc completion " + shell.Name()
		}
	}
}

// newHelpCommand is cobra's but for a verb that does not exist, which is an error here.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Show the help of a verb",
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return unknownVerb(root, strings.Join(args, " "))
			}
			of.InitDefaultHelpFlag() // or it would not be listed
			return of.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, c := range cmd.Root().Commands() {
				if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), toComplete) {
					list = append(list, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// unknownVerb is the error for a verb that does not exist.
func unknownVerb(root *cobra.Command, verb string) error {
	if near := root.SuggestionsFor(verb); verb != "" && len(near) > 0 {
		return usagef("unknown verb %q; did you mean %q?", verb, near[0])
	}
	return usagef("unknown verb %q", verb)
}
