package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// 'gosmc doctor HOST:PORT' where AF_SMC sockets of the guest's kernel listen.

// diagnosisTime bounds a diagnosis. The guest is slow.
const diagnosisTime = 45 * time.Second

// A diagnosis is a check by doctor, with its findings.
type diagnosis struct {
	name         string
	harm, repair string   // shell commands in the guest
	here         string   // a shell command in this network namespace, beforehand
	after        string   // the same, afterwards
	plain        bool     // the server has no AF_SMC
	args         []string // of doctor
	want         []string // parts of the finding that is none of level ok, "check: text -> fix"; nil: there is none
	ok           []string // parts of the findings of level ok
	echoed       string   // what the server prints
	hangs        bool     // the kernel hangs in the handshake: soft-RoCE sends CONFIRM LINK again for ever
}

const noRoCE = "nft add table inet doctor; nft 'add chain inet doctor in { type filter hook input priority 0; }'; nft add rule inet doctor in udp dport 4791 drop"

var diagnoses = []diagnosis{
	{name: "healthy", ok: []string{"SMC-R 2.1, EID " + ueid, "the link works"}, echoed: "echoed 0 mode=smc-r"},
	{
		name: "healthy, echoes", args: []string{"--echo"}, echoed: "echoed 1048640 mode=smc-r",
		ok: []string{"SMC-R 2.1, EID " + ueid, "1 MiB went there and back; RoCE MTU 1024, round trip ", " packets sent again"},
	},
	{
		name: "plain TCP", plain: true,
		want: []string{"peer: ", "the program there does not use SMC", "gosmc doctor --serve"},
	},
	{
		name: "UEIDs differ", harm: "smcpeer ueid del " + ueid + "; smcpeer ueid add SOMEBODY.ELSE", repair: "smcpeer ueid del SOMEBODY.ELSE; smcpeer ueid add " + ueid,
		want: []string{"device: ", "the peer declined", "if it has none of our UEIDs. Here: " + ueid, "'smcr ueid'"}, echoed: "echoed 0 mode=tcp",
	},
	{
		name: "no device", harm: "/bin/rdma link del rxe0", repair: newRXE,
		want: []string{"device: ", "the peer declined", "-> Check the RoCE device"}, echoed: "echoed 0 mode=tcp",
	},
	{
		name: "UDP port 4791 filtered", here: noRoCE, after: "nft delete table inet doctor",
		want: []string{"roce: ", "do not pass between the hosts", "UDP port 4791"}, hangs: true,
	},
}

// doctor has doctor check the guest, healthy and with faults.
func doctor(ctx context.Context, l *lab) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	for _, d := range diagnoses {
		if err := l.diagnose(ctx, d); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	l.note("%d diagnoses", len(diagnoses))
	return nil
}

func (l *lab) diagnose(ctx context.Context, d diagnosis) (err error) {
	ctx, cancel := context.WithTimeout(ctx, diagnosisTime)
	defer cancel()
	if err := errors.Join(l.inGuest(ctx, d.harm), l.here(ctx, d.here)); err != nil {
		return err
	}
	defer func() {
		end := context.WithoutCancel(ctx)
		err = errors.Join(err, l.inGuest(end, d.repair), l.here(end, d.after))
	}()
	lastPort++
	server := fmt.Sprintf("smcpeer echo %d 1", lastPort)
	if d.plain {
		server = fmt.Sprintf("nc -l -p %d", lastPort)
	}
	finish, err := l.vm.start(ctx, server)
	if err != nil {
		return err
	}
	if _, err := l.vm.run(ctx, commandTimeout, fmt.Sprintf("until grep -q ':%04X .*:0000 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done", lastPort)); err != nil {
		return err
	}
	report, err := l.doctorReport(ctx, append(d.args, netip.AddrPortFrom(guestAddr4, lastPort).String())...)
	if err == nil {
		err = report.check(d)
	}
	if err != nil || d.hangs { // the server may wait for ever
		return err
	}
	said, err := finish()
	if err == nil && !strings.HasPrefix(said, d.echoed) {
		err = fmt.Errorf("the server says %q, want %q", said, d.echoed)
	}
	return err
}

// doctorFindings is the output of 'gosmc doctor --json'.
type doctorFindings struct {
	Findings []struct{ Level, Check, Text, Fix string }
}

// doctorReport runs 'gosmc doctor' as a program of this process's control group.
func (l *lab) doctorReport(ctx context.Context, args ...string) (*doctorFindings, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(l.dir, "gosmc"), append([]string{"doctor", "--json"}, args...)...)
	cmd.Env = append(os.Environ(), "GOSMC_DIR="+l.runDir(), "GOSMC_UEIDS="+ueid, "GOSMC_CONFIG=/dev/null")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	f := new(doctorFindings)
	if jsonErr := json.Unmarshal(out, f); jsonErr != nil {
		return nil, fmt.Errorf("gosmc doctor: %w, %w\n%s%s", err, jsonErr, out, errs.String())
	}
	return f, nil
}

// check compares findings with the diagnosis that is right.
func (f *doctorFindings) check(d diagnosis) error {
	var bad, good []string
	for _, one := range f.Findings {
		if one.Level == "ok" {
			good = append(good, one.Text)
			continue
		}
		bad = append(bad, one.Check+": "+one.Text+" -> "+one.Fix)
	}
	if len(bad) > 1 || (len(bad) == 1) != (d.want != nil) {
		return fmt.Errorf("findings %q, want %q", bad, d.want)
	}
	for _, pair := range []struct {
		text string
		want []string
	}{{strings.Join(bad, "\n"), d.want}, {strings.Join(good, "\n"), d.ok}} {
		for _, w := range pair.want {
			if !strings.Contains(pair.text, w) {
				return fmt.Errorf("findings %q, want %q in them", pair.text, w)
			}
		}
	}
	return nil
}
