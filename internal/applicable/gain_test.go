package applicable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestClass tells traffic by its counters.
func TestClass(t *testing.T) {
	for _, tt := range []struct {
		name  string
		where string
		p     pair
		want  Class
	}{
		{"nothing", "local", pair{count: 1, live: 1}, Idle},
		{"few messages", "local", pair{count: 1, live: 1, segIn: 40, segOut: 40, in: 4000}, Idle},
		{"one", "local", pair{count: 1, live: 1, segIn: 1000, segOut: 1000, in: 1e5}, One},
		{"few", "local", pair{count: 8, live: 8, segIn: 1000, segOut: 1000, in: 1e5}, Few},
		{"many", "local", pair{count: 50, live: 50, segIn: 1000, segOut: 1000, in: 1e5}, Many},
		{"bulk to the server", "local", pair{count: 1, live: 1, segIn: 1000, segOut: 10, in: 3e7}, Bulk},
		{"bulk from it", "local", pair{count: 1, live: 1, segIn: 10, segOut: 1000, out: 3e7}, Bulk},
		{"few large segments", "local", pair{count: 1, live: 1, segOut: 50, out: 3e6}, Bulk},
		{"short", "local", pair{count: 100, ended: 100, whole: 100, life: time.Second, all: 1e5, segIn: 1000}, Short},
		{"short, remote", "remote", pair{count: 100, ended: 100, whole: 100, life: time.Second, all: 1e5}, Short},
		{"too few to say", "local", pair{count: 7, ended: 7, whole: 7, segIn: 1000, in: 1e4}, Few},
		{"long", "local", pair{count: 20, ended: 20, whole: 20, life: time.Minute, all: 1e5, segIn: 1000, in: 1e4}, Many},
		{"short and large", "local", pair{count: 20, ended: 20, whole: 20, life: time.Second, all: 1e8, in: 1e8, segIn: 2000}, Bulk},
		{"most live", "local", pair{count: 50, live: 40, ended: 10, whole: 10, segIn: 1000, in: 1e4}, Many},
		{"stranger", "remote", pair{count: 1, live: 1, segIn: 1000, in: 1e5}, Stranger},
		{"peer", "smc-r", pair{count: 1, live: 1, segIn: 1000, in: 1e5}, Remote},
	} {
		if got := tt.p.class(tt.where, 10); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if s := size(1000, 10); s == nil || *s != 100 {
		t.Errorf("size = %v", s)
	}
	if size(0, 0) != nil || size(1e6, 10) != nil {
		t.Error("a size where none can be seen")
	}
}

// TestGain bounds gains by the time that a busy program needs itself, where no row is about the program.
func TestGain(t *testing.T) {
	table := Shipped()
	many, redis := shipped[rowsOf[work{class: Many}]].Expected, shipped[rowsOf[work{server: "redis-server", class: Many}]].Expected
	nginx := shipped[rowsOf[work{server: "nginx", class: Few}]].Expected
	for _, tt := range []struct {
		name      string
		work      work
		loads     []load
		low, high float64 // of the expected gain
		bound     string
	}{
		{"no load", work{class: Many}, nil, many, many, ""},
		{"idle", work{class: Many}, []load{{0.1, 0.1}}, many, many, ""},
		{"kernel", work{class: Many}, []load{{0.02, 0.98}, {0.3, 0.1}}, many, many, ""},
		{"half", work{class: Many}, []load{{0.5, 0.5}}, 1.8, 1.9, "processor"},
		{"own work", work{class: Bulk}, []load{{0.9, 0.1}}, 1.05, 1.15, "processor"},
		{"short", work{class: Short}, []load{{0.9, 0.1}}, table.rows[work{class: Short}].Expected, 1, ""},
		{"a server with a row", work{server: "redis-server", class: Many}, []load{{0.3, 0.7}}, redis, redis, ""},
		{"the same, with more work", work{server: "redis-server", class: Many}, []load{{0.8, 0.2}}, 1.2, 1.3, "processor"},
		{"another server with a row", work{server: "nginx", class: Few}, []load{{0.3, 0.7}}, nginx, nginx, ""},
		{"a server without", work{server: "other", class: Many}, []load{{0.3, 0.7}}, 2.6, 2.8, "processor"},
		{"a server without a row for it", work{server: "nginx", class: Bulk}, nil, 3, 6, ""},
	} {
		g := table.gain(tt.work, tt.loads)
		if g == nil || g.Expected < tt.low || g.Expected > tt.high || g.Bound != tt.bound || g.Low > g.Expected || g.High < g.Expected {
			t.Errorf("%s: %+v, want %v to %v", tt.name, g, tt.low, tt.high)
		}
	}
	if g := table.gain(work{class: Stranger}, nil); g != nil {
		t.Errorf("of a stranger: %+v", g)
	}
}

// TestTable takes measured rows, and the shipped ones for others.
func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"schema":1,"benchmarks":[{"name":"run-iperf3","results":[{"transport":"tcp","median":2,"min":1,"max":4},
		{"transport":"run","median":8,"min":6,"max":10}]},{"name":"run-redis","results":[]},
		{"name":"run-oneshot-apache","results":[{"transport":"tcp"},{"transport":"run","median":1,"min":1,"max":1}]}]}`)
	table, err := ReadTable(file)
	if got, want := table.rows[work{class: Bulk}], (Gain{1.5, 4, 10, "run-iperf3", ""}); err != nil || got != want || table.Source != file {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, class := range []Class{Many, Short} {
		if table.rows[work{class: class}] != Shipped().rows[work{class: class}] {
			t.Errorf("%s: %+v", class, table.rows[work{class: class}])
		}
	}
	for text, want := range map[string]string{"x": "is no output of", "{}": "has no row that is of use", `{"benchmarks":[{"name":"run-redis"}]}`: "has no row"} {
		write(text)
		if _, err := ReadTable(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ReadTable(file + "x"); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}
