package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// monitoring has the alert rules and the dashboard.
const monitoring = "../../packaging/monitoring"

// series returns the names of series and labels that the collector writes.
func knownNames(t *testing.T) (names, labels map[string]bool) {
	t.Helper()
	names, labels = make(map[string]bool), map[string]bool{"instance": true, "le": true}
	s := testSnapshot()
	for _, f := range New(nil).collect(&s) {
		for _, sample := range f.samples {
			names[f.Name+sample.suffix] = true
			for i := 0; i < len(sample.labels); i += 2 {
				labels[sample.labels[i]] = true
			}
		}
	}
	return names, labels
}

var (
	seriesName = regexp.MustCompile(`\bsmc_\w+`)
	selector   = regexp.MustCompile(`(\w+)=~?"`)
	grouping   = regexp.MustCompile(`(?:by|without) \(([^)]*)\)`)
)

// checkExpr checks that an expression has no series and no label that the collector does not write.
func checkExpr(t *testing.T, where, expr string, names, labels map[string]bool) {
	t.Helper()
	for _, name := range seriesName.FindAllString(expr, -1) {
		if !names[name] && !strings.Contains(expr, "instance:"+name) {
			t.Errorf("%s: there is no series %s: %s", where, name, expr)
		}
	}
	var used []string
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		used = append(used, m[1])
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		used = append(used, strings.Split(m[1], ", ")...)
	}
	for _, l := range used {
		if !labels[l] {
			t.Errorf("%s: there is no label %q: %s", where, l, expr)
		}
	}
}

// panels returns the expressions of each panel of the dashboard, by title.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(monitoring, "gosmc-dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	list := make(map[string][]string)
	for _, p := range d.Panels {
		if _, ok := list[p.Title]; ok {
			t.Errorf("two panels have the title %q", p.Title)
		}
		list[p.Title] = []string{}
		for _, target := range p.Targets {
			list[p.Title] = append(list[p.Title], target.Expr)
		}
	}
	return list
}

// TestDashboard checks the names in the expressions of the dashboard, and that every panel has an expression.
func TestDashboard(t *testing.T) {
	names, labels := knownNames(t)
	list := panels(t)
	if len(list) < 8 {
		t.Errorf("%d panels", len(list))
	}
	for title, exprs := range list {
		if len(exprs) == 0 {
			t.Errorf("panel %q has no expression", title)
		}
		for _, expr := range exprs {
			checkExpr(t, title, expr, names, labels)
		}
	}
}

// values has the result of each expression of the dashboard for the series of testSnapshot. A counter with the value N
// grows by N in each second.
var values = map[string][]map[string]float64{
	"Connections by mode":                {{`{mode="SMC-D"}`: 0, `{mode="SMC-R"}`: 0, `{mode="TCP"}`: 1, `{mode="Unix"}`: 2}},
	"New connections by mode":            {{`{mode="SMC-D"}`: 3, `{mode="SMC-R"}`: 1, `{mode="TCP"}`: 4, `{mode="Unix"}`: 0}},
	"Share of connections that stay TCP": {{`{instance="a"}`: 0.5}},
	"Fallbacks by code":                  {{`{code="0x03010000"}`: 4}},
	"Payload": {{
		`{mode="SMC-D",direction="in"}`: 100, `{mode="SMC-D",direction="out"}`: 200,
		`{mode="TCP",direction="in"}`: 1, `{mode="TCP",direction="out"}`: 2,
	}},
	// One of four took up to 0.1 ms, and three between 0.25 ms and 0.5 ms.
	"Handshakes":             {{`{}`: 0.000333}, {`{}`: 0.000483}, {`{}`: 0.000497}},
	"Full buffers and waits": {{`{}`: 7}, {`{ended="asleep"}`: 9, `{ended="spinning"}`: 10}},
	"Links of SMC-R": {
		{`{state="LINK_ACTIVATING"}`: 1, `{state="LINK_ACTIVE"}`: 1, `{state="LINK_INACTIVE"}`: 0, `{state="LINK_LEAVING"}`: 0},
		{`{}`: 2 * 5 * 60},
	},
	"Use of limits":         {{`{limit="memory"}`: 0.25}},
	"Programs of gosmc run": {{`{state="old_library"}`: 1, `{state="served"}`: 1, `{state="supervisor_ended"}`: 1}},
}

// recorded returns the series of testSnapshot as promtool takes them, of a machine and for ten minutes.
func recorded(t *testing.T, instance string) (list []map[string]any) {
	t.Helper()
	s := testSnapshot()
	for _, f := range New(nil).collect(&s) {
		for _, series := range f.Series() {
			labels := []string{fmt.Sprintf("instance=%q", instance)}
			for _, name := range slices.Sorted(maps.Keys(series.Labels)) {
				labels = append(labels, fmt.Sprintf("%s=%q", name, series.Labels[name]))
			}
			v, err := series.Value.Float64()
			if err != nil {
				t.Fatal(err)
			}
			points := fmt.Sprintf("%vx20", v)
			if f.Kind != gauge {
				points = fmt.Sprintf("0+%vx20", 60*v)
			}
			list = append(list, map[string]any{"series": series.Name + "{" + strings.Join(labels, ",") + "}", "values": points})
		}
	}
	return list
}

// TestDashboardQueries has Prometheus evaluate each expression of the dashboard, for one of two machines with the series
// that the collector writes.
func TestDashboardQueries(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool, of Debian's package prometheus")
	}
	fill := strings.NewReplacer("$instance", "a", "$__rate_interval", "5m")
	var queries []map[string]any
	list := panels(t)
	for title, exprs := range list {
		if len(values[title]) != len(exprs) {
			t.Errorf("panel %q has %d expressions, and results for %d are known", title, len(exprs), len(values[title]))
			continue
		}
		for i, expr := range exprs {
			samples := []map[string]any{}
			for labels, v := range values[title][i] {
				samples = append(samples, map[string]any{"labels": labels, "value": v})
			}
			queries = append(queries, map[string]any{
				"expr": "round((" + fill.Replace(expr) + "), 0.000001)", "eval_time": "10m", "exp_samples": samples,
			})
		}
	}
	for title := range values {
		if list[title] == nil {
			t.Errorf("there is no panel %q", title)
		}
	}
	b, err := json.Marshal(map[string]any{ // JSON is YAML, too
		"evaluation_interval": "1m",
		"tests": []map[string]any{{
			"interval": "1m", "input_series": append(recorded(t, "a"), recorded(t, "b")...), "promql_expr_test": queries,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard_test.yml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}

// TestAlertRules checks the expressions of the alert rules.
func TestAlertRules(t *testing.T) {
	names, labels := knownNames(t)
	b, err := os.ReadFile(filepath.Join(monitoring, "gosmc.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	// Lines of expressions, without the sentences for people.
	n := 0
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "summary:") || strings.Contains(line, "description:") || strings.Contains(line, "#") {
			continue
		}
		checkExpr(t, "gosmc.rules.yml", line, names, labels)
		n += len(seriesName.FindAllString(line, -1))
	}
	if n < 8 {
		t.Errorf("%d series in the rules", n)
	}
}

// TestPromtool has Prometheus' own tool check the output and the rules, with recorded series.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool, of Debian's package prometheus")
	}
	text, err := os.Open("testdata/prometheus.prom")
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	for _, args := range [][]string{{"check", "metrics"}, {"check", "rules", "gosmc.rules.yml"}, {"test", "rules", "gosmc.rules_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir, cmd.Stdin = monitoring, text
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
