package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/near"
	"github.com/gosmc/smc/internal/roff"
	"github.com/gosmc/smc/wire/clc"
)

// A reasonReport is the output of reason --json.
type reasonReport struct {
	Schema  int           `json:"schema"`
	Reasons []reasonEntry `json:"reasons"`
}

// A reasonEntry explains one reason for a connection to stay TCP.
type reasonEntry struct {
	Code   control.ReasonCode `json:"reason_code"`
	Tag    string             `json:"tag"`
	Reason string             `json:"reason"` // in words
	Cause  string             `json:"cause"`
	Advice string             `json:"advice"`
	Local  bool               `json:"local"` // found by one host, and never sent to a peer
}

func newReasonEntry(r clc.Reason) reasonEntry {
	return reasonEntry{control.ReasonCode(r.Code), r.Tag, r.Sentence, r.Cause, r.Advice, r.Local}
}

func newReasonCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reason [CODE | TAG]...",
		Short: "Explain why connections stay TCP: the cause and the remedy of each reason",
		Long: `Explain the reasons that 'gosmc ss', 'stats' and 'dump' show for connections that stay TCP: the likely cause, and the remedy.
CODE is a number, as 0x03010000. TAG is a name, as PEER_NO_SMC. Without an argument all reasons are listed; gosmc-reasons(7) explains all
of them. A code that a peer with z/OS or AIX has sent may mean another reason: the documentation of that system explains it.`,
		Example: `  gosmc reason OTHER_USER
  gosmc reason 0x03010000
  gosmc reason --json | jq -r '.reasons[] | .tag + ": " + .advice'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r := reasonReport{Schema: jsonSchema, Reasons: []reasonEntry{}}
			for _, arg := range args {
				reason, err := findReason(arg)
				if err != nil {
					return err
				}
				r.Reasons = append(r.Reasons, newReasonEntry(reason))
			}
			if len(args) == 0 {
				for _, reason := range clc.Reasons() {
					r.Reasons = append(r.Reasons, newReasonEntry(reason))
				}
			}
			switch {
			case asJSON:
				return writeJSON(cmd.OutOrStdout(), r)
			case len(args) == 0:
				return r.list(cmd.OutOrStdout())
			}
			return r.explain(cmd.OutOrStdout())
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, toComplete string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
			for _, r := range clc.Reasons() {
				if strings.HasPrefix(r.Tag, strings.ToUpper(toComplete)) {
					list = append(list, cobra.CompletionWithDesc(r.Tag, r.Sentence))
				}
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// findReason returns the reason that a person means by a word: a number, in hexadecimal also
// without 0x if it has eight digits, or a tag.
func findReason(word string) (clc.Reason, error) {
	word = strings.TrimSpace(word)
	tag := strings.ToUpper(strings.ReplaceAll(word, "-", "_"))
	if r, ok := clc.LookupTag(tag); ok {
		return r, nil
	}
	const digits = 8 // of a code in hexadecimal
	base := 0
	if len(word) == digits {
		base = 16
	}
	if code, err := strconv.ParseUint(word, base, 32); err == nil {
		return clc.Lookup(clc.Diagnosis(code), clc.OSUnspecified), nil
	}
	best, least := "", 4 // letters that differ
	for _, r := range clc.Reasons() {
		d := near.Distance(tag, r.Tag)
		if len(tag) > 2 && strings.Contains(r.Tag, tag) {
			d = 1
		}
		if d < least {
			best, least = r.Tag, d
		}
	}
	if best != "" {
		return clc.Reason{}, usagef("there is no reason %q; did you mean %s?", word, best)
	}
	return clc.Reason{}, usagef("there is no reason %q: want a number such as 0x03010000, or a tag that 'gosmc reason' lists", word)
}

// list writes a line for each reason.
func (r *reasonReport) list(w io.Writer) error {
	t := table{Columns: []column{{Title: "Code"}, {Title: "Tag"}, {Title: "Reason"}}}
	for _, e := range r.Reasons {
		t.Add(fmt.Sprintf("0x%08x", uint32(e.Code)), e.Tag, e.Reason)
	}
	return t.Write(w)
}

// explain writes all that is known of each reason.
func (r *reasonReport) explain(w io.Writer) error {
	for i, e := range r.Reasons {
		if i > 0 {
			fmt.Fprintln(w)
		}
		t := table{Columns: []column{{}, {}}}
		t.Add("Reason", fmt.Sprintf("%s (0x%08x)", e.Tag, uint32(e.Code)))
		t.Add("", e.Reason)
		t.Add("Cause", e.Cause)
		t.Add("Remedy", e.Advice)
		found := "by either host: a Decline has the code"
		if e.Local {
			found = "by this host: no Decline has the code"
		}
		t.Add("Found", found)
		if err := t.Write(w); err != nil {
			return err
		}
	}
	return nil
}

// manReasons is the page gosmc-reasons(7).
func manReasons() string {
	var m roff.Page
	m.Head("gosmc-reasons", 7, "why connections stay TCP, and the remedies")
	m.Section("DESCRIPTION")
	m.Prose("A connection that does not leave TCP has a reason. 'gosmc ss' and 'gosmc stats' show its code and sentence. 'gosmc reason' explains one.\n" +
		"Codes that begin with 0x7e01 are of gosmc and are never sent to a peer. The others are those of Linux, whose tools show the same tags.")
	m.Section("REASONS")
	for _, r := range clc.Reasons() {
		m.Item(r.String(), r.Sentence)
		m.Raw(".br\nCause: " + roff.Escape(r.Cause) + "\n.br\nRemedy: " + roff.Escape(r.Advice) + "\n")
	}
	m.Section("SEE ALSO")
	m.Raw(roff.Line("gosmc-reason(1), gosmc-ss(1), gosmc-stats(1), gosmc-run(1)") + "\n")
	return m.String()
}
