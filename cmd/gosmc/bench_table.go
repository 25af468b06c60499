package main

import (
	"fmt"
	"io"

	"github.com/gosmc/smc/internal/bench"
)

// writeBench prints a report for people.
func writeBench(w io.Writer, r *bench.Report) error {
	head := table{Columns: []column{{}, {}}}
	for _, l := range r.Machine.Lines() {
		head.Add(l[0], l[1])
	}
	head.Add("Load", fmt.Sprintf("%.2f before the start", r.Machine.LoadAvg1))
	head.Add("Commit", r.Machine.Commit)
	head.Add("Rounds", fmt.Sprintf("%d of %g s, after %g s to warm up; values are medians", r.Settings.Rounds, r.Settings.MeasureSeconds, r.Settings.WarmUpSeconds))
	if err := head.Write(w); err != nil {
		return err
	}
	if r.Machine.CPUs < 2 {
		fmt.Fprintln(w, "\nWith one CPU nothing can spin: of the round trips only pingpong-64-nospin means something.")
	}
	fmt.Fprintln(w)
	t := benchTable(r)
	if err := t.Write(w); err != nil {
		return err
	}
	if notes := benchNotes(r); len(notes) > 0 {
		fmt.Fprintln(w)
		for _, note := range notes {
			fmt.Fprintln(w, "NOTE", printable(note))
		}
	}
	if len(r.MustMissed) > 0 {
		fmt.Fprintln(w)
		for _, missed := range r.MustMissed {
			fmt.Fprintln(w, "MISS", printable(missed))
		}
	}
	return nil
}

// benchNotes returns the notes for which the table has no room.
func benchNotes(r *bench.Report) []string {
	var notes []string
	for _, b := range r.Benchmarks {
		if b.Note != "" {
			notes = append(notes, b.Name+": "+b.Note)
		}
		for _, t := range b.Results {
			if t.LostPercent > 0 {
				notes = append(notes, fmt.Sprintf("%s: %s lost %s %% of the packets", b.Name, t.Transport, formatNumber(t.LostPercent)))
			}
		}
	}
	return notes
}

// benchTable has a line for each transport of each benchmark, and beside it the bound that
// compares SMC with that transport.
func benchTable(r *bench.Report) *table {
	t := &table{Columns: []column{
		{Title: "BENCHMARK"}, {Title: "UNIT"}, {Title: "TRANSPORT"},
		{Title: "MEDIAN", Right: true}, {Title: "MIN", Right: true}, {Title: "MAX", Right: true}, {Title: "P99", Right: true},
		{Title: "CPUS", Right: true}, {Title: "RATIO", Right: true}, {Title: "MUST", Right: true}, {Title: "AIM", Right: true}, {},
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
				t.Add(name, unit, result.Transport, "", "", "", "", "", "", "", "", "ERROR "+printable(result.Error))
				continue
			}
			p99 := ""
			if result.P99 > 0 {
				p99 = formatNumber(result.P99)
			}
			row := []string{
				name, unit, result.Transport, formatNumber(result.Median), formatNumber(result.Min),
				formatNumber(result.Max), p99, formatNumber(result.CPUs),
			}
			t.Add(append(row, compareCells(b.Bounds, b.Better == "lower", result.Transport)...)...)
			if cells := compareCells(b.CPUBounds, true, result.Transport); cells != nil {
				t.Add(append([]string{"", "", "  CPU each", formatNumber(result.CPUEach) + " µs", "", "", "", ""}, cells...)...)
			} else if result.CPUEach > 0 && len(b.CPUBounds) > 0 {
				t.Add("", "", "  CPU each", formatNumber(result.CPUEach)+" µs")
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
