package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a unit. A suite that prints nothing for so long hangs, and is killed with all that it
// has started.
const (
	silenceTime = 4 * time.Minute
	unitTime    = 40 * time.Minute
	lookTime    = 200 * time.Millisecond // between two looks at its output
	graceTime   = 20 * time.Second       // to say so
)

// A task is the order to a process that runs units of a suite in one way.
type task struct {
	Suite   string        `json:"suite"`
	Moved   bool          `json:"moved"` // under gosmc run
	Shake   int64         `json:"shake"` // the number of the debug switch; 0: off
	Tree    string        `json:"tree"`  // where the suite was built
	Logs    string        `json:"logs"`  // the directory for the output of units
	Temp    string        `json:"temp"`  // of this task
	Gosmc   string        `json:"gosmc"`
	Silence time.Duration `json:"silence"` // after which a unit hangs
	Alone   bool          `json:"alone"`   // it is in namespaces of its own
	Units   []unitCommand `json:"units"`
}

// A unitCommand is a unit, or some of its tests, as a command of the shell.
type unitCommand struct {
	Name    string `json:"name"`
	Command string `json:"command"`
}

// An outcome is the result of a task.
type outcome struct {
	Results map[string]string `json:"results"` // by UNIT and test
	Moved   int               `json:"moved"`   // connections
	Errors  []string          `json:"errors"`  // of us, not of tests
}

// run has another process do a task: as root in namespaces of its own for network, processes and
// mounts. So ports are free, and nothing is left of it in the end.
func (t *task) run(ctx context.Context) (*outcome, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t.Alone = os.Geteuid() == 0
	input, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(t.Units))*unitTime+graceTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-work")
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	cmd.WaitDelay = graceTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if t.Alone {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS
	}
	runErr := cmd.Run()
	var o outcome
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		return nil, fmt.Errorf("%v, %v, %s", runErr, err, lastOf(stderr.String(), 2000))
	}
	return &o, nil
}

// work is the other side of it. The first process of a PID namespace only waits for orphans: suites
// look whether daemons that they have stopped are gone.
func work(inner bool) int {
	if os.Getpid() == 1 && !inner {
		return reap()
	}
	var t task
	if err := json.NewDecoder(os.Stdin).Decode(&t); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		return 2
	}
	var o outcome
	if err := t.do(&o); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		return 2
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return 2
	}
	return 0
}

// reap runs this program again, and waits for all processes that end until that one does.
func reap() int {
	self, err := os.Executable()
	if err != nil {
		return 2
	}
	pid, err := syscall.ForkExec(self, []string{self, "-work", "-inner"}, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 2
	}
	for {
		var status syscall.WaitStatus
		switch ended, err := syscall.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 2
		case ended == pid:
			return status.ExitStatus()
		}
	}
}

func (t *task) do(o *outcome) error {
	s := find(t.Suite)
	if s == nil {
		return fmt.Errorf("no suite %q", t.Suite)
	}
	if t.Alone {
		if err := settle(); err != nil {
			return err
		}
	}
	o.Results = make(map[string]string)
	for _, u := range t.Units {
		t.unit(s, u, o)
	}
	return nil
}

// unit runs one unit. It has a run directory, and so a supervisor, of its own, which counts the connections.
func (t *task) unit(s *suite, u unitCommand, o *outcome) {
	fail := func(err error) { o.Errors = append(o.Errors, fmt.Sprintf("%s: %v", u.Name, err)) }
	rundir, err := os.MkdirTemp("", "run") // a short name: sockets
	if err != nil {
		fail(err)
		return
	}
	defer os.RemoveAll(rundir)
	log, err := os.Create(filepath.Join(t.Logs, u.Name+".log"))
	if err != nil {
		fail(err)
		return
	}
	defer log.Close()
	stats := filepath.Join(t.Temp, "stats.json")
	os.Remove(stats)
	words := []string{"/bin/sh", "-c", u.Command}
	if t.Moved {
		// The shell is the program, so its supervisor is there when all tests have ended.
		count := fmt.Sprintf("(%s\n)\nstatus=$?; %s stats --json --dir %s >%s; exit $status", u.Command, t.Gosmc, rundir, stats)
		words = []string{t.Gosmc, "run", "--short-after", "off", "--", "/bin/sh", "-c", count}
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = t.Tree
	cmd.Env = t.environ(rundir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	end := "ended"
	if err := cmd.Start(); err != nil {
		fail(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var size int64
	began, spoke := time.Now(), time.Now()
	for running := true; running; {
		select {
		case <-ended:
			running = false
			if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
				end = fmt.Sprintf("killed by %v", status.Signal())
			}
			continue
		case <-time.After(lookTime):
		}
		if info, err := log.Stat(); err == nil && info.Size() != size {
			size, spoke = info.Size(), time.Now()
		}
		if time.Since(spoke) > t.Silence || time.Since(began) > unitTime {
			end = fmt.Sprintf("hangs: killed after %.0f s", time.Since(began).Seconds())
			t.kill(cmd.Process.Pid)
			<-ended
			running = false
		}
	}
	t.kill(cmd.Process.Pid) // processes it has left
	text, err := os.ReadFile(log.Name())
	if err != nil {
		fail(err)
		return
	}
	results := s.parse(string(text))
	for test, result := range results {
		o.Results[u.Name+" "+test] = result
	}
	if end != "ended" || len(results) == 0 {
		fail(fmt.Errorf("%s, with %d results: %s", end, len(results), lastOf(string(text), 800)))
	}
	if t.Moved {
		n, err := countMoved(stats)
		if err != nil {
			fail(err)
		}
		o.Moved += n
	}
}

// kill ends a unit with all that it has started; in a PID namespace, daemons as well.
func (t *task) kill(group int) {
	if t.Alone {
		syscall.Kill(-1, syscall.SIGKILL)
		return
	}
	syscall.Kill(-group, syscall.SIGKILL)
}

// countMoved returns how many connections supervisors have counted, by the report of 'gosmc stats'.
func countMoved(file string) (n int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var r struct {
		Hosts []struct {
			Counters struct{ Connections map[string]int }
		}
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return 0, fmt.Errorf("gosmc stats: %w", err)
	}
	for _, h := range r.Hosts {
		n += h.Counters.Connections["Unix"]
	}
	return n, nil
}

// environ is the environment of units.
func (t *task) environ(rundir string) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "GOSMC_") && !strings.HasPrefix(name, "LC_") && name != "LD_PRELOAD" && name != "LANG" && name != "TZ" && name != "TMPDIR" && name != "HOME" {
			env = append(env, v)
		}
	}
	env = append(env, "GOSMC_DIR="+rundir, "LC_ALL=C.UTF-8", "TZ=UTC", "TMPDIR="+t.Temp, "HOME="+t.Temp)
	if t.Moved && t.Shake != 0 {
		env = append(env, "GOSMC_RUN_SHAKE="+strconv.FormatInt(t.Shake, 10))
	}
	return env
}

// settle makes new namespaces fit to live in.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return os.NewSyscallError("mount /proc", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return os.NewSyscallError("ioctl", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr))
}
