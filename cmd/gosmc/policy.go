package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/doctor"
)

// A policyReport is the output of policy --json.
type policyReport struct {
	Schema  int          `json:"schema"`
	Time    time.Time    `json:"time"`
	File    string       `json:"file"`
	Entries []policyWord `json:"policy"` // of all words, also the unset ones
}

type policyWord struct {
	Word   string   `json:"word"`
	Values []string `json:"values"` // in force; empty: nothing is said
	Source string   `json:"source"` // the file, or "$VARIABLE"; empty: nothing is said
}

// policyOrder are the words of the policy, as people read them.
var policyOrder = []string{
	config.SMC, config.Program, config.ListenPort, config.ListenAddress, config.ConnectPort, config.ConnectAddress, config.Memory, config.RingAfter, config.ShortAfter,
}

func newPolicyCommand() *cobra.Command {
	cmd := namesCommand("policy [show | add WORD VALUE | del WORD VALUE | flush]", "Show and change what may leave TCP, and what stays with it",
		`Show what a program started now may move from TCP: which programs, ports and addresses, as servers and as clients. What is refused
stays TCP, with the reason NOT_ALLOWED. 'gosmc run --explain HOST:PORT' says what that means for a server.`,
		"  gosmc policy\n  sudo gosmc policy add listen-port 8000-8999\n  sudo gosmc policy add program '!sshd'\n  gosmc policy --json | jq -r '.policy[] | select(.source != \"\")'",
		func(cmd *cobra.Command, asJSON bool) error {
			r, err := newPolicyReport()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			t := table{Columns: []column{{Title: "Word"}, {Title: "Value"}, {Title: "Source"}}}
			for _, w := range r.Entries {
				t.Add(w.Word, orNA(strings.Join(w.Values, " ")), printable(w.Source))
			}
			return t.Write(cmd.OutOrStdout())
		})
	adds := change(cmd, "add WORD VALUE", "Add a line to the configuration file", "listen-port 8000-8999", 2,
		func(f *config.File, args []string) error {
			if err := isPolicy(args[0]); err != nil {
				return err
			}
			if single(args[0]) { // the new value takes the place of the old one
				f.Delete(args[0], func(v string) bool { return v != args[1] })
			}
			return add(f, args[0], args[1])
		})
	dels := change(cmd, "del WORD VALUE", "Take a line out of the configuration file",
		"listen-port 8000-8999", 2, func(f *config.File, args []string) error {
			if err := isPolicy(args[0]); err != nil {
				return err
			}
			return drop(f, args[0], args[1], func(v string) bool { return v == args[1] })
		})
	flushes := change(cmd, "flush", "Take all of the policy out of the configuration file", "", 0,
		func(f *config.File, _ []string) error {
			for _, word := range policyOrder {
				f.Delete(word, func(string) bool { return true })
			}
			return nil
		})
	for _, c := range []*cobra.Command{adds, dels, flushes} {
		sayPolicy(c)
	}
	return cmd
}

// sayPolicy has a command that changes the policy say, on standard error, the consequence that
// nobody may have had in mind: for servers that the list does not have, and for programs that run.
func sayPolicy(cmd *cobra.Command) {
	apply := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		before := closedWords()
		if err := apply(cmd, args); err != nil {
			return err
		}
		after := closedWords()
		for _, word := range policyOrder {
			switch {
			case !before[word] && after[word]: // rule: TestPolicyNotes
				cmd.PrintErrf("gosmc: it is the first %s that is no exception: all others stay TCP now\n",
					word)
			case before[word] && !after[word]:
				cmd.PrintErrf("gosmc: no %s is left that is no exception: all but exceptions may leave TCP "+
					"now\n", word)
			}
		}
		word := append(args, "")[0]
		sayReach(cmd, doctor.Reached(cmd.Context(), "", word))
		return nil
	}
}

// sayReach says which programs that run have a new value.
func sayReach(cmd *cobra.Command, r *doctor.Reach) {
	if len(r.Took) > 0 {
		cmd.PrintErrf("gosmc: programs that run have the new value now: %s\n", some(programNames(r.Took)))
	}
	if len(r.Later) > 0 {
		cmd.PrintErrf("gosmc: programs that run keep the old value until they are started again: %s\n",
			some(programNames(r.Later)))
	}
}

// programNames returns programs as PID/NAME.
func programNames(list []doctor.Program) (names []string) {
	for _, p := range list {
		names = append(names, process(p.PID, p.Command))
	}
	return names
}

// some lists the first few names.
func some(names []string) string {
	const most = 4
	if n := len(names) - most; n > 0 {
		names = append(names[:most:most], fmt.Sprintf("%d more", n))
	}
	return strings.Join(names, ", ")
}

// closedWords returns the lists of the file that refuse what is not in them: they have an entry
// that is no exception, and is not any.
func closedWords() map[string]bool {
	closed := make(map[string]bool)
	f, err := config.Read(config.Path())
	if err != nil {
		return closed
	}
	for _, word := range policyOrder {
		values := f.Values(word)
		if single(word) || slices.Contains(values, "any") {
			continue
		}
		closed[word] = slices.ContainsFunc(values, func(v string) bool { return !strings.HasPrefix(v, "!") })
	}
	return closed
}

// single reports whether a word has one value, and no list.
func single(word string) bool {
	return word == config.SMC || word == config.Memory || word == config.RingAfter || word == config.ShortAfter
}

func isPolicy(word string) error {
	if !slices.Contains(policyOrder, word) {
		return usagef("the policy has no %q, but %s", word, strings.Join(policyOrder, ", "))
	}
	return nil
}

func newPolicyReport() (policyReport, error) {
	r := policyReport{Schema: jsonSchema, Time: time.Now(), File: config.Path()}
	s, err := config.Load()
	if err != nil {
		return r, err
	}
	smc := "on"
	if s.Off {
		smc = "off"
	}
	size := func(n int64) []string {
		if n == 0 {
			return nil
		}
		return []string{fmt.Sprint(n)}
	}
	short := size(int64(max(0, s.ShortAfter)))
	if s.ShortAfter < 0 {
		short = []string{"off"}
	}
	values := map[string][]string{
		config.SMC: {smc}, config.Program: s.Programs, config.ListenPort: s.Listen.Ports, config.ListenAddress: s.Listen.Addresses,
		config.ConnectPort: s.Connect.Ports, config.ConnectAddress: s.Connect.Addresses, config.Memory: size(s.Memory), config.RingAfter: size(s.RingAfter),
		config.ShortAfter: short,
	}
	for _, word := range policyOrder {
		w := policyWord{Word: word, Values: append([]string{}, values[word]...)}
		if len(w.Values) > 0 {
			w.Source = config.Source(word)
		}
		r.Entries = append(r.Entries, w)
	}
	return r, nil
}
