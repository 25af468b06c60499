package info

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/measure"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/text"
)

// A Report is the output of gosmc info. Memory is in bytes.
type Report struct {
	HostName    string          `json:"host_name"` // as sent to peers
	Machine     measure.Machine `json:"machine"`
	MemoryTotal int64           `json:"memory_total"`
	OpenFiles   OpenFiles       `json:"open_files"`
	Dir         string          `json:"dir"`
	DirMode     string          `json:"dir_mode"`
	ConfigFile  string          `json:"config_file"`
	// ConfigError tells the parts of file and environment that are not understood, and left out.
	ConfigError string `json:"config_error"`
	// GID belongs to the host made for the occasion: every process has its own.
	GID          string                     `json:"gid"`
	SEID         string                     `json:"seid"`
	UEIDs        []string                   `json:"ueids"`
	BootID       string                     `json:"boot_id"` // that the SEID is derived from
	Capabilities control.StatusCapabilities `json:"capabilities"`
	Pairing      control.Capability         `json:"pairing"` // of sockets, by gosmc agent
	Limits       []control.StatusLimit      `json:"limits"`
	// Hosts is the number of live ones in the run directory, without the one made for the occasion.
	Hosts int `json:"hosts"`
	// Programs are those of 'gosmc run', and those that have connected to them.
	Programs []control.StatusProgram `json:"programs"`
	Left     map[string]string       `json:"left"` // programs that 'gosmc run' has left to TCP, and why
	// Error says why no shared memory can be used. Other fields are filled in all the same.
	Error string `json:"error"`
}

// OpenFiles is the limit of file descriptors of a process: RLIMIT_NOFILE.
type OpenFiles struct {
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// New makes a host, asks it, and looks around. The error says why shared memory cannot be used; the
// report then holds the rest.
func New(ctx context.Context) (Report, error) {
	r := Report{
		Machine: measure.ReadMachine(),
		BootID:  measure.BootID(),
		UEIDs:   []string{}, Limits: []control.StatusLimit{}, Programs: []control.StatusProgram{},
	}
	r.HostName, _ = os.Hostname()
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		r.MemoryTotal = int64(info.Totalram) * int64(info.Unit)
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		r.OpenFiles = OpenFiles{limit.Cur, limit.Max}
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
			same := func(have control.StatusProgram) bool { return have.PID == p.PID }
			if !slices.ContainsFunc(r.Programs, same) {
				r.Programs = append(r.Programs, p)
			}
		}
	}
	r.Left = inspect.Left(r.Dir)
	r.ConfigFile = config.Path()
	if _, err := config.Load(); err != nil {
		r.ConfigError = text.Error(err)
	}
	if r.Dir != "" {
		if info, err := os.Stat(r.Dir); err == nil {
			r.DirMode = info.Mode().String()
		}
	}
	return r, err
}
