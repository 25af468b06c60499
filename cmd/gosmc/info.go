package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/measure"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/survey"
)

// An infoReport is the output of info --json. Memory is in bytes.
type infoReport struct {
	Schema       int                        `json:"schema"`
	Time         time.Time                  `json:"time"`
	HostName     string                     `json:"host_name"` // as sent to peers
	Machine      measure.Machine            `json:"machine"`
	MemoryTotal  int64                      `json:"memory_total"`
	OpenFiles    openFiles                  `json:"open_files"`
	Dir          string                     `json:"dir"`
	DirMode      string                     `json:"dir_mode"`
	ConfigFile   string                     `json:"config_file"`
	ConfigError  string                     `json:"config_error"` // parts of file and environment that are not understood, and left out
	GID          string                     `json:"gid"`          // of a host made for the occasion: every process has its own
	SEID         string                     `json:"seid"`
	UEIDs        []string                   `json:"ueids"`
	BootID       string                     `json:"boot_id"` // that the SEID is derived from
	Capabilities control.StatusCapabilities `json:"capabilities"`
	Pairing      control.Capability         `json:"pairing"` // of sockets, by gosmc agent
	Limits       []control.StatusLimit      `json:"limits"`
	Hosts        int                        `json:"hosts"`    // live in the run directory, the one made for the occasion not counted
	Programs     []control.StatusProgram    `json:"programs"` // of gosmc run, and those that have connected to them
	Left         map[string]string          `json:"left"`     // programs that gosmc run has left to TCP, and why
	Error        string                     `json:"error"`    // why no shared memory can be used; other fields are filled in all the same
}

