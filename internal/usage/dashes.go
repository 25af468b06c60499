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

// VerbFirst puts flags that come before their verb behind it: 'gosmc -json ss' is 'gosmc ss -json'.
// Words stay where they are if a word before the verb is neither a flag of it nor the value of one.
func VerbFirst(root *cobra.Command, args []string) []string {
	if len(args) == 0 || !strings.HasPrefix(args[0], "-") {
		return args
	}
	for i := range args {
		cmd, rest, err := root.Find(args[i:])
		before := len(args) - len(rest)
		if err != nil || cmd == root || strings.HasPrefix(args[i], "-") || cmd.DisableFlagParsing ||
			before < i || !slices.Equal(args[before:], rest) {
			continue
		}
		if areFlags(cmd, args[:i]) { // rule: cmd/gosmc TestVerbFirst: areFlags(cmd, args[:i]) -> true
			return slices.Concat(args[i:before], args[:i], rest)
		}
	}
	return args
}

// areFlags reports whether words are flags of a command with their values, and nothing else.
func areFlags(cmd *cobra.Command, words []string) bool {
	for i := 0; i < len(words); i++ {
		word, hasDash := strings.CutPrefix(words[i], "-")
		if !hasDash || word == "" || word == "-" {
			return false
		}
		short := strings.TrimPrefix(word, "-") == word
		name, _, hasValue := strings.Cut(strings.TrimPrefix(word, "-"), "=")
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			flag = cmd.InheritedFlags().Lookup(name)
		}
		if flag == nil && short && name != "" && areShort(cmd.Flags(), name) {
			flag = cmd.Flags().ShorthandLookup(name[len(name)-1:])
		}
		if flag == nil {
			return false
		}
		if !hasValue && flag.NoOptDefVal == "" {
			i++ // its value
			if i == len(words) {
				return false
			}
		}
	}
	return true
}

// areShort reports whether each letter is a flag.
func areShort(flags *pflag.FlagSet, letters string) bool {
	return !strings.ContainsFunc(letters, func(r rune) bool {
		return r > 127 || flags.ShorthandLookup(string(r)) == nil
	})
}
