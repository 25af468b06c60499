package opentelemetry_test

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/examples/opentelemetry"
)

// TestRegister checks the numbers of a host with a connection that stayed TCP, and that there are none
// after the end of the registration.
func TestRegister(t *testing.T) {
	host, err := smc.NewHost(&smc.Config{Dir: t.TempDir(), Disabled: true})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	l, err := (&smc.ListenConfig{Host: host}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := (&smc.Dialer{Host: host}).Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	registration, err := opentelemetry.Register(provider.Meter("test"), host)
	if err != nil {
		t.Fatal(err)
	}
	st := host.Stats()
	for _, tt := range []struct {
		name       string
		attributes pairs
		want       float64
	}{
		{"smc.connections", pairs{"mode", "TCP", "role", "client"}, 1},
		{"smc.connections", pairs{"mode", "SMC-D", "role", "server"}, 0},
		{"smc.connections_open", pairs{"mode", "TCP", "role", "server"}, 1},
		{"smc.fallbacks", pairs{"code", "0x7e010011", "side", "client"}, 1},
		{"smc.handshakes", pairs{"result", "ok"}, 0},
		{"smc.handshake.time", nil, 0},
		{"smc.ends", pairs{"of", "link group"}, 0},
		{"smc.failovers", nil, 0},
		{"smc.buffer_full", nil, 0},
		{"smc.doorbells", nil, float64(st.Doorbells)},
		{"smc.waits", pairs{"ended", "asleep"}, float64(st.WaitsAsleep)},
		{"smc.link_groups", pairs{"mode", "SMC-R"}, 0},
		{"smc.link_state", pairs{"state", "LINK_ACTIVE"}, 0},
		{"smc.rmb.bytes", nil, 0},
		{"smc.connection.bytes", pairs{"mode", "TCP", "direction", "in"}, 0},
		{"smc.limit_ratio", pairs{"limit", "peers"}, 0},
	} {
		got, ok := collect(t, reader)[tt.name][tt.attributes.set()]
		if !ok || got != tt.want {
			t.Errorf("%s%v = %v, %t; want %v", tt.name, tt.attributes, got, ok, tt.want)
		}
	}
	if err := registration.Unregister(); err != nil {
		t.Error(err)
	}
	if left := collect(t, reader); len(left) > 0 {
		t.Errorf("after the registration: %v", left)
	}
}

// pairs are names and values of attributes in turn.
type pairs []string

func (p pairs) set() attribute.Set {
	var list []attribute.KeyValue
	for i := 0; i < len(p); i += 2 {
		list = append(list, attribute.String(p[i], p[i+1]))
	}
	return attribute.NewSet(list...)
}

// collect returns the values of all series, by name and attributes.
func collect(t *testing.T, reader *metric.ManualReader) map[string]map[attribute.Set]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]map[attribute.Set]float64)
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			series := make(map[attribute.Set]float64)
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				addTo(series, d.DataPoints)
			case metricdata.Gauge[int64]:
				addTo(series, d.DataPoints)
			case metricdata.Sum[float64]:
				addTo(series, d.DataPoints)
			case metricdata.Gauge[float64]:
				addTo(series, d.DataPoints)
			}
			if len(series) > 0 {
				all[m.Name] = series
			}
		}
	}
	return all
}

func addTo[N int64 | float64](series map[attribute.Set]float64, points []metricdata.DataPoint[N]) {
	for _, p := range points {
		series[p.Attributes] = float64(p.Value)
	}
}
