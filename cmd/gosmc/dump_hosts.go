package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/dump"
)

// defaultKept is how many events from before are shown.
const defaultKept = 256

// hostFlags are the flags of dump that choose running programs.
type hostFlags struct {
	pid     int
	name    string
	all     bool
	dir     string
	cursors time.Duration
	history int
}

func (f *hostFlags) register(flags *pflag.FlagSet) {
	flags.IntVar(&f.pid, "pid", 0, "show the messages of the running process `PID`")
	flags.StringVar(&f.name, "name", "", "show those of the hosts of a `NAME`, as ss shows it: a command, or PID/COMMAND")
	flags.BoolVar(&f.all, "all", false, "show those of all running hosts, also of such as start later")
	flags.StringVar(&f.dir, "dir", "", "with --pid, --name, --all: look in the run directory `DIR` only")
	flags.DurationVar(&f.cursors, "cursors", 0, "with them: also the cursors of each SMC connection, every `INTERVAL`")
	flags.IntVar(&f.history, "history", defaultKept, "with them: begin with at most this `NUMBER` of events from before")
}

// used reports whether running programs are to be shown, and not packets.
func (f *hostFlags) used() bool { return f.pid != 0 || f.name != "" || f.all }

// check checks the flags of dump that are about running programs.
func (f *hostFlags) check(d *dumpFlags, args []string) error {
	chosen := 0
	for _, used := range []bool{f.pid != 0, f.name != "", f.all} {
		if used {
			chosen++
		}
	}
	switch {
	case chosen == 0 && (f.dir != "" || f.cursors != 0 || f.history != defaultKept):
		return usagef("--dir, --cursors and --history need --pid, --name or --all")
	case chosen == 0:
		return nil
	case chosen > 1:
		return usagef("only one of --pid, --name and --all can be used")
	case len(args) > 0 || d.iface != "":
		return usagef("--pid, --name and --all show running programs: no file, no -i")
	case d.flow || d.list || d.stats || d.html != "" || d.write != "" || len(d.linkGroups) > 0:
		return usagef("--flow, --list, --stats, --html, --write and --linkgroup need packets: running programs have none")
	case f.pid < 0:
		return usagef("--pid %d: want the number of a process", f.pid)
	case f.history < 0:
		return usagef("--history %d: want 0 or more", f.history)
	case f.cursors != 0 && (f.cursors < 10*time.Millisecond || f.cursors > time.Hour):
		return usagef("--cursors %v: want 10ms to 1h", f.cursors)
	}
	return nil
}

// options are the options of a dump of running programs.
func (f *hostFlags) options(o dump.Options) *dump.HostOptions {
	return &dump.HostOptions{
		Options: o, PID: f.pid, Name: f.name, All: f.all, Dir: f.dir, Cursors: f.cursors, History: f.history,
	}
}
