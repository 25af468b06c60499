package smc

import (
	"context"
	"sync"
)

// A Host is one SMC instance: its device, its peers, its limits and its counters. Most
// programs use the one that [Dial] and [Listen] share, see [DefaultHost]. A Host may be
// used by several goroutines at once.
type Host struct {
	h *innerHost
}

// NewHost returns a new host. It takes nothing from the system until it is used. The
// caller ends it with Shutdown or Close.
func NewHost(config *Config) (*Host, error) {
	h, err := newInner(config)
	if err != nil {
		return nil, err
	}
	return &Host{h: h}, nil
}

var defaultHost = sync.OnceValue(func() *Host {
	h, err := newDefault()
	if err != nil { // the zero configuration is always good
		panic(err)
	}
	return &Host{h: h}
})

// DefaultHost returns the host that is used where none is named. It is made with the zero
// [Config] on first use, and lives as long as the process. It has goroutines, descriptors and a
// control socket only while it is used: 150 ms after its last connection and listener are gone it
// gives them back.
func DefaultHost() *Host { return defaultHost() }

// or returns h, or the default host for nil.
func (h *Host) or() *innerHost {
	if h == nil {
		h = DefaultHost()
	}
	return h.h
}

// Dir returns the run directory. On systems other than Linux it returns Config.Dir.
func (h *Host) Dir() string { return h.h.Dir() }

// Shutdown ends the host gracefully: it closes all listeners, waits until the application
// has closed all connections, and then releases everything. If ctx ends first, the
// connections that are left are reset and Shutdown returns ctx.Err().
func (h *Host) Shutdown(ctx context.Context) error { return h.h.Shutdown(ctx) }

// Close ends the host at once: listeners are closed, connections are reset. It waits for nothing
// but, over SMC-R, the arrival of the bytes that were written to connections that are closed
// already.
func (h *Host) Close() error { return h.h.Close() }
