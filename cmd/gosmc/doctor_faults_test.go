package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/doctor"
)

// A fault is a fault that a test injects, and the finding that has to name it.
type fault struct {
	name   string
	root   bool // only root can inject it
	python bool // it takes a server in Python under 'gosmc run'
	// inject makes the fault, and changes the environment and the arguments of doctor.
	inject func(t *testing.T, f *faulty)
	want   []string // parts of the finding: "check: text -> remedy"
	more   bool     // other findings may follow from the fault, after its own
}

// A faulty machine is an environment in which doctor is to find a fault.
type faulty struct {
	dir     string // run directory
	environ []string
	prefix  []string // a command that starts doctor
	args    []string
}

// configure has doctor, and programs that start later, read a configuration file.
func (f *faulty) configure(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gosmc.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.environ = append(f.environ, config.EnvFile+"="+file)
}

// serve starts a server under 'gosmc run' with an environment, which may end with a user's number.
func (f *faulty) serve(t *testing.T, environ []string, uid uint32) (address string, server *talker) {
	t.Helper()
	cmd := runCommand(t, environ, "python3", "-c", echoProgram)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Dir, cmd.Path = "/", copyForAll(t)
	}
	server = startTalker(t, cmd)
	line, err := server.out.ReadString('\n')
	port, _, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok {
		t.Fatalf("the server says %q, %v", line, err)
	}
	return "127.0.0.1:" + port, server
}

// doctor runs 'gosmc doctor --json' and returns its report.
func (f *faulty) doctor(t *testing.T) doctorReport {
	t.Helper()
	line := append(slices.Clone(f.prefix), os.Args[0], "doctor", "--json", "--dir", f.dir)
	line = append(line, f.args...)
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Env = f.environ
	out, err := cmd.Output()
	var r doctorReport
	if e := json.Unmarshal(out, &r); e != nil {
		t.Fatalf("%q: %v, %v, %s", line, err, e, out)
	}
	return r
}

