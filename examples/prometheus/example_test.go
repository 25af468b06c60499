package prometheus_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gosmc/smc"
	smcprometheus "github.com/gosmc/smc/examples/prometheus"
)

// A program serves its metrics, SMC among them. Programs that use the default host pass
// smc.DefaultHost().
func ExampleNewCollector() {
	host, err := smc.NewHost(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(smcprometheus.NewCollector(host))
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()

	answer, err := http.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "smc_connections_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// smc_connections_total{mode="SMC-D",role="client"} 0
	// smc_connections_total{mode="SMC-D",role="server"} 0
	// smc_connections_total{mode="SMC-R",role="client"} 0
	// smc_connections_total{mode="SMC-R",role="server"} 0
	// smc_connections_total{mode="TCP",role="client"} 0
	// smc_connections_total{mode="TCP",role="server"} 0
	// smc_connections_total{mode="Unix",role="client"} 0
	// smc_connections_total{mode="Unix",role="server"} 0
}