// openFiles is the limit of file descriptors of a process: RLIMIT_NOFILE.
type openFiles struct {
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

func newInfoCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info [flags] [FILE]",
		Short: "Show what this host can do, and why not more",
		Long: `Show the kinds of SMC that a program started here and now could use, the reason for each
kind that it could not, with all that is missing for it, and the limits that apply. No other program need be running: a host is made
for the occasion and asked. The exit status is 1 if shared memory cannot be used here, and the table says why.

With FILE, show how that program comes to SMC: it was compiled by gosmc go, it imports package smc, or it needs gosmc run.`,
		Example: `  gosmc info
  GOSMC_DIR=/shared/gosmc gosmc info
  gosmc info ./server
  gosmc info --json | jq .capabilities.smc_d_v2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("info takes one FILE, but got %q, too", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return showProgram(cmd, args[0], asJSON)
			}
			r, err := newInfoReport(cmd.Context())
			if asJSON {
				return errors.Join(writeJSON(cmd.OutOrStdout(), r), err)
			}
			return errors.Join(r.write(cmd.OutOrStdout()), err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// newInfoReport makes a host, asks it, and looks around. The error says why shared memory cannot be used; the
// report then holds the rest.
func newInfoReport(ctx context.Context) (infoReport, error) {
	r := infoReport{
		Schema: jsonSchema, Time: time.Now(), Machine: measure.ReadMachine(),
		BootID: measure.BootID(),
		UEIDs:  []string{}, Limits: []control.StatusLimit{}, Programs: []control.StatusProgram{},
	}
	r.HostName, _ = os.Hostname()
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		r.MemoryTotal = int64(info.Totalram) * int64(info.Unit)
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		r.OpenFiles = openFiles{limit.Cur, limit.Max}
	}
	p, err := survey.NewProbe(ctx)
	if err != nil {
		r.Error = err.Error()
		err = fmt.Errorf("shared memory cannot be used here: %w", err)
	}
	r.Dir, r.Hosts, r.GID, r.SEID = p.Dir, p.Others, p.GID, p.SEID
	r.Capabilities, r.Limits = p.Capabilities, append(r.Limits, p.Limits...)
	r.UEIDs = append(r.UEIDs, p.UEIDs...)
	r.Pairing = survey.Pairing(ctx, r.Dir)
	for _, h := range survey.Ask(ctx, r.Dir).Hosts {
		for _, p := range h.Programs { // two supervisors may know one
			if !slices.ContainsFunc(r.Programs, func(have control.StatusProgram) bool { return have.PID == p.PID }) {
				r.Programs = append(r.Programs, p)
			}
		}
	}
	r.Left = inspect.Left(r.Dir)
	r.ConfigFile = config.Path()
	if _, err := config.Load(); err != nil {
		r.ConfigError = errorText(err)
	}
	if r.Dir != "" {
		if info, err := os.Stat(r.Dir); err == nil {
			r.DirMode = info.Mode().String()
		}
	}
	return r, err
}

// verdict says in a sentence or two what programs of this user can do.
func (r *infoReport) verdict() string {
	c, text := r.Capabilities, "Programs of one user on this machine can leave TCP."
	if !c.SMCDv2.Available {
		text = "Programs here stay with TCP: " + cmp.Or(c.SMCDv2.Why, r.Error)
	}
	switch {
	case c.SMCRv2.Available:
		text += " They can use SMC-R with other machines."
	case len(r.UEIDs) == 0:
		text += " SMC-R with other machines is off, as no UEID is configured; that is normal."
	default:
		text += " SMC-R with other machines cannot be used: the table says why."
	}
	return text
}

func (r *infoReport) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n\n", printable(r.verdict())); err != nil {
		return err
	}
	t := table{Columns: []column{{}, {}}}
	t.Add("Host name", orNA(r.HostName))
	for _, l := range machineLines(&r.Machine) {
		t.Add(l[0], l[1])
	}
	t.Add("Memory", formatBytes(r.MemoryTotal))
	t.Add("Open files", fmt.Sprintf("%d, at most %d", r.OpenFiles.Soft, r.OpenFiles.Hard))
	dir := orNA(r.Dir)
	switch {
	case r.DirMode != "":
		dir += " (" + r.DirMode + ")"
	case r.Dir != "":
		dir += " (does not exist)"
	}
	t.Add("Run directory", dir)
	file := printable(r.ConfigFile)
	if _, err := os.Stat(r.ConfigFile); errors.Is(err, os.ErrNotExist) {
		file += " (does not exist)"
	}
	t.Add("Configuration", file)
	if r.ConfigError != "" {
		t.Add("", "left out: "+printable(r.ConfigError))
	}
	t.Add("Hosts running", strconv.Itoa(r.Hosts))
	if len(r.Programs) > 0 {
		t.Add("By gosmc run", inventory.ProgramNames(r.Programs))
	}
	for _, program := range slices.Sorted(maps.Keys(r.Left)) {
		t.Add("Left to TCP", program+": "+r.Left[program])
	}
	t.Add("SEID", orNA(r.SEID))
	t.Add("UEIDs", orNA(strings.Join(r.UEIDs, ", ")))
	t.Add("GID", orNA(r.GID))
	if err := t.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := r.writeCapabilities(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return r.writeLimits(w)
}

func (r *infoReport) writeCapabilities(w io.Writer) error {
	can := table{Columns: []column{{Title: "Capability"}, {Title: "Available"}, {Title: "Why not"}}}
	c, advice := r.Capabilities, ""
	for _, row := range []struct {
		name string
		c    control.Capability
	}{
		{"SMC-D v2 (shared memory)", c.SMCDv2},
		{"SMC-D v1", c.SMCDv1},
		{"SMC-R v2 (RDMA)", c.SMCRv2},
		{"SMC-R v1", c.SMCRv1},
		{"TCP option 254", c.TCPOption},
		{"Local rendezvous", c.LocalRendezvous},
		{"Pairing of sockets", r.Pairing},
	} {
		available := "no"
		if row.c.Available {
			available = "yes"
		}
		can.Add(row.name, available, printable(row.c.Why))
		if row.c.Advice != "" && row.c.Advice != advice {
			advice = row.c.Advice // the same for all that it stands in the way of
			can.Add("", "", printable(advice))
		}
	}
	return can.Write(w)
}

func (r *infoReport) writeLimits(w io.Writer) error {
	limits := table{Columns: []column{{Title: "Limit"}, {Title: "Value", Right: true}, {Title: "In use", Right: true}}}
	for _, l := range r.Limits {
		used := "n/a"
		if l.Used >= 0 {
			used = formatUnit(l.Used, l.Unit)
		}
		limit := "none"
		if l.Limit >= 0 {
			limit = formatUnit(l.Limit, l.Unit)
		}
		limits.Add(orNA(l.Name), limit, used)
	}
	return limits.Write(w)
}

func formatUnit(v int64, unit string) string {
	switch unit {
	case "bytes":
		return formatBytes(v)
	case "":
		return groupDigits(strconv.FormatInt(v, 10))
	}
	return groupDigits(strconv.FormatInt(v, 10)) + " " + printable(unit)
}
