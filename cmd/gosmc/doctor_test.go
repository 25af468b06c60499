package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/doctor"
	"github.com/gosmc/smc/internal/survey"
)

// doctorOf runs 'gosmc doctor' for the run directory of an environment.
func doctorOf(t *testing.T, environ []string, args ...string) doctorReport {
	t.Helper()
	dir := ""
	for _, v := range environ {
		if value, ok := strings.CutPrefix(v, "GOSMC_DIR="); ok {
			dir = value
		}
	}
	cmd := exec.Command(os.Args[0], append([]string{"doctor", "--json", "--dir", dir}, args...)...)
	cmd.Env = environ
	out, err := cmd.Output()
	var r doctorReport
	if e := json.Unmarshal(out, &r); e != nil {
		t.Fatalf("gosmc doctor %q: %v, %v, %s", args, err, e, out)
	}
	status := exitOK
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		status = e.ExitCode()
	}
	if want := map[bool]int{true: exitOK, false: exitFailure}[r.Healthy]; status != want {
		t.Errorf("gosmc doctor %q = %d, want %d with %+v", args, status, want, r)
	}
	return r
}

// bad returns the findings that are no ok, as "check: text -> fix".
func (r *doctorReport) bad() (list []string) {
	for _, f := range r.Findings {
		if f.Level != doctor.OK {
			list = append(list, f.Check+": "+f.Text+" -> "+f.Fix)
		}
	}
	return list
}

// wantOnly checks that a report has one warning or failure, with some words in it.
func wantOnly(t *testing.T, r doctorReport, words ...string) {
	t.Helper()
	bad := r.bad()
	if len(bad) != 1 {
		t.Errorf("findings %q of %+v, want one with %q", bad, r, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(bad[0], w) {
			t.Errorf("finding %q, want %q in it", bad[0], w)
		}
	}
}

// A healthy machine has no finding but ok; a fault in the settings is named, with its remedy.
func TestDoctorSettings(t *testing.T) {
	environ := runEnviron(t)
	if r := doctorOf(t, environ); !r.Healthy || len(r.bad()) > 0 || len(r.Findings) < 2 {
		t.Errorf("on a healthy machine the findings are %+v", r)
	}
	file := filepath.Join(t.TempDir(), "gosmc.conf")
	for _, tt := range []struct {
		text, environ string
		want          []string
	}{
		{"frobnicate yes\n", "", []string{"configuration", "frobnicate", "gosmc policy"}},
		{"smc off\n", "", []string{"off", "SMC is switched off (smc: ", "sudo gosmc on"}},
		{"", config.EnvDisabled + "=1", []string{"off", "$GOSMC_DISABLED", "-> start the program without GOSMC_DISABLED"}},
	} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		wantOnly(t, doctorOf(t, append(slices.Clone(environ), config.EnvFile+"="+file, tt.environ)), tt.want...)
	}
	r := doctorOf(t, append(slices.Clone(environ), "GOSMC_DIR=/nonexistent/x"))
	if bad := r.bad(); len(bad) == 0 || !strings.Contains(strings.Join(bad, "\n"), "Set GOSMC_DIR to a directory that belongs to this user") {
		t.Errorf("without a run directory the findings are %q", bad)
	}
}

// An exception of users for a name that nobody has is named.
func TestDoctorUnknownUser(t *testing.T) {
	environ := append(runEnviron(t), "GOSMC_USERS=any,!rooot")
	wantOnly(t, doctorOf(t, environ), "policy", `no user has the name "rooot"`, "$GOSMC_USERS", "gosmc config check")
}

// TestDoctorLeft has a program that was left to TCP, and has ended: that is no fault any more.
func TestDoctorLeft(t *testing.T) {
	const static = "/sbin/ldconfig" // of Debian
	if _, err := os.Stat(static); err != nil {
		t.Skip("needs a static program")
	}
	environ := runEnviron(t)
	if out, err := runCommand(t, environ, static, "--version").CombinedOutput(); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	if r := doctorOf(t, environ); len(r.bad()) != 0 {
		t.Errorf("the findings are %+v", r)
	}
}

