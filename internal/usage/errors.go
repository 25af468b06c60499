package usage

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/near"
)

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

// FlagError reports the mistake in the flags of a command line, and the values that would be right.
func FlagError(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if want, ok := wantedValues[e.GetFlag().Value.Type()]; ok {
			return exit.Usagef("--%s %q: want %s", e.GetFlag().Name, e.GetValue(), want)
		}
		return exit.Usagef("--%s %q: %w", e.GetFlag().Name, e.GetValue(), e.Unwrap())
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		what, _ := pflag.UnquoteUsage(e.GetFlag())
		return exit.Usagef("--%s needs a value: %s", e.GetFlag().Name, what)
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok && !cmd.HasParent() {
		return exit.Usagef("gosmc has no flag %s; flags of a verb come behind it: gosmc VERB [flags]",
			dashed(e))
	} else if ok {
		if group := e.GetSpecifiedShortnames(); group != "" {
			name := "-" + e.GetSpecifiedName()
			return exit.Usagef("%s has no flag %s%s", VerbOf(cmd), name, instead(FlagHabits, cmd, name))
		}
		name := e.GetSpecifiedName()
		if advice := instead(FlagHabits, cmd, "--"+name); advice != "" {
			return exit.Usagef("%s has no flag --%s%s", VerbOf(cmd), name, advice)
		}
		if near := nearestFlag(cmd, name); near != "" {
			return exit.Usagef("%s has no flag --%s; did you mean --%s?", VerbOf(cmd), name, near)
		}
		return exit.Usagef("%s has no flag --%s", VerbOf(cmd), name)
	}
	return exit.With(exit.Usage, err)
}

// dashed is a flag as it was given.
func dashed(e *pflag.NotExistError) string {
	if group := e.GetSpecifiedShortnames(); group != "" {
		return "-" + group
	}
	return "--" + e.GetSpecifiedName()
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

// UnknownVerb is the error for a verb that does not exist.
func UnknownVerb(root *cobra.Command, verb string) error {
	for _, cmd := range root.Commands() { // a verb of another tool comes before one with like letters
		if slices.Contains(cmd.SuggestFor, verb) {
			return exit.Usagef("unknown verb %q; did you mean %q?", verb, cmd.Name())
		}
	}
	if list := root.SuggestionsFor(verb); verb != "" && len(list) > 0 {
		best := slices.MinFunc(list, func(a, b string) int { // the first of equals
			return cmp.Compare(near.Distance(verb, a), near.Distance(verb, b))
		})
		return exit.Usagef("unknown verb %q; did you mean %q?", verb, best)
	}
	return exit.Usagef("unknown verb %q: 'gosmc --help' lists those that there are", verb)
}

// VerbError is the error for arguments that gosmc itself does not take. Flags behind a verb that is not
// there are not what is wrong.
func VerbError(root *cobra.Command, args []string, err error) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return err
	}
	return UnknownVerb(root, args[0])
}

// UnknownCommand is the error for a command that a verb does not have. It names those that it has.
func UnknownCommand(cmd *cobra.Command, word string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return exit.Usagef("%s has no command %q, but %s%s", VerbOf(cmd), word, strings.Join(names, ", "),
		instead(CommandHabits, cmd, word))
}
