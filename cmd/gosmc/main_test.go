package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/usage"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// childOfTest tells the test program that it is to be gosmc: demo and bench start
// themselves again, and here they are the test program.
const childOfTest = "GOSMC_CHILD_OF_TEST"

func TestMain(m *testing.M) {
	smctest.Apart()
	switch os.Getenv(childOfTest) {
	case "":
	case "main":
		main() // with its signals
	default:
		os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	smctest.MainChildren(m, childOfTest)
}

type outcome struct {
	code           int
	stdout, stderr string
}

// gosmc runs one command line.
func gosmc(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", name, diff)
	}
}

func indentJSON(t *testing.T, v any) string {
	t.Helper()
	var b strings.Builder
	if err := writeJSON(&b, v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args   string
		code   int
		stderr string // part of it
	}{
		{"version", exitOK, ""},
		{"--help", exitOK, ""},
		{"", exitOK, ""},
		{"bench --list", exitOK, ""},
		{"bench -list -only pod,cpu", exitOK, ""},
		{"bench -list -only=frob", exitUsage, `no benchmark "frob"`},
		{"bench -frob", exitUsage, "bench has no flag"},
		{"frobnicate", exitUsage, `gosmc: unknown verb "frobnicate"`},
		{"lisen", exitUsage, `did you mean "listen"?`},
		{"list", exitUsage, `did you mean "ss"?`},
		{"status", exitUsage, `did you mean "info"?`},
		{"smc_run", exitUsage, `did you mean "run"?`},
		{"tshark", exitUsage, `did you mean "dump"?`},
		{"--frob", exitUsage, "gosmc has no flag --frob"},
		{"ss --js", exitUsage, "ss has no flag --js; did you mean --json?"},
		{"ss --lisening", exitUsage, "did you mean --listening?"},
		{"ss -Wq", exitUsage, "ss has no flag -q"},
		{"ss --dir", exitUsage, "--dir needs a value: DIR"},
		{"ss --json=maybe", exitUsage, `--json "maybe": want true or false`},
		{"frobnicate --help", exitUsage, `unknown verb "frobnicate"`},
		{"ss --port 70000", exitUsage, "want a whole number from 0 to 65535"},
		{"agent --metrics=", exitUsage, "--metrics: want HOST:PORT"},
		{"agent --status --metrics :0", exitUsage, "--metrics: want HOST:PORT"},
		{"agent --introduce=", exitUsage, "--introduce: want any"},
		{"agent --no-option --no-introduce --no-port", exitUsage, "nothing to do"},
		{"help frobnicate", exitUsage, `unknown verb "frobnicate"`},
		{"help ss x", exitUsage, `unknown verb "ss x"`},
		{"completion frobnicate", exitUsage, `completion takes no arguments, but got "frobnicate"`},
		{"completion bash x", exitUsage, `completion bash takes no arguments, but got "x"`},
		{"--version", exitOK, ""},
		{"help ss", exitOK, ""},
		{"version extra", exitUsage, `version takes no arguments, but got "extra"`},
		{"connect", exitUsage, "connect needs an address, HOST:PORT"},
		{"connect a b c", exitUsage, "connect takes one address, HOST:PORT or HOST PORT, but got 3 arguments"},
		{"connect 127.0.0.1 0", exitFailure, "gosmc: "},
		{"-v", exitOK, ""},
		{"-V", exitOK, ""},
		{"dump -Y smc x.pcap", exitUsage, "tshark -r FILE -Y smc"},
		{"dump x.pcap port 5000", exitUsage, `there is no file "port"; did you mean --port 5000?`},
		{"dump host", exitUsage, `there is no file "host"; did you mean --host ADDRESS?`},
		{"dump -r testdata/ss.txt", exitFailure, "packet 1, offset 0: not a capture file"},
		{"dump -D -r x.pcap", exitUsage, "-D shows interfaces"},
		{"connect nowhere", exitUsage, `address "nowhere": want HOST:PORT`},
		{"connect ::1:80", exitUsage, "want HOST:PORT"},
		{"connect --require tcp 127.0.0.1:1", exitUsage, `--require "tcp": want smc, smc-d or smc-r`},
		{"connect --timeout soon 127.0.0.1:1", exitUsage, `--timeout "soon": want a time such as`},
		{"connect --source x 127.0.0.1:1", exitUsage, `--source "x": want an IP address`},
		{"connect --ueid small 127.0.0.1:1", exitUsage, `--ueid: UEID "small"`},
		{"connect --peer host 127.0.0.1:1", exitUsage, `--peer: "host" is no address`},
		{"listen --device eth0 127.0.0.1:0", exitUsage, `--device: "eth0" is no address`},
		{"connect 127.0.0.1:0", exitFailure, "gosmc: "},
		{"listen", exitUsage, "listen needs an address"},
		{"listen --echo --discard 127.0.0.1:0", exitUsage, "exclude each other"},
		{"listen 203.0.113.1:0", exitFailure, "gosmc: "},
		{"ss -a -l", exitUsage, "exclude each other"},
		{"ss --columns mode,x", exitUsage, `column "x": want state, recv-q,`},
		{"ss --columns=,mode", exitUsage, `column "": want state, recv-q,`},
		{"ss --sort colour", exitUsage, `column "colour": want state, recv-q,`},
		{"ss --sort mode --json", exitUsage, "they exclude --summary and --json"},
		{"ss x", exitUsage, `filter "x": want state, src, dst`},
		{"man ss", exitUsage, "a directory with the name is ./ss"},
		{"connect -w -1 127.0.0.1:1", exitUsage, `--timeout "-1": want a time`},
		{"stats --watch 0.01", exitUsage, "want seconds, from 0.1"},
		{"stats --watch -1", exitUsage, "want a time"},
		{"stats --watch x", exitUsage, `--watch "x": want a time`},
		{"demo --size nothing", exitUsage, `--size "nothing": want a number and`},
		{"demo --size 0", exitUsage, "at least 1 byte"},
		{"demo --size 900GiB", exitFailure, "use a smaller --size"},
		{`bench --only "x`, exitUsage, `--only "\"x": want words, separated by commas`},
		{"bench --only=", exitUsage, "--only: want the names of benchmarks"},
		{"bench --only pingpon", exitUsage, `no benchmark "pingpon"; there are: pingpong-64,`},
		{"dump", exitUsage, "nothing to read"},
		{"dump -i eth0 x.pcap", exitUsage, "exclude each other"},
		{"dump --flow --stats x.pcap", exitUsage, "only one of"},
		{"dump --flow --json x.pcap", exitUsage, "only one of"},
		{"dump --html - -v x.pcap", exitUsage, "only one of"},
		{"dump --ascii x.pcap", exitUsage, "needs --flow"},
		{"dump --promiscuous x.pcap", exitUsage, "needs -i"},
		{"dump - -", exitUsage, "can be read once"},
		{"dump --addr nowhere x.pcap", exitUsage, `address "nowhere"`},
		{"dump --host 10.0.0.0/33 x.pcap", exitUsage, `address "10.0.0.0/33"`},
		{"dump --port 65536 x.pcap", exitUsage, `port "65536"`},
		{"dump --type hello x.pcap", exitUsage, `message type "hello": want one of option,`},
		{"dump --conn 0 x.pcap", exitUsage, "numbered from 1"},
		{"dump --linkgroup -1 x.pcap", exitUsage, "numbered from 1"},
		{"dump --time late x.pcap", exitUsage, "want relative, absolute, delta, none"},
		{"dump -c -1 x.pcap", exitUsage, `--count "-1": want a whole number, 0 or more`},
		{"dump --conn x x.pcap", exitUsage, `--conn "x": want whole numbers`},
		{"dump no-such-file.pcap", exitFailure, "no-such-file.pcap"},
		{"dump testdata/ss.txt", exitFailure, "packet 1, offset 0: not a capture file"},
		{"dump -i no-such-if", exitFailure, "there is no interface no-such-if"},
		{"bench-worker", exitFailure, "start it themselves"},
		{"bench-netns", exitFailure, "start it themselves"},
		{"demo-worker", exitFailure, "start it themselves"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			got := gosmc(t, "", strings.Fields(tt.args)...)
			if got.code != tt.code || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("gosmc %s = %d, stderr %q, want %d and %q", tt.args, got.code, got.stderr, tt.code, tt.stderr)
			}
			if tt.code == exitUsage && !strings.Contains(got.stderr, "--help") {
				t.Errorf("gosmc %s: stderr %q, want a pointer to --help", tt.args, got.stderr)
			}
			if tt.code != exitOK && got.stdout != "" {
				t.Errorf("gosmc %s wrote %q to standard output, want nothing", tt.args, got.stdout)
			}
		})
	}
}

