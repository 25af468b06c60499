// Package reason explains the reasons for connections to stay TCP: it finds a reason by the word that a
// person has for it, and prints the cause and the remedy. Package clc has the catalogue.
package reason

import (
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/near"
	"github.com/gosmc/smc/wire/clc"
)

// An Entry explains one reason for a connection to stay TCP.
type Entry struct {
	Code   control.ReasonCode `json:"reason_code"`
	Tag    string             `json:"tag"`
	Reason string             `json:"reason"` // in words
	Cause  string             `json:"cause"`
	Advice string             `json:"advice"`
	Local  bool               `json:"local"` // found by one host, and never sent to a peer
}

// NewEntry explains a reason of the catalogue.
func NewEntry(r clc.Reason) Entry {
	return Entry{control.ReasonCode(r.Code), r.Tag, r.Sentence, r.Cause, r.Advice, r.Local}
}

// unknownTag is the tag of codes that are in no list.
const unknownTag = "UNKNOWN"

// Find returns the reason that a person means by a word: a number, in hexadecimal also without 0x if
// it has eight digits, or a tag. The error asks for the exit status of usage, and names the tag that
// may have been meant.
func Find(word string) (clc.Reason, error) {
	word = strings.TrimSpace(word)
	tag := strings.ToUpper(strings.ReplaceAll(word, "-", "_"))
	if r, ok := clc.LookupTag(tag); ok {
		return r, nil
	}
	if r, ok := findCode(word); ok {
		return r, nil
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
		return clc.Reason{}, exit.Usagef("there is no reason %q; did you mean %s?", word, best)
	}
	return clc.Reason{}, exit.Usagef("there is no reason %q: want a number such as 0x03010000, or a tag "+
		"that 'gosmc reason' lists", word)
}

// findCode returns the reason of a number. Tools leave out 0x, and the first zero of 03010000: where one
// reading is in no list, another one may be.
func findCode(word string) (found clc.Reason, ok bool) {
	const digits = 8 // of a code in hexadecimal
	bases := []int{0, 16, 10}
	if len(word) == digits {
		bases = []int{16, 0}
	}
	for _, base := range bases {
		code, err := strconv.ParseUint(word, base, 32)
		if err != nil {
			continue
		}
		r := clc.Lookup(clc.Diagnosis(code), clc.OSUnspecified)
		if r.Tag != unknownTag {
			return r, true
		}
		if !ok {
			found, ok = r, true
		}
	}
	return found, ok
}
