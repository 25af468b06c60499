package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func names(set map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(set)), " ") }

// A test that is running when the process ends has failed, but not a test that waits for its turn
// or for a subtest.
func TestTally(t *testing.T) {
	const events = `
		run A, output A, pass A, run B, run B/1, pause B/1, run B/2, pause B/2, run C, skip C,
		run D, pause D, cont B/1, fail B/1, cont B/2`
	for _, tt := range []struct {
		exit   int
		hangs  bool
		failed string
		hung   string
		over   bool
	}{
		{exit: 2, failed: "B/1 B/2"},
		{exit: 2, hangs: true, failed: "B/1 B/2", hung: "B/2"},
		{exit: 1, failed: "B/1 B/2"}, // somebody called os.Exit
	} {
		o := newOutcome()
		tally := newTally(&o)
		for e := range strings.SplitSeq(events, ",") {
			action, test, _ := strings.Cut(strings.TrimSpace(e), " ")
			tally.line([]byte(`{"Action":"` + action + `","Test":"` + test + `","Output":"x"}`))
		}
		if tt.hangs {
			tally.hang()
		}
		tally.end(tt.exit)
		if names(o.passed) != "A" || names(o.skipped) != "C" || names(o.failed) != tt.failed || names(o.hung) != tt.hung || o.over != tt.over {
			t.Errorf("exit status %d: passed %s, skipped %s, failed %s, hung %s, over %t; want A, C, %s, %s, %t",
				tt.exit, names(o.passed), names(o.skipped), names(o.failed), names(o.hung), o.over, tt.failed, tt.hung, tt.over)
		}
		if got := names(o.finished()); got != "A B C" { // D has its turn in the next process
			t.Errorf("finished = %s, want A B C", got)
		}
	}
}

// A process that fails after its last test does not pass for a good one.
func TestTallyAfterTests(t *testing.T) {
	for exit, want := range []bool{false, true, true} {
		o := newOutcome()
		tally := newTally(&o)
		for _, action := range []string{"run", "pass"} {
			tally.line([]byte(`{"Action":"` + action + `","Test":"A"}`))
		}
		tally.end(exit)
		if o.failed[afterTests] != want {
			t.Errorf("exit status %d: failed = %s, want it to be %q: %t", exit, names(o.failed), afterTests, want)
		}
	}
}

// Tests that end the process do not keep those behind them from running.
func TestRunAll(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/x\n",
		"x_test.go": `package x
import ("os"; "testing")
func TestMain(m *testing.M) { code := m.Run(); if os.Getenv("AFTER") != "" { code = 1 }; os.Exit(code) }
func TestA(t *testing.T) {}
func TestB(t *testing.T) { panic("B") }
func TestC(t *testing.T) { t.Run("1", func(t *testing.T) { t.Error("C") }) }
func TestD(t *testing.T) { t.Run("1", func(t *testing.T) { go panic("D"); select {} }) }
func TestE(t *testing.T) {}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := &runner{work: dir, converter: filepath.Join(dir, "test2json")}
	file := filepath.Join(dir, "x.test")
	for _, args := range [][]string{{"build", "-o", r.converter, "cmd/test2json"}, {"test", "-c", "-o", file}} {
		if _, err := run(t.Context(), dir, "go", args...); err != nil {
			t.Fatal(err)
		}
	}
	o, err := r.runAll(t.Context(), program{file: file, dir: dir, env: os.Environ()}, suite{}, true)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(o.passed), "TestA TestE"; got != want {
		t.Errorf("passed %s, want %s", got, want)
	}
	if got, want := names(o.failed), "TestB TestC TestC/1 TestD/1"; got != want || !o.over {
		t.Errorf("failed %s, over %t, want %s, true", got, o.over, want)
	}
	if !strings.Contains(o.output["TestC/1"], "x_test.go:6: C") {
		t.Errorf("the output of TestC/1 is %q", o.output["TestC/1"])
	}
	ok, err := r.again(t.Context(), program{file: file, dir: dir, env: os.Environ()}, suite{}, "TestC/1", true, 2)
	if ok || err != nil {
		t.Errorf("again(TestC/1) = %t, %v, want false", ok, err)
	}
	ok, err = r.again(t.Context(), program{file: file, dir: dir, env: append(os.Environ(), "AFTER=1")}, suite{}, "TestA", true, 1)
	if !ok || err != nil {
		t.Errorf("again(TestA) where something is wrong after the tests = %t, %v, want true", ok, err)
	}
}

// An expected failure is not expected of a test that complains of something else, too.
func TestExpected(t *testing.T) {
	const usual = "=== RUN\n    sendfile_test.go:140: internal/poll.SendFile was not called, want it to be\n"
	const pipe = "    splice_linux_test.go:281: expected poll.Splice to be called\n"
	for _, tt := range []struct{ pkg, name, output, want string }{
		{"net", "TestSendfile", usual, "TestSendfile"},
		{"net", "TestSendfile", usual + "    sendfile_test.go:170: retrieved data hash did not match\n", ""},
		{"net", "TestSendfile", "panic: no\n", ""},
		{"net/http", "TestSendfile", usual, ""},
		{"net", "TestSplice/tcp-to-tcp/readerAtEOF", pipe, "TestSplice/tcp-to-tcp"},
		{"net", "TestSplice/unix-to-file/simple", pipe, ""},
		{"net/smtp", "TestSendfile", usual, ""},
	} {
		if got := expectedAs(tt.pkg, tt.name, tt.output); got != tt.want {
			t.Errorf("expectedAs(%s, %s, %q) = %q, want %q", tt.pkg, tt.name, tt.output, got, tt.want)
		}
	}
	for pkg, list := range expected {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.pkg == pkg }) {
			t.Errorf("differences are expected of %s, which is not run", pkg)
		}
		for name, d := range list {
			if d.why == "" || d.complaint == "" {
				t.Errorf("%s %s is expected without a reason", pkg, name)
			}
		}
	}
}
