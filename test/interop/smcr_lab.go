package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/host"
)

// The means of the SMC-R cases: TCP option 254, hosts of ours, and the tools, which look at them
// from outside.

// ueid is the UEID that both sides have in common: a stock kernel has SMC-R version 2 with rxe,
// which asks for one.
const ueid = "GOSMC.INTEROP"

// guestSMCR has the guest speak SMC-R, and nothing else than it does when it has booted.
const guestSMCR = "smcpeer ueid del " + ueid + " >/dev/null; smcpeer ueid add " + ueid + "; echo 255 >/proc/sys/net/smc/smcr_max_conns_per_lgr"

// ready prepares a case: the guest, and the option on our segments.
func (l *lab) ready(ctx context.Context) error {
	if err := l.readyGuest(ctx); err != nil {
		return err
	}
	return l.withOption()
}

// readyGuest prepares the guest's kernel, and has a look at the packets. The case leaves no link
// there: rxe sends to queue pairs that are gone until the kernel tests the link, and the next case
// would count that.
func (l *lab) readyGuest(ctx context.Context) error {
	l.atEnd(func() error {
		_, err := l.vm.run(context.WithoutCancel(ctx), commandTimeout, "set -e; /bin/rdma link del rxe0; "+newRXE)
		return err
	})
	if _, err := l.vm.run(ctx, commandTimeout, guestSMCR); err != nil {
		return err
	}
	return l.watch(ctx)
}

// ownCgroup moves this process, and the processes that it starts from now on, into a control group
// of its own until the case ends. Programs in the kernel that are attached to it concern nobody
// else.
func (l *lab) ownCgroup() (group, pins string, err error) {
	root, err := bpf.CgroupRoot()
	if err != nil {
		return "", "", err
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", "", err
	}
	home := root
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			home = filepath.Join(root, strings.TrimSpace(path))
		}
	}
	enter := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	name := "gosmc-interop-" + strconv.Itoa(os.Getpid())
	group, pins = filepath.Join(root, name), filepath.Join(filepath.Dir(bpf.DefaultPins), name)
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", "", err
	}
	l.atEnd(func() error { return os.Remove(group) })
	if err := enter(group); err != nil {
		return "", "", err
	}
	l.atEnd(func() error { return enter(home) })
	return group, pins, nil
}

// withOption puts TCP option 254 on the segments of sockets of this process that ask for it.
func (l *lab) withOption() error {
	group, pins, err := l.ownCgroup()
	if err != nil {
		return err
	}
	if err := bpf.PreparePins(pins); err != nil {
		return err
	}
	l.atEnd(func() error { return os.Remove(pins) })
	o, err := bpf.AttachOption(group, pins)
	if err != nil {
		return err
	}
	l.atEnd(func() error { o.Close(); return bpf.DetachOption(pins) })
	return nil
}

// host makes a host of ours. It knows by TCP option 254 which peers speak SMC.
func (l *lab) host(cfg host.Config) (*host.Host, error) {
	if cfg.Dir == "" {
		cfg.Dir = l.runDir()
	}
	if cfg.UEIDs == nil {
		cfg.UEIDs = []string{ueid}
	}
	cfg.ShortAfter = -1 // all connections of a case are moved
	var log io.Writer = &l.journal
	if l.verbose {
		log = io.MultiWriter(log, os.Stdout)
	}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	h, err := host.New(cfg)
	if err != nil {
		return nil, err
	}
	l.atEnd(h.Close)
	return h, nil
}

// runDir is the run directory of all hosts of ours.
func (l *lab) runDir() string { return filepath.Join(l.dir, "run") }

// gosmc runs a verb of the command.
func (l *lab) gosmc(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return run(ctx, filepath.Join(l.dir, "gosmc"), args...)
}

// A linkGroup is a link group in the output of 'gosmc linkgroup --json'.
type linkGroup struct {
	PID      int    `json:"pid"`
	ID       uint32 `json:"lg_id"`
	Mode     string `json:"mode"`
	Version  string `json:"version"`
	State    string `json:"state"`
	Role     string `json:"role"`
	Type     string `json:"type"`
	Conns    int    `json:"conns"`
	MaxConns int    `json:"max_conns"`
	Moved    uint64 `json:"moved"`
	Links    []struct {
		Number   uint8  `json:"link"`
		State    string `json:"state"`
		Device   string `json:"device"`
		LocalGID string `json:"local_gid"`
		PeerGID  string `json:"peer_gid"`
		LocalQPN uint32 `json:"local_qpn"`
		Conns    int    `json:"conns"`
	} `json:"links"`
}

