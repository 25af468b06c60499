package policy

import (
	"fmt"
	"io"
	"strings"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/text"
)

// A Report has the policy in force.
type Report struct {
	File    string  `json:"file"`
	Entries []Entry `json:"policy"` // of all words, also the unset ones
}

// An Entry is a word of the policy with its values.
type Entry struct {
	Word   string   `json:"word"`
	Values []string `json:"values"` // in force; empty: nothing is said
	Source string   `json:"source"` // the file, or "$VARIABLE"; empty: nothing is said
}

// NewReport reads file and environment. The error is config.Load's.
func NewReport() (Report, error) {
	r := Report{File: config.Path()}
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
		config.SMC: {smc}, config.Program: s.Programs,
		config.ListenPort: s.Listen.Ports, config.ListenAddress: s.Listen.Addresses,
		config.ConnectPort: s.Connect.Ports, config.ConnectAddress: s.Connect.Addresses,
		config.UsersWord: s.Users, config.Memory: size(s.Memory),
		config.RingAfter: size(s.RingAfter), config.ShortAfter: short,
	}
	for _, word := range Words {
		w := Entry{Word: word, Values: append([]string{}, values[word]...)}
		if len(w.Values) > 0 {
			w.Source = config.Source(word)
		}
		r.Entries = append(r.Entries, w)
	}
	return r, nil
}

// Write prints a line for each word.
func (r *Report) Write(w io.Writer) error {
	t := text.Table{Columns: []text.Column{{Title: "Word"}, {Title: "Value"}, {Title: "Source"}}}
	for _, e := range r.Entries {
		t.Add(e.Word, orDefault(e), text.Printable(e.Source))
	}
	return t.Write(w)
}

// orDefault is the value of a word, or its default.
func orDefault(e Entry) string {
	if len(e.Values) == 0 {
		return config.Defaults[e.Word]
	}
	return strings.Join(e.Values, " ")
}
