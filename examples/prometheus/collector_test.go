package prometheus_test

import (
	"io"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/proto"

	"github.com/gosmc/smc"
	smcprometheus "github.com/gosmc/smc/examples/prometheus"
)

// TestCollector checks that the collector has the names, texts, labels and values that 'gosmc metrics'
// shows of the same process.
func TestCollector(t *testing.T) {
	command := filepath.Join(t.TempDir(), "gosmc")
	build := exec.Command("go", "build", "-o", command, "./cmd/gosmc")
	build.Dir = filepath.Join("..", "..")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	dir := t.TempDir()
	host := newHost(t, smc.Config{Dir: dir})
	other := newHost(t, smc.Config{Dir: t.TempDir(), Disabled: true}) // which gosmc does not ask
	l, err := (&smc.ListenConfig{Host: host}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	talk(t, l, host, smc.ModeSMCD, true)  // over SMC-D, with itself
	talk(t, l, host, smc.ModeSMCD, false) // likewise, and closed
	talk(t, l, other, smc.ModeTCP, true)  // over TCP
	talk(t, l, other, smc.ModeTCP, false) // over TCP, and closed

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(smcprometheus.NewCollector(host))
	list, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text, err := exec.Command(command, "metrics", "--dir", dir).Output()
	if err != nil {
		t.Fatalf("gosmc metrics: %v", err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	shown, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range list {
		want := shown[got.GetName()]
		if want == nil {
			t.Errorf("gosmc metrics has no %s", got.GetName())
			continue
		}
		delete(shown, got.GetName())
		if got.GetHelp() != want.GetHelp() || got.GetType() != want.GetType() {
			t.Errorf("%s: %v %q, want %v %q", got.GetName(),
				got.GetType(), got.GetHelp(), want.GetType(), want.GetHelp())
		}
		have, wanted := byLabels(got), byLabels(want)
		for labels, m := range wanted {
			mine := have[labels]
			delete(have, labels)
			switch {
			case mine == nil:
				t.Errorf("the collector has no %s{%s}", got.GetName(), labels)
			case labels == "limit=open files,", labels == "limit=memory mappings,": // change by the question
			case !proto.Equal(mine, m):
				t.Errorf("%s{%s} is %v, gosmc metrics has %v", got.GetName(), labels, mine, m)
			}
		}
		for labels, m := range have {
			// It has the bytes of mode Unix since the first such connection.
			bytesOfUnix := strings.HasPrefix(labels, "direction=") && strings.HasSuffix(labels, "mode=Unix,")
			if !bytesOfUnix || m.GetCounter().GetValue() != 0 {
				t.Errorf("gosmc metrics has no %s{%s}", got.GetName(), labels)
			}
		}
	}
	left := slices.Sorted(maps.Keys(shown)) // of the machine
	want := []string{
		"smc_agent_ports", "smc_agent_up", "smc_build_info", "smc_host_errors", "smc_hosts", "smc_hosts_denied",
		"smc_run_programs", "smc_snapshot_seconds",
	}
	if !slices.Equal(left, want) {
		t.Errorf("only gosmc metrics has %q, want %q", left, want)
	}
	if n := byLabels(list[slices.IndexFunc(list, func(f *dto.MetricFamily) bool {
		return f.GetName() == "smc_connection_bytes_total"
	})])["direction=in,mode=SMC-D,"].GetCounter().GetValue(); n != 20 {
		t.Errorf("%v bytes over SMC-D, want 20", n)
	}
}

func newHost(t *testing.T, c smc.Config) *smc.Host {
	t.Helper()
	h, err := smc.NewHost(&c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// talk makes a connection from a host and sends 5 bytes each way. It closes both ends unless they
// are to stay.
func talk(t *testing.T, l *smc.Listener, from *smc.Host, mode smc.Mode, stay bool) {
	t.Helper()
	d := smc.Dialer{Host: from}
	if mode != smc.ModeTCP {
		d.Require = smc.RequireSMCD
	}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.AcceptSMC()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	for _, ends := range [][2]*smc.Conn{{c, s}, {s, c}} {
		if _, err := io.WriteString(ends[0], "hello"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(ends[1], b); err != nil {
			t.Fatal(err)
		}
	}
	if stay {
		t.Cleanup(func() { c.Close(); s.Close() })
		return
	}
	c.Close()
	s.Close()
}

// byLabels has the series of a family by their labels.
func byLabels(f *dto.MetricFamily) map[string]*dto.Metric {
	series := make(map[string]*dto.Metric)
	for _, m := range f.GetMetric() {
		var b strings.Builder
		slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int {
			return strings.Compare(a.GetName(), b.GetName())
		})
		for _, l := range m.GetLabel() {
			b.WriteString(l.GetName() + "=" + l.GetValue() + ",")
		}
		if h := m.GetHistogram(); h != nil { // the last bucket is for the text only: it is the count
			h.Bucket = slices.DeleteFunc(h.Bucket, func(b *dto.Bucket) bool {
				return math.IsInf(b.GetUpperBound(), 1)
			})
		}
		series[b.String()] = m
	}
	return series
}