// TestReady has a command line without a verb say whether this machine is ready, and the next step.
func TestReady(t *testing.T) {
	ownConfig(t)
	for _, tt := range []struct{ dir, verdict, next string }{
		{t.TempDir(), "can leave TCP", "start a server and its clients by 'gosmc run PROGRAM'"},
		{"/nonexistent/x", "stay with TCP", "'gosmc doctor' names the remedy"},
	} {
		t.Setenv("GOSMC_DIR", tt.dir)
		got := gosmc(t, "")
		first, rest, _ := strings.Cut(got.stdout, "\n\n")
		said := strings.Contains(first, tt.verdict) && strings.Contains(first, "\nNext: "+tt.next)
		if got.code != exitOK || !said || !strings.Contains(rest, "applicable") {
			t.Errorf("gosmc in %s = %d, %q", tt.dir, got.code, got.stdout)
		}
	}
}

// Output that cannot be written is a failure, also of help.
func TestFullOutput(t *testing.T) {
	for _, args := range []string{"--help", "", "ss --help", "help ss", "--version", "version", "version --json", "bench --list", "info", "info --json", "ss", "ss --json", "stats", "stats --json", "completion bash"} {
		for _, tt := range []struct {
			err  error
			code int
		}{{unix.ENOSPC, exitFailure}, {unix.EPIPE, exitOK}} {
			if tt.code == exitOK && !strings.Contains(args, "help") {
				continue // the others return Write's result, and a pipe without a reader kills a process
			}
			var stderr bytes.Buffer
			code := run(t.Context(), strings.Fields(args), strings.NewReader(""), failingWriter{tt.err}, &stderr)
			if want := "gosmc: " + tt.err.Error() + "\nNext: "; code != tt.code || code != exitOK && !strings.HasPrefix(stderr.String(), want) {
				t.Errorf("gosmc %s, where nothing can be written: %v = %d, %q, want %d", args, tt.err, code, stderr.String(), tt.code)
			}
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// Every verb explains itself, with examples, and speaks JSON.
func TestVerbs(t *testing.T) {
	var verbs []string
	for _, cmd := range newRootCommand().Commands() {
		if cmd.Hidden {
			continue
		}
		verbs = append(verbs, cmd.Name())
		t.Run(cmd.Name(), func(t *testing.T) {
			if cmd.Short == "" || cmd.Example == "" {
				t.Errorf("%s has short help %q and examples %q, want both", cmd.Name(), cmd.Short, cmd.Example)
			}
			if cmd.Flags().Lookup("json") == nil && cmd.Name() != "run" && cmd.Name() != "go" { // which print nothing
				t.Errorf("%s has no --json", cmd.Name())
			}
			got := gosmc(t, "", cmd.Name(), "--help")
			if got.code != exitOK || !strings.Contains(got.stdout, "Examples:") {
				t.Errorf("gosmc %s --help = %d, %q, want examples", cmd.Name(), got.code, got.stdout)
			}
		})
	}
	slices.Sort(verbs)
	if want := []string{"agent", "applicable", "bench", "config", "connect", "demo", "device", "doctor", "dump", "go", "info", "link", "linkgroup", "listen", "metrics", "off", "on", "pnet", "policy", "reason", "run", "seid", "service", "ss", "stats", "top", "ueid", "version"}; !slices.Equal(verbs, want) {
		t.Errorf("verbs = %v, want %v", verbs, want)
	}
}

// The help of gosmc has every verb, in a group.
func TestVerbGroups(t *testing.T) {
	help := gosmc(t, "", "--help").stdout
	for _, cmd := range newRootCommand().Commands() {
		if !cmd.Hidden && (cmd.GroupID == "" || !strings.Contains(help, "\n  "+cmd.Name()+" ")) {
			t.Errorf("%s is in the group %q, or not in the help", cmd.Name(), cmd.GroupID)
		}
	}
	for _, title := range []string{"Use:", "Look:", "Set:", "Serve:", "Other:"} {
		if !strings.Contains(help, "\n"+title+"\n") {
			t.Errorf("help has no %s", title)
		}
	}
}

func TestCompletion(t *testing.T) {
	if err := os.WriteFile(ownConfig(t), []byte("ueid GOSMC.FILE\nlisten-port 8000-8999\npnet NET1 eth9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := gosmc(t, "", "completion", shell); got.code != exitOK || !strings.Contains(got.stdout, "gosmc") {
			t.Errorf("gosmc completion %s = %d and %d bytes, want a script", shell, got.code, len(got.stdout))
		}
	}
	for _, tt := range []struct{ args, want string }{
		{"connect --require ", "smc-d\n"},
		{"bench --only ", "bulk-64k\n"},
		{"dump --type ", "confirm-link\n"},
		{"dump --time ", "absolute\n"},
		{"dump -i ", "any\n"},
		{"li", "listen\t"},
		{"help st", "stats\t"},
		{"ss --dir ", ":16\n"}, // directories
		{"dump --all --dir ", ":16\n"},
		{"dump --count ", ":4\n"}, // no files
		{"dump --write ", ":0\n"}, // files
		{"run --smc ", "off\n"},
		{"run --listen-port ", "none\n"},
		{"run --explain ", ":4\n"},
		{"run ", ":0\n"},
		{"policy add ", "listen-port\n"},
		{"policy add s", "smc\n"},
		{"policy add smc ", "off\n"},
		{"policy add listen-address ", "any\n"},
		{"policy del listen-port ", "8000-8999\n"},
		{"ueid del ", "GOSMC.FILE\n"},
		{"pnet del ", "NET1\n"},
		{"pnet add NET1 ", "lo\n"},
	} {
		words := append([]string{cobra.ShellCompRequestCmd}, strings.Split(tt.args, " ")...)
		if got := gosmc(t, "", words...); got.code != exitOK || !strings.Contains(got.stdout, tt.want) {
			t.Errorf("completion of %q = %d, %q, want %q in it", tt.args, got.code, got.stdout, tt.want)
		}
	}
}

func TestVersion(t *testing.T) {
	got := gosmc(t, "", "version")
	for _, flag := range []string{"--version", "-v", "-V"} {
		if short := gosmc(t, "", flag); short != got {
			t.Errorf("gosmc %s = %+v, want %+v", flag, short, got)
		}
	}
	if !strings.HasPrefix(got.stdout, "gosmc ") || strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("gosmc version = %q, want one line", got.stdout)
	}
	var v versionReport
	if err := json.Unmarshal([]byte(gosmc(t, "", "version", "--json").stdout), &v); err != nil || v.Schema != jsonSchema || v.Version == "" || v.Go == "" {
		t.Errorf("gosmc version --json = %+v, %v", v, err)
	}
}

// An interrupted verb ends with an error that says so.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	code := run(ctx, []string{"demo", "--size", "1MiB"}, strings.NewReader(""), io.Discard, &stderr)
	if code != exitFailure || stderr.String() != "gosmc: interrupted\n" {
		t.Errorf("interrupted demo = %d, %q, want 1 and gosmc: interrupted", code, stderr.String())
	}
}

// TestVerbFirst has flags before their verb mean the same as behind it. Words that are not the verb's
// flags stay, and the error names the order.
func TestVerbFirst(t *testing.T) {
	root := newRootCommand()
	for args, want := range map[string]string{
		"-json ss":                 "ss -json",
		"--json ss -a":             "ss --json -a",
		"--dir ss ss":              "ss --dir ss", // a value that is like a verb
		"--dir /tmp -a ss state x": "ss --dir /tmp -a state x",
		"--dir=/tmp ss":            "ss --dir=/tmp",
		"-tnp ss":                  "ss -tnp",
		"--json config show":       "config show --json",
		"--require run ss --frob":  "run --require ss --frob",
		"-n 3 top":                 "top -n 3",
		"ss --json":                "ss --json",
		"--frob ss":                "--frob ss",
		"-json go build":           "-json go build", // whose flags are another program's
		"-v ss":                    "-v ss",
		"--dir ss":                 "--dir ss",
		"- ss":                     "- ss",
		"--json":                   "--json",
		"":                         "",
	} {
		if got := strings.Join(usage.VerbFirst(root, strings.Fields(args)), " "); got != want {
			t.Errorf("gosmc %s is read as %q, want %q", args, got, want)
		}
	}
	if got := gosmc(t, "", "-json", "reason", "0x03010000"); got.code != exitOK || !strings.HasPrefix(got.stdout, "{") {
		t.Errorf("gosmc -json reason = %+v", got)
	}
	const order = "flags of a verb come behind it: gosmc VERB [flags]"
	if got := gosmc(t, "", "netstat", "-tlnp"); got.code != exitUsage || !strings.Contains(got.stderr, `unknown verb "netstat"`) {
		t.Errorf("gosmc netstat -tlnp = %+v", got)
	}
	if got := gosmc(t, "", "--frob", "ss"); got.code != exitUsage || !strings.Contains(got.stderr, order) {
		t.Errorf("gosmc --frob ss = %+v, want %q", got, order)
	}
}
