package usage

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TwoDashes gives a long flag that has one dash, as the flags of Go's tools have it, its second: -only
// and -json. Letters that are all flags of the verb stay, as do values, and all words from the first
// argument of the verb on, which may be those of a program.
func TwoDashes(root *cobra.Command, args []string) []string {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd == root || cmd.DisableFlagParsing {
		return args
	}
	before := len(args) - len(rest)
	if before < 0 || !slices.Equal(args[before:], rest) { // flags before the verb
		return args
	}
	args = slices.Clone(args)
	for i := before; i < len(args); i++ {
		word, hasDash := strings.CutPrefix(args[i], "-")
		if !hasDash || word == "" || word == "-" {
			break
		}
		word = strings.TrimPrefix(word, "-")
		name, _, hasValue := strings.Cut(word, "=")
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			flag = cmd.InheritedFlags().Lookup(name)
		}
		if flag != nil && len(name) > 1 && !areShort(cmd.Flags(), name) {
			args[i] = "--" + word
		}
		if flag == nil && len(word) == 1 {
			flag = cmd.Flags().ShorthandLookup(word)
		}
		if flag != nil && !hasValue && flag.NoOptDefVal == "" {
			i++ // its value
		}
	}
	return args
}

// areShort reports whether each letter is a flag.
func areShort(flags *pflag.FlagSet, letters string) bool {
	return !strings.ContainsFunc(letters, func(r rune) bool {
		return r > 127 || flags.ShorthandLookup(string(r)) == nil
	})
}
