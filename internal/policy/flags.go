package policy

import (
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/text"
)

// Flags are the words of the policy as they were given on a command line.
type Flags struct {
	Lists   [len(Lists)][]string // of the words of [Lists], in their order
	SMC     string
	Memory  text.ByteSize
	Ring    text.ByteSize
	Short   string
	Changed []string // words that were given; Apply adds them
}

// Lists are the words that are lists, with the help of their flags.
var Lists = [...]struct{ Word, Usage string }{
	{config.Program, "`NAMES` of programs that may leave TCP; !NAME for one that may not"},
	{config.ListenPort, "`PORTS` and ranges of servers here that may; !PORT for one that may not; any, none"},
	{config.ListenAddress, "`ADDRESSES` and prefixes of servers here that may"},
	{config.ConnectPort, "`PORTS` and ranges of servers that may be connected to otherwise than by TCP"},
	{config.ConnectAddress, "`ADDRESSES` and prefixes of servers that may"},
	{config.UsersWord, "`USERS` whose programs may be at the other end: same, any, NAME, @GROUP; !NAME " +
		"for one that may not"},
}

// Apply puts the words that were given, which given reports, in the place of those of s. The error is
// about one that is not understood, and asks for the exit status of usage.
func (f *Flags) Apply(s *config.Settings, given func(word string) bool) error {
	for i, list := range [...]*[]string{
		&s.Programs, &s.Listen.Ports, &s.Listen.Addresses, &s.Connect.Ports, &s.Connect.Addresses,
		&s.Users,
	} {
		word := Lists[i].Word
		if !given(word) {
			continue
		}
		for _, v := range f.Lists[i] {
			if err := config.Check(word, v); err != nil {
				return exit.Usagef("--%w", err)
			}
		}
		*list, f.Changed = f.Lists[i], append(f.Changed, word)
	}
	if given(config.SMC) {
		if err := config.Check(config.SMC, f.SMC); err != nil {
			return exit.Usagef("--%w", err)
		}
		on, _ := config.ParseSwitch(f.SMC) // checked
		s.Off, f.Changed = !on, append(f.Changed, config.SMC)
	}
	if given(config.Memory) {
		s.Memory, f.Changed = int64(f.Memory), append(f.Changed, config.Memory)
	}
	if given(config.RingAfter) {
		s.RingAfter, f.Changed = int64(f.Ring), append(f.Changed, config.RingAfter)
	}
	if given(config.ShortAfter) {
		if err := config.Check(config.ShortAfter, f.Short); err != nil {
			return exit.Usagef("--%w", err)
		}
		s.ShortAfter, _ = config.ParseShortAfter(f.Short) // checked
		f.Changed = append(f.Changed, config.ShortAfter)
	}
	return nil
}
