package netcat

import (
	"context"
	"log/slog"
	"sync"
)

// Warnings is a [slog.Handler] that hands warnings for the operator to a function: the effect, and
// the reason. At the beginning it keeps them, since one cause may have several effects, and the
// last one that is reported counts.
type Warnings struct {
	mu      sync.Mutex
	held    []Warning
	running bool
	show    func(Warning)
}

// NewWarnings returns a handler that keeps warnings until [Warnings.Release]. It calls show from one
// goroutine at a time.
func NewWarnings(show func(Warning)) *Warnings { return &Warnings{show: show} }

// A Warning is something that an operator may want to know of.
type Warning struct {
	What string // the effect
	Why  string // the reason; empty: there is none
}

// String returns both in words.
func (w Warning) String() string {
	if w.Why == "" {
		return w.What
	}
	return w.What + ": " + w.Why
}

// Release shows the warnings that were kept, and from now on each warning at once.
func (h *Warnings) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
	for _, w := range h.held {
		h.show(w)
	}
	h.held = nil
}

// Enabled implements [slog.Handler].
func (h *Warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements [slog.Handler].
func (h *Warnings) Handle(_ context.Context, r slog.Record) error {
	w := Warning{What: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			w.Why = a.Value.String()
		} else {
			w.What += " (" + a.Key + " " + a.Value.String() + ")"
		}
		return true
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running {
		h.show(w)
		return nil
	}
	for i := range h.held {
		if w.Why != "" && h.held[i].Why == w.Why {
			h.held[i] = w
			return nil
		}
	}
	h.held = append(h.held, w)
	return nil
}

// WithAttrs implements [slog.Handler]; a host uses none.
func (h *Warnings) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup implements [slog.Handler]; a host uses none.
func (h *Warnings) WithGroup(string) slog.Handler { return h }