// A run directory that was switched off is named, whatever is configured.
func TestDoctorOff(t *testing.T) {
	environ := runEnviron(t)
	dir := strings.TrimPrefix(environ[len(environ)-1], "GOSMC_DIR=")
	if out, err := runCommand(t, environ, "true").CombinedOutput(); err != nil { // which makes the directory one that is used
		t.Fatalf("%v, %s", err, out)
	}
	if got := survey.Switch(dir, true); len(got) != 1 || got[0].Error != "" || !got[0].Changed {
		t.Fatalf("switching off: %+v", got)
	}
	r := doctorOf(t, environ)
	if bad := r.bad(); len(bad) == 0 || !strings.Contains(bad[0], "The run directory "+dir+" is switched off") || !strings.HasSuffix(bad[0], "-> sudo gosmc on") {
		t.Errorf("the findings are %+v", r)
	}
	if all := strings.Join(r.bad(), "\n"); strings.Contains(all, "kill -CONT") {
		t.Errorf("of a directory that is switched off, doctor says that a process is stopped: %s", all)
	}
	ss := exec.Command(os.Args[0], "ss", "--dir", dir)
	ss.Env = environ
	if out, _ := ss.CombinedOutput(); !strings.Contains(string(out), "'gosmc on' switches it on") {
		t.Errorf("gosmc ss of a directory that is switched off prints %s", out)
	}
	if got := survey.Switch(dir, false); len(got) != 1 || got[0].Error != "" {
		t.Errorf("switching on: %+v", got)
	}
}

// A client that was not started by 'gosmc run', and a supervisor that was killed, are named with
// their processes; so is a server by its address, and a program by its process ID.
func TestDoctorSupervisor(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	environ := runEnviron(t)
	server := startTalker(t, runCommand(t, environ, python, "-c", echoProgram))
	line, err := server.out.ReadString('\n')
	port, socket, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok {
		t.Fatalf("the server says %q, %v", line, err)
	}
	address, serverPID := "127.0.0.1:"+port, strconv.Itoa(server.cmd.Process.Pid)
	client := startTalker(t, runCommand(t, environ, python, "-c", echoProgram, port))
	client.exchange(t, "over a pair")
	for _, args := range [][]string{nil, {address}, {serverPID}} {
		if r := doctorOf(t, environ, args...); !r.Healthy {
			t.Errorf("gosmc doctor %q with a connection outside TCP: %q", args, r.bad())
		}
	}

	bare := exec.Command(python, "-c", echoProgram, port)
	bare.Env = environ
	other := startTalker(t, bare)
	other.exchange(t, "over TCP")
	for _, args := range [][]string{nil, {address}, {serverPID}} {
		wantOnly(t, doctorOf(t, environ, args...), "connections: Port "+port, "1 connection stays TCP, PEER_NO_SMC", "The client, "+strconv.Itoa(bare.Process.Pid)+"/", "gosmc run")
	}
	wantOnly(t, doctorOf(t, environ, strconv.Itoa(bare.Process.Pid)), "program: "+strconv.Itoa(bare.Process.Pid), "was not started by 'gosmc run'")

	supervisor := supervisorOf(t, socket)
	if err := unix.Kill(supervisor, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r := doctorOf(t, environ, address)
	if bad := strings.Join(r.bad(), "\n"); !strings.Contains(bad, "its supervisor, process "+strconv.Itoa(supervisor)+", is stopped") ||
		!strings.Contains(bad, "-> let it go on: 'kill -CONT'") {
		t.Errorf("with a supervisor that is stopped the findings are %q", bad)
	}
	if err := unix.Kill(supervisor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r = doctorOf(t, environ)
	if bad := strings.Join(r.bad(), "\n"); !strings.Contains(bad, "supervisor: "+serverPID+" ") || !strings.Contains(bad, "its supervisor has ended") {
		t.Errorf("with a supervisor that was killed the findings are %q", bad)
	}
	r = doctorOf(t, environ, address)
	if bad := strings.Join(r.bad(), "\n"); !strings.Contains(bad, "its supervisor has ended") || !strings.Contains(bad, "-> start the server again") {
		t.Errorf("of its server they are %q", bad)
	}
}

// A program in another mount namespace, as in a container, has its supervisor at a path that leads
// nowhere here: it is looked for in the root of the program.
func TestDoctorElsewhere(t *testing.T) {
	python, err := exec.LookPath("python3")
	if os.Geteuid() != 0 || err != nil {
		t.Skip("needs root and python3")
	}
	environ := runEnviron(t)
	dir := strings.TrimPrefix(environ[len(environ)-1], "GOSMC_DIR=")
	cmd := runCommand(t, environ, python, "-c", echoProgram)
	inside := exec.Command("unshare", append([]string{"-m", "sh", "-c", `mount -t tmpfs -o mode=0700 tmpfs "$0" && exec "$@"`,
		dir}, cmd.Args...)...)
	inside.Env = cmd.Env
	server := startTalker(t, inside)
	line, err := server.out.ReadString('\n')
	port, _, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok {
		t.Fatalf("the server says %q, %v", line, err)
	}
	for _, args := range [][]string{nil, {strconv.Itoa(inside.Process.Pid)}} {
		r := doctorOf(t, environ, args...)
		if bad := strings.Join(r.bad(), "\n"); strings.Contains(bad, "supervisor has ended") {
			t.Errorf("gosmc doctor %q with a program in another mount namespace: %s", args, bad)
		}
		if !slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return strings.HasPrefix(f.Text, "1 program of 'gosmc run'") }) {
			t.Errorf("gosmc doctor %q does not see the program: %+v", args, r)
		}
	}
	wantOnly(t, doctorOf(t, environ, "127.0.0.1:"+port), "server: 127.0.0.1:"+port, "its run directory is", "-> start both with the same GOSMC_DIR")
}

