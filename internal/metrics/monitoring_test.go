package metrics

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// TestDashboard checks the expressions of the dashboard, and that every panel has one.
func TestDashboard(t *testing.T) {
	names, labels := knownNames(t)
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
	if len(d.Panels) < 8 {
		t.Errorf("%d panels", len(d.Panels))
	}
	for _, p := range d.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q has no expression", p.Title)
		}
		for _, target := range p.Targets {
			checkExpr(t, p.Title, target.Expr, names, labels)
		}
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
