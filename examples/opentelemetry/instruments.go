// Package opentelemetry exports the numbers of an [smc.Host] by observable instruments of
// go.opentelemetry.io/otel. With the exporter for Prometheus they have the names of 'gosmc metrics'.
// Copy it into a program: it is no part of package smc, which links no other module.
package opentelemetry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/wire/clc"
)

// Register has a meter observe a host, such as [smc.DefaultHost], until the registration ends. All
// numbers of one collection are of one time. Values of attributes are from fixed lists.
//
// There is no observable histogram: of the time of handshakes smc.handshake.time has the sum, for a
// mean with smc.handshakes of the result "ok".
func Register(meter metric.Meter, h *smc.Host) (metric.Registration, error) {
	b := builder{meter: meter}
	connections := b.counter("smc.connections", "{connection}", "Connections, by mode and role.")
	fallbacks := b.counter("smc.fallbacks", "{connection}", "Connections that stayed TCP, by code and side.")
	bytes := b.counter("smc.connection.bytes", "By", "Payload of connections.")
	handshakes := b.counter("smc.handshakes", "{handshake}", "Handshakes by result.")
	ends := b.counter("smc.ends", "{end}",
		"Handshakes, connections, links and link groups that have ended for a reason of their own.")
	failovers := b.counter("smc.failovers", "{link}",
		"Links of SMC-R whose connections went on over other links.")
	full := b.counter("smc.buffer_full", "{write}",
		"Writes that found no room in the peer's buffer and waited.")
	doorbells := b.counter("smc.doorbells", "{doorbell}", "Doorbells rung at a peer.")
	waits := b.counter("smc.waits", "{wait}", "Waits for a peer, by the way in which they ended.")
	took, err := meter.Float64ObservableCounter("smc.handshake.time", metric.WithUnit("s"),
		metric.WithDescription("Time from a TCP connection to an SMC connection, of all handshakes."))
	b.add(took, err)
	open := b.gauge("smc.connections_open", "{connection}", "Ends of connections that there are.")
	groups := b.gauge("smc.link_groups", "{group}", "Link groups that there are.")
	links := b.gauge("smc.link_state", "{link}", "Links of SMC-R in each state.")
	rmbs := b.gauge("smc.rmb.bytes", "By", "Memory of the receive buffers of SMC-R.")
	limits, err := meter.Float64ObservableGauge("smc.limit_ratio",
		metric.WithDescription("Use of a limit, 1 for all of it."))
	b.add(limits, err)
	if err := errors.Join(b.errs...); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := h.Stats()
		count := func(i metric.Int64Observable, n uint64, attributes ...string) {
			o.ObserveInt64(i, int64(n), with(attributes...))
		}
		for m, n := range s.Modes {
			mode := m.String()
			count(connections, n.Client, "mode", mode, "role", "client")
			count(connections, n.Server, "mode", mode, "role", "server")
			count(bytes, n.BytesRead, "mode", mode, "direction", "in")
			count(bytes, n.BytesWritten, "mode", mode, "direction", "out")
			count(open, uint64(n.OpenClient), "mode", mode, "role", "client")
			count(open, uint64(n.OpenServer), "mode", mode, "role", "server")
		}
		for side, n := range fallbacksBySide(s.Fallbacks) {
			count(fallbacks, n, "code", side.code, "side", side.side)
		}
		count(handshakes, s.Handshakes.Done, "result", "ok")
		count(handshakes, s.Handshakes.Failed, "result", "failed")
		o.ObserveFloat64(took, s.Handshakes.Took.Sum.Seconds())
		for of, n := range endsByKind(s.Ends) {
			count(ends, n, "of", of)
		}
		count(failovers, s.Failovers)
		count(full, s.BuffersFull)
		count(doorbells, s.Doorbells)
		count(waits, s.WaitsSpinning, "ended", "spinning")
		count(waits, s.WaitsAsleep, "ended", "asleep")
		for mode, n := range s.LinkGroups {
			count(groups, uint64(n), "mode", mode.String())
		}
		for state, n := range s.Links {
			count(links, uint64(n), "state", state)
		}
		count(rmbs, uint64(s.RMBBytes))
		for _, l := range s.Limits {
			o.ObserveFloat64(limits, float64(l.Used)/float64(l.Limit), with("limit", l.Name))
		}
		return nil
	}, b.all...)
}

// A builder makes instruments, and keeps the errors.
type builder struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error
}

func (b *builder) add(i metric.Observable, err error) {
	b.all, b.errs = append(b.all, i), append(b.errs, err)
}

func (b *builder) counter(name, unit, help string) metric.Int64ObservableCounter {
	i, err := b.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	b.add(i, err)
	return i
}

func (b *builder) gauge(name, unit, help string) metric.Int64ObservableGauge {
	i, err := b.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
	b.add(i, err)
	return i
}

// with returns attributes of names and values in turn.
func with(pairs ...string) metric.MeasurementOption {
	var list []attribute.KeyValue
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, attribute.String(pairs[i], pairs[i+1]))
	}
	return metric.WithAttributes(list...)
}

type codeSide struct{ code, side string }

// fallbacksBySide adds fallbacks up by code and side. Peers choose codes, so that those that are in
// no list are one series.
func fallbacksBySide(list []smc.FallbackStats) map[codeSide]uint64 {
	catalogue := clc.Reasons()
	sums := make(map[codeSide]uint64)
	for _, f := range list {
		code := "other"
		if slices.ContainsFunc(catalogue, func(r clc.Reason) bool { return uint32(r.Code) == f.Code }) {
			code = fmt.Sprintf("0x%08x", f.Code)
		}
		sums[codeSide{code, "client"}] += f.Client
		sums[codeSide{code, "server"}] += f.Server
	}
	return sums
}

// endsByKind leaves out the reasons, which are too many for attributes.
func endsByKind(list []smc.EndStats) map[string]uint64 {
	sums := map[string]uint64{"handshake": 0, "connection": 0, "link": 0, "link group": 0}
	for _, e := range list {
		sums[e.Of] += e.Count
	}
	return sums
}
