// Package render makes of the reports and rows of package bench tables for people and lists for
// programs. It measures nothing.
package render

import (
	"fmt"
	"io"

	"github.com/gosmc/smc/internal/bench"
	"github.com/gosmc/smc/internal/text"
)

// Write prints a report for people.
func Write(w io.Writer, r *bench.Report) error {
	head := text.Table{Columns: []text.Column{{}, {}}}
	for _, l := range r.Machine.Lines() {
		head.Add(l[0], l[1])
	}
	head.Add("Load", fmt.Sprintf("%.2f before the start", r.Machine.LoadAvg1))
	head.Add("Commit", r.Machine.Commit)
	head.Add("Rounds", fmt.Sprintf("%d of %g s, after %g s to warm up; values are medians",
		r.Settings.Rounds, r.Settings.MeasureSeconds, r.Settings.WarmUpSeconds))
	if err := head.Write(w); err != nil {
		return err
	}
	if r.Machine.CPUs < 2 {
		fmt.Fprintln(w, "\nWith one CPU nothing can spin: of the round trips only pingpong-64-nospin means "+
			"something.")
	}
	fmt.Fprintln(w)
	t := table(r)
	if err := t.Write(w); err != nil {
		return err
	}
	if list := notes(r); len(list) > 0 {
		fmt.Fprintln(w)
		for _, note := range list {
			fmt.Fprintln(w, "NOTE", text.Printable(note))
		}
	}
	if len(r.MustMissed) > 0 {
		fmt.Fprintln(w)
		for _, missed := range r.MustMissed {
			fmt.Fprintln(w, "MISS", text.Printable(missed))
		}
	}
	return nil
}

// notes returns the notes for which the table has no room.
func notes(r *bench.Report) (list []string) {
	for _, b := range r.Benchmarks {
		if b.Note != "" {
			list = append(list, b.Name+": "+b.Note)
		}
		for _, t := range b.Results {
			if t.LostPercent > 0 {
				list = append(list, fmt.Sprintf("%s: %s lost %s %% of the packets",
					b.Name, t.Transport, text.Number(t.LostPercent)))
			}
		}
	}
	return list
}

// table has a line for each transport of each benchmark, and beside it the bound that
// compares SMC with that transport.
func table(r *bench.Report) *text.Table {
	t := &text.Table{Columns: []text.Column{
		{Title: "BENCHMARK"}, {Title: "UNIT"}, {Title: "TRANSPORT"},
		{Title: "MEDIAN", Right: true}, {Title: "MIN", Right: true}, {Title: "MAX", Right: true},
		{Title: "P99", Right: true}, {Title: "CPUS", Right: true}, {Title: "RATIO", Right: true},
		{Title: "MUST", Right: true}, {Title: "AIM", Right: true}, {},
	}}
	for i, b := range r.Benchmarks {
		if i > 0 {
			t.Add()
		}
		for j, result := range b.Results {
			name, unit := "", ""
			if j == 0 {
				name, unit = b.Name, b.Unit
			}
			if result.Error != "" {
				t.Add(name, unit, result.Transport, "", "", "", "", "", "", "", "",
					"ERROR "+text.Printable(result.Error))
				continue
			}
			p99 := ""
			if result.P99 > 0 {
				p99 = text.Number(result.P99)
			}
			row := []string{
				name, unit, result.Transport, text.Number(result.Median), text.Number(result.Min),
				text.Number(result.Max), p99, text.Number(result.CPUs),
			}
			t.Add(append(row, compareCells(b.Bounds, b.Better == "lower", result.Transport)...)...)
			if cells := compareCells(b.CPUBounds, true, result.Transport); cells != nil {
				row := []string{"", "", "  CPU each", text.Number(result.CPUEach) + " µs", "", "", "", ""}
				t.Add(append(row, cells...)...)
			} else if result.CPUEach > 0 && len(b.CPUBounds) > 0 {
				t.Add("", "", "  CPU each", text.Number(result.CPUEach)+" µs")
			}
		}
	}
	return t
}

// compareCells makes the cells RATIO, MUST, AIM and Verdict of the bound against a transport, or of
// that on its value.
func compareCells(bounds []bench.BoundResult, lower bool, transport string) []string {
	for _, e := range bounds {
		if e.Against != transport && (e.Against != "" || e.Subject != transport) {
			continue
		}
		sign := "≥ "
		if lower {
			sign = "≤ "
		}
		must, aim, ratio := "", "", ""
		if e.Must != 0 {
			must = sign + e.Format(e.Must)
		}
		if e.Aim != 0 {
			aim = sign + e.Format(e.Aim)
		}
		if e.Verdict != bench.Failed && e.Against != "" {
			ratio = e.Subject + " " + e.Format(e.Ratio)
		}
		return []string{ratio, must, aim, string(e.Verdict)}
	}
	return nil
}
