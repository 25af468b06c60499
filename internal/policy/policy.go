// Package policy has the words of the configuration that say what may leave TCP, as verbs show and
// change them, and as the flags of gosmc run take their place. Package config has their meaning.
package policy

import (
	"slices"
	"strings"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/near"
)

// Words are the words of the policy, as people read them.
var Words = []string{
	config.SMC, config.Program, config.ListenPort, config.ListenAddress, config.ConnectPort,
	config.ConnectAddress, config.UsersWord, config.Memory, config.RingAfter, config.ShortAfter,
}

// Single reports whether a word has one value, and no list.
func Single(word string) bool {
	switch word {
	case config.SMC, config.Memory, config.RingAfter, config.ShortAfter:
		return true
	}
	return false
}

// Check returns an error, with the exit status of usage, for a word that the policy does not have.
func Check(word string) error {
	if !slices.Contains(Words, word) {
		hint := ""
		if best := near.Nearest(word, Words); best != "" {
			hint = "; did you mean " + best + "?"
		}
		return exit.Usagef("the policy has no %q, but %s%s", word, strings.Join(Words, ", "), hint)
	}
	return nil
}

// Closed returns the lists of the configuration file that refuse what is not in them: they have an
// entry that is no exception, and is not any.
func Closed() map[string]bool {
	closed := make(map[string]bool)
	f, err := config.Read(config.Path())
	if err != nil {
		return closed
	}
	for _, word := range Words {
		values := f.Values(word)
		if Single(word) || slices.Contains(values, "any") {
			continue
		}
		closed[word] = slices.ContainsFunc(values, func(v string) bool { return !strings.HasPrefix(v, "!") })
	}
	return closed
}

// Environ is an environment in which programs have the policy of s, of which the words in flagged are
// from flags. It says which values are copies of the file's.
func Environ(environ []string, s *config.Settings, flagged []string) []string {
	var copied []string
	for _, word := range Words {
		if !config.Set(word) && !slices.Contains(flagged, word) { // rule: cmd/gosmc TestRunCopied
			copied = append(copied, word)
		}
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		is := func(word string) bool { return config.Variables[word] == name }
		return slices.ContainsFunc(Words, is) || name == config.EnvDisabled || name == config.EnvCopied
	})
	values := s.Environ()
	environ = append(append(environ, values...), config.CopiedVariable(values, copied))
	if !s.Off && !slices.Contains(copied, config.SMC) { // the file may say otherwise, now or later
		environ = append(environ, config.EnvDisabled+"=0")
	}
	return environ
}