// linkGroups returns the link groups of all hosts of ours.
func (l *lab) linkGroups(ctx context.Context) ([]linkGroup, error) {
	text, err := l.gosmc(ctx, "linkgroup", "--json", "--dir", l.runDir())
	if err != nil {
		return nil, err
	}
	var report struct {
		Groups []linkGroup `json:"link_groups"`
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		return nil, fmt.Errorf("gosmc linkgroup --json: %w\n%s", err, text)
	}
	return report.Groups, nil
}

// watch has 'gosmc dump' look for problems in the packets on the data network, until the case ends.
// The problems that it finds then must be of the kinds that the case expects, and all of these must
// be there.
func (l *lab) watch(ctx context.Context) error {
	var messages, remarks bytes.Buffer
	network := dataTap
	if l.twin {
		network = "any"
	}
	cmd := exec.Command(filepath.Join(l.dir, "gosmc"), "dump", "-i", network, "--problems", "--json")
	cmd.Stdout, cmd.Stderr = &messages, &remarks
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // a Ctrl-C is for us
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := func() error {
		cmd.Process.Signal(syscall.SIGINT)
		kill := time.AfterFunc(killDelay, func() { cmd.Process.Kill() })
		defer kill.Stop()
		return <-ended
	}
	captures := func() (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("gosmc dump: %w\n%s", err, remarks.String())
		default:
		}
		text, err := os.ReadFile("/proc/net/packet") // a line for each packet socket, after the titles
		return strings.Count(string(text), "\n") > 1, err
	}
	starting, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if err := try(starting, "gosmc dump", captures); err != nil {
		cmd.Process.Kill()
		return err
	}
	l.atEnd(func() error {
		const hasFound = 4 // its exit status
		if exit, ok := errors.AsType[*exec.ExitError](stop()); ok && exit.ExitCode() != hasFound {
			return fmt.Errorf("gosmc dump: %w\n%s", exit, remarks.String())
		}
		mayFind := l.mayFind
		if lost, err := l.drops.take(); err != nil {
			return err
		} else if lost != 0 && !l.guard {
			mayFind = append([]string{"NAK"}, mayFind...)
		}
		missed, err := checkFindings(messages.String(), remarks.String(), l.finds, mayFind)
		if missed != "0" {
			l.note("gosmc dump was too slow for %s packets", missed)
		}
		return err
	})
	return nil
}

// dumped is the last line on standard error of a live dump.
var dumped = regexp.MustCompile(`(\d+) packets of SMC, \d+ messages shown, (\d+) packets dropped by the kernel`)

// errFindings is in the error about problems that a case does not expect.
var errFindings = errors.New("findings")

// checkFindings checks the output of 'gosmc dump --problems --json', and returns how many packets
// it has missed: it takes no gap for a fault. Its error shows the first ten findings, and the reasons
// for which a peer has declined before all others, as faultOfLinux looks for one of them.
func checkFindings(messages, remarks string, expected, tolerated []string) (missed string, err error) {
	total := dumped.FindStringSubmatch(remarks)
	if total == nil || total[1] == "0" {
		return "0", fmt.Errorf("gosmc dump says %q; want packets", strings.TrimSpace(remarks))
	}
	missed = total[2]
	found := make(map[string]bool)
	var declined, wrong []string
	for line := range strings.Lines(messages) {
		var m struct {
			Src      string
			Info     string
			Problems []struct{ Kind string }
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			return missed, fmt.Errorf("gosmc dump --json: %w: %s", err, line)
		}
		for _, p := range m.Problems {
			found[p.Kind] = true
			says := m.Src + " " + m.Info // which ends with its problems
			switch {
			case slices.Contains(expected, p.Kind) || slices.Contains(tolerated, p.Kind):
			case p.Kind == "declined":
				declined = append(declined, says)
			default:
				wrong = append(wrong, says)
			}
		}
	}
	wrong = append(declined, wrong...) // rule: TestCheckFindings: append(declined, wrong...) -> append(wrong, declined...)
	const shown = 10
	if n := len(wrong); n > 0 {
		return missed, fmt.Errorf("gosmc dump has %d %w:\n%s", n, errFindings, strings.Join(wrong[:min(n, shown)], "\n"))
	}
	for _, kind := range expected {
		if !found[kind] {
			return missed, fmt.Errorf("gosmc dump finds nothing of the kind %q", kind)
		}
	}
	return missed, nil
}
