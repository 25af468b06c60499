package main

import (
	"context"
	"log/slog"
	"sync"
)

// warnings is a [slog.Handler] that hands warnings for the operator to a function: the effect, and
// the reason. At the beginning it keeps them, since one cause may have several effects, and the
// last one that is reported counts.
type warnings struct {
	mu      sync.Mutex
	held    []warning
	running bool
	show    func(warning)
}

// A warning is something that an operator may want to know of.
type warning struct{ what, why string }

func (w warning) String() string {
	if w.why == "" {
		return w.what
	}
	return w.what + ": " + w.why
}

// release shows the warnings that were kept, and from now on each warning at once.
func (h *warnings) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
	for _, w := range h.held {
		h.show(w)
	}
	h.held = nil
}

// Enabled implements [slog.Handler].
func (h *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements [slog.Handler].
func (h *warnings) Handle(_ context.Context, r slog.Record) error {
	w := warning{what: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			w.why = a.Value.String()
		} else {
			w.what += " (" + a.Key + " " + a.Value.String() + ")"
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
		if w.why != "" && h.held[i].why == w.why {
			h.held[i] = w
			return nil
		}
	}
	h.held = append(h.held, w)
	return nil
}

// WithAttrs implements [slog.Handler]; a host uses none.
func (h *warnings) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup implements [slog.Handler]; a host uses none.
func (h *warnings) WithGroup(string) slog.Handler { return h }