// faults are the faults of one machine that other tests of doctor do not inject.
var faults = []fault{
	{name: "word without meaning", inject: func(t *testing.T, f *faulty) { f.configure(t, "smc maybe\n") },
		want: []string{"configuration: ", "maybe", "-> edit "}},
	{name: "bad UEID", inject: func(t *testing.T, f *faulty) { f.configure(t, "ueid not_an_id\n") },
		want: []string{"configuration: ", "not_an_id", "-> edit "}, more: true},
	{name: "bad port in the policy", inject: func(t *testing.T, f *faulty) { f.configure(t, "listen-port 99999\n") },
		want: []string{"configuration: ", "99999", "-> edit "}},
	{name: "configuration is a directory", inject: func(t *testing.T, f *faulty) { f.environ = append(f.environ, config.EnvFile+"="+t.TempDir()) },
		want: []string{"configuration: ", "is no file of up to", "-> edit "}},
	{name: "configuration that is not there", inject: func(t *testing.T, f *faulty) {
		f.environ = append(f.environ, config.EnvFile+"=/nonexistent/gosmc.conf")
	}, want: []string{"configuration: GOSMC_CONFIG names /nonexistent/gosmc.conf, which does not exist", "-> name the file"}},
	{name: "configuration of another user", root: true, inject: func(t *testing.T, f *faulty) {
		if _, err := exec.LookPath("setpriv"); err != nil {
			t.Skip("needs setpriv")
		}
		file := filepath.Join(f.dir, "..", "gosmc.conf")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f.environ = append(f.environ, config.EnvFile+"="+file)
		f.prefix = []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all", "--reuid", "65534", "--clear-groups"}
	}, want: []string{"configuration: The configuration cannot be read by this user", "-> sudo chmod a+r "}, more: true},
	{name: "bad variable", inject: func(t *testing.T, f *faulty) { f.environ = append(f.environ, "GOSMC_SHORT_AFTER=often") },
		want: []string{"configuration: ", "GOSMC_SHORT_AFTER", "often"}},
	{name: "relative run directory", inject: func(t *testing.T, f *faulty) { f.environ = append(f.environ, "GOSMC_DIR=somewhere") },
		want: []string{"run-directory: ", "somewhere", "-> set GOSMC_DIR to an absolute path"}, more: true},
	{name: "run directory with a long name", inject: func(t *testing.T, f *faulty) {
		f.dir = filepath.Join(f.dir, strings.Repeat("x", 60))
		if err := os.Mkdir(f.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		f.environ = append(f.environ, "GOSMC_DIR="+f.dir)
	}, want: []string{"run-directory: ", "too long for the sockets of 'gosmc run'", "-> set GOSMC_DIR to an absolute path"}},
	{name: "run directory is a file", inject: func(t *testing.T, f *faulty) {
		name := filepath.Join(f.dir, "file")
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f.environ = append(f.environ, "GOSMC_DIR="+name)
	}, want: []string{"not a directory"}, more: true},
	{name: "run directory that others may write", inject: func(t *testing.T, f *faulty) {
		if err := os.Chmod(f.dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}, want: []string{"shared-memory: ", "others"}, more: true},
	{name: "run directory of another user", root: true, inject: func(t *testing.T, f *faulty) {
		if err := os.Chown(f.dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}, want: []string{"shared-memory: ", "65534"}, more: true},
	{name: "too little memory", inject: func(t *testing.T, f *faulty) { f.configure(t, "memory 4KiB\n") },
		want: []string{"shared-memory: Connections within this machine stay TCP: ", "not enough memory", "(memory: ", "-> "}},
	{name: "policy that refuses all", inject: func(t *testing.T, f *faulty) { f.configure(t, "program none\n") },
		want: []string{"policy: The policy refuses all by program (program: ", "-> gosmc policy"}, more: true},
	{name: "policy with a line that is not understood", inject: func(t *testing.T, f *faulty) { f.configure(t, "listen-port 80 none\n") },
		want: []string{"configuration: ", "Until then all is refused by listen-port"}, more: true},
	{name: "too few open files", inject: func(t *testing.T, f *faulty) {
		f.prefix = []string{"sh", "-c", `ulimit -n 24; exec "$@"`, "sh"}
	}, want: []string{"shared-memory: ", "ulimit -n", "-> Raise the limit on open files"}, more: true},
	{name: "SMC-R without a network", root: true, inject: func(t *testing.T, f *faulty) {
		f.configure(t, "ueid DOCTOR.TEST\n")
		f.prefix = []string{"unshare", "-n"}
	}, want: []string{"smc-r: ", "A UEID is configured"}},
	{name: "RDMA device that the kernel does not have", inject: func(t *testing.T, f *faulty) { f.configure(t, "device rdma:gosmc-none\n") },
		want: []string{"rdma: RDMA device gosmc-none is configured and cannot be used: ", "-> correct the entry 'device rdma:gosmc-none'"}},
	{name: "program that cannot have the library", inject: func(t *testing.T, f *faulty) {
		const static = "/sbin/ldconfig" // of Debian
		if _, err := os.Stat(static); err != nil {
			t.Skip("needs a static program")
		}
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := runCommand(t, f.environ, static, "-N", "-X", "-f", fifo) // waits for somebody to write
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid))
			if strings.HasSuffix(exe, static) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("process %d runs %s, want %s", cmd.Process.Pid, exe, static)
			}
		}
	}, want: []string{"left: ", "ldconfig was left to TCP", "-> docs/run.md"}},
	{name: "server on another machine", inject: func(t *testing.T, f *faulty) { f.args = []string{"192.0.2.1:80"} },
		want: []string{"server: 192.0.2.1:80", "is not an address of this machine", "-> SMC-R reaches other machines"}},
	{name: "policy of the client", python: true, inject: func(t *testing.T, f *faulty) {
		address, _ := f.serve(t, f.environ, 0)
		f.args = []string{address}
		f.configure(t, "connect-port 1\n")
	}, want: []string{"server: 127.0.0.1:", "is not among connect-port 1", "gosmc policy add"}},
	{name: "policy of the server", python: true, inject: func(t *testing.T, f *faulty) {
		f.configure(t, "listen-port 1\n")
		address, _ := f.serve(t, f.environ, 0)
		f.args = []string{address}
	}, want: []string{"server: 127.0.0.1:", "is not among listen-port 1", "gosmc policy add"}},
	{name: "policy that excludes", python: true, inject: func(t *testing.T, f *faulty) {
		address, _ := f.serve(t, f.environ, 0)
		_, port, _ := net.SplitHostPort(address)
		f.args = []string{address}
		f.configure(t, "connect-port !"+port+"\n")
	}, want: []string{"server: 127.0.0.1:", "is refused by connect-port", "gosmc policy"}},
	{name: "two run directories", python: true, inject: func(t *testing.T, f *faulty) {
		address, _ := f.serve(t, runEnviron(t), 0)
		f.args = []string{address}
	}, want: []string{"server: 127.0.0.1:", "its run directory is", "-> start both with the same GOSMC_DIR"}},
	{name: "server of another user", root: true, python: true, inject: func(t *testing.T, f *faulty) {
		if err := os.Chmod(f.dir, 0o777|fs.ModeSticky); err != nil {
			t.Fatal(err)
		}
		address, _ := f.serve(t, f.environ, 65534)
		f.args = []string{address}
	}, want: []string{"server: 127.0.0.1:", "memory is not shared between users", "-> start both as one user"}},
	{name: "host that does not answer", inject: func(t *testing.T, f *faulty) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "listen", "--echo", "-v", "127.0.0.1:0")
		cmd.Env = f.environ
		errs, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		if _, err := errs.Read(make([]byte, 1)); err != nil { // it listens
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}, want: []string{"hosts: ", "/ctl/", "timeout", "-> "}},
}

// TestDoctorFaults injects faults one at a time: doctor names each, with its remedy, and nothing else unless it follows.
func TestDoctorFaults(t *testing.T) {
	for _, tt := range faults {
		t.Run(strings.ReplaceAll(tt.name, " ", "-"), func(t *testing.T) {
			if tt.root && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			if _, err := exec.LookPath("python3"); tt.python && err != nil {
				t.Skip("needs python3")
			}
			f := &faulty{environ: runEnviron(t)}
			f.dir = strings.TrimPrefix(f.environ[len(f.environ)-1], "GOSMC_DIR=")
			tt.inject(t, f)
			r := f.doctor(t)
			bad := r.bad()
			if len(bad) == 0 || len(bad) > 1 && !tt.more {
				t.Fatalf("findings %q, want one with %q", bad, tt.want)
			}
			for _, w := range tt.want {
				if !strings.Contains(bad[0], w) {
					t.Errorf("the first of the findings %q, want %q in it", bad, w)
				}
			}
			if i := slices.IndexFunc(r.Findings, func(x doctor.Finding) bool { return x.Level != doctor.OK }); r.Findings[i].Fix == "" {
				t.Errorf("finding %q has no remedy", bad[0])
			}
		})
	}
}