// Servers that nobody moves are named by the step that decides.
func TestDoctorServer(t *testing.T) {
	environ := runEnviron(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wantOnly(t, doctorOf(t, environ, l.Addr().String()), "server: "+l.Addr().String(), "it is a Go program", "-> a Go program: 'gosmc go build'")
	wantOnly(t, doctorOf(t, environ, "127.0.0.1:1"), "nobody listens", "start the server")
	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"nowhere"}, exitFailure, "no process of the service nowhere.service runs here"},
		{[]string{"no:where:1"}, exitUsage, "want HOST:PORT"},
		{[]string{"--serve", "7000"}, exitUsage, "want HOST:PORT or :PORT"},
		{[]string{"1", "2"}, exitUsage, `takes one HOST:PORT, PID or SERVICE`}, {[]string{"999999999"}, exitFailure, "there is no process"}, {[]string{"-1"}, exitUsage, "no flag -1"},
	} {
		if got := gosmc(t, "", append([]string{"doctor"}, tt.args...)...); got.code != tt.code || !strings.Contains(got.stderr, tt.text) {
			t.Errorf("gosmc doctor %q = %d, %q; want %d, %q", tt.args, got.code, got.stderr, tt.code, tt.text)
		}
	}
}

// --fix prints the remedies alone.
func TestDoctorFix(t *testing.T) {
	r := doctorReport{Report: &doctor.Report{Findings: []doctor.Finding{
		{Level: doctor.OK, Check: "a", Text: "fine", Fix: "not this"}, {Level: doctor.Warn, Check: "b", Text: "old", Fix: "restart"},
		{Level: doctor.Fail, Check: "c", Text: "broken\x1b", Fix: "sudo gosmc on"}, {Level: doctor.Warn, Check: "d", Text: "?"},
	}}}
	var text, fixes strings.Builder
	if err := errors.Join(r.Write(&text), r.WriteFixes(&fixes)); err != nil {
		t.Fatal(err)
	}
	if want := "ok    fine\n      -> not this\nWARN  old\n      -> restart\nFAIL  broken?\n      -> sudo gosmc on\nWARN  ?\n"; text.String() != want {
		t.Errorf("findings are printed as\n%s\nwant\n%s", text.String(), want)
	}
	if want := "restart\nsudo gosmc on\n"; fixes.String() != want {
		t.Errorf("--fix prints %q, want %q", fixes.String(), want)
	}
	if err := r.Verdict(); err == nil || err.Error() != "2 warnings, 1 failure" {
		t.Errorf("verdict %v", err)
	}
}

// TestDoctorMissing checks the remedy for a run directory that is not there: nobody has stopped.
func TestDoctorMissing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	got := gosmc(t, "", "doctor", "--dir", none)
	if got.code != exitFailure || strings.Contains(got.stdout, "ss -xlp") ||
		!strings.Contains(got.stdout, "-> name the directory that programs use") {
		t.Errorf("doctor --dir of no directory = %+v", got)
	}
}
