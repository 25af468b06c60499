package opentelemetry_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/examples/opentelemetry"
)

// A program has its meter observe a host. Programs that use the default host pass
// smc.DefaultHost(), and those with a global meter provider otel.Meter("github.com/gosmc/smc").
func ExampleRegister() {
	host, err := smc.NewHost(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	reader := metric.NewManualReader() // a program has an exporter, which reads every so often
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	registration, err := opentelemetry.Register(provider.Meter("github.com/gosmc/smc"), host)
	if err != nil {
		log.Fatal(err)
	}
	defer registration.Unregister()

	var data metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &data); err != nil {
		log.Fatal(err)
	}
	for _, m := range data.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "smc.connections" {
			fmt.Println(m.Name, "has", len(sum.DataPoints), "series; monotonic:", sum.IsMonotonic)
		}
	}
	// Output: smc.connections has 8 series; monotonic: true
}
