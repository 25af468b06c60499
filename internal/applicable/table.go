package applicable

import (
	"fmt"
	"io"
	"strings"

	"github.com/gosmc/smc/internal/text"
)

// Write prints the report for people. all says that pairs with little traffic are shown, too.
func (r *Report) Write(w io.Writer, all bool) error {
	fmt.Fprintf(w, "%d TCP connections in %s, %d pairs of programs; gains: %s\n", r.Connections,
		text.Number(r.Seconds)+" s", len(r.Pairs), text.Printable(r.Table.Source))
	t := text.Table{Columns: []text.Column{{Title: "Server"}, {Title: "Client"}, {Title: "Where"},
		{Title: "Conns", Right: true}, {Title: "Open", Right: true}, {Title: "Life", Right: true},
		{Title: "In", Right: true}, {Title: "Out", Right: true}, {Title: "Request", Right: true},
		{Title: "Gain", Right: true}, {Title: "Advice"}}}
	idle := 0
	for i := range r.Pairs {
		p := &r.Pairs[i]
		if p.Class == Idle && !all {
			idle++
			continue
		}
		t.Add(p.cells()...)
		if p.Obstacle != "" {
			t.Below(text.Printable(p.Obstacle))
		}
	}
	if err := t.Write(w); err != nil {
		return err
	}
	if idle > 0 {
		fmt.Fprintf(w, "Pairs with little traffic, which --all shows: %d\n", idle)
	}
	for i, s := range r.Order {
		fmt.Fprintf(w, "%d. %d %s, for %s: about %.1fx, %.2f processors less\n", i+1, s.Port,
			text.OrNA(s.Server), text.Printable(strings.Join(s.Clients, ", ")), s.Gain, s.Saved)
	}
	if len(r.Order) == 0 {
		fmt.Fprintln(w, "No pair of programs is worth a change.")
	} else {
		fmt.Fprintln(w, "In this order, start server and clients by 'gosmc run', and services by "+
			"'gosmc service enable NAME'.")
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, "Note:", n)
	}
	return nil
}

// cells is the line of the pair.
func (p *Pair) cells() []string {
	life, request, gain := "n/a", "n/a", "n/a"
	if p.LifetimeSeconds != nil {
		life = text.Number(*p.LifetimeSeconds) + " s"
		if *p.LifetimeSeconds < 0.01 {
			life = "< 0.01 s"
		}
	}
	if p.RequestBytes != nil {
		request = text.Bytes(int64(*p.RequestBytes))
	}
	if p.Gain != nil {
		gain = fmt.Sprintf("%.1fx (%.1f-%.1f)", p.Gain.Expected, p.Gain.Low, p.Gain.High)
	}
	return []string{
		fmt.Sprintf("%d %s", p.Port, text.OrNA(p.Server)), text.OrNA(p.Client), p.Where,
		fmt.Sprint(p.Connections), fmt.Sprint(p.Open), life, text.Bytes(int64(p.BytesIn)),
		text.Bytes(int64(p.BytesOut)), request, gain, p.Advice,
	}
}
