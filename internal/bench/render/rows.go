package render

import (
	"io"
	"strings"

	"github.com/gosmc/smc/internal/bench"
	"github.com/gosmc/smc/internal/text"
)

// An Entry describes a row, as gosmc bench --list --json prints it.
type Entry struct {
	Name       string        `json:"name"`
	Title      string        `json:"title"`
	Unit       string        `json:"unit"`
	Better     string        `json:"better"` // "lower" or "higher"
	Transports []string      `json:"transports"`
	Bounds     []bench.Bound `json:"bounds"`
	CPUBounds  []bench.Bound `json:"cpu_bounds"` // of the processor time of an operation
}

// Entries describes rows.
func Entries(rows []*bench.Row) []Entry {
	var list []Entry
	for _, b := range rows {
		list = append(list, Entry{
			b.Name, b.Title, b.Unit, b.Better(), b.Transports, b.Bounds(), b.CPUBounds(),
		})
	}
	return list
}

// WriteRows prints a line for each row.
func WriteRows(w io.Writer, rows []*bench.Row) error {
	t := text.Table{Columns: []text.Column{
		{Title: "BENCHMARK"}, {Title: "UNIT"}, {Title: "TRANSPORTS"}, {Title: "MEASURES"},
	}}
	for _, b := range rows {
		t.Add(b.Name, b.Unit, strings.Join(b.Transports, " "), b.Title)
	}
	return t.Write(w)
}
