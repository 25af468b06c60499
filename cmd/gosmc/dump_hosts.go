package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/traceview"
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

// chooses reports whether a host is meant.
func (f *hostFlags) chooses(st *control.Status) bool {
	switch {
	case f.pid != 0:
		return st.PID == f.pid || slices.ContainsFunc(st.Programs, func(p control.StatusProgram) bool { return p.PID == f.pid })
	case f.name != "":
		return slices.Contains([]string{st.Command, process(st.PID, st.Command), st.Name, st.GID}, f.name) ||
			slices.ContainsFunc(st.Programs, func(p control.StatusProgram) bool { return f.name == p.Command || f.name == process(p.PID, p.Command) })
	}
	return true
}

// A hostsDump prints the events of running programs. It is a [survey.Sink].
type hostsDump struct {
	cmd    *cobra.Command
	flags  *dumpFlags
	denied int // hosts of other users
	euid   int // ours

	view   traceview.View
	lines  render.Lines
	out    *bufio.Writer
	line   []byte
	number int
	shown  uint64
	wrong  uint64
	lost   uint64
	width  int // of the labels so far
}

func newHostsDump(cmd *cobra.Command, flags *dumpFlags) *hostsDump {
	return &hostsDump{
		cmd: cmd, flags: flags,
		euid:  os.Geteuid(),
		lines: render.Lines{Time: flags.timeFormat},
		out:   bufio.NewWriterSize(cmd.OutOrStdout(), dumpBuffer),
	}
}

// runHosts shows the events of running programs.
func runHosts(cmd *cobra.Command, flags *dumpFlags) error {
	d := newHostsDump(cmd, flags)
	h := &flags.hosts
	err := survey.Follow(cmd.Context(), survey.Options{
		Dir: h.dir, Choose: h.chooses, Stay: h.all,
		Trace: control.TraceOptions{History: h.history, Cursors: h.cursors},
	}, d)
	if e := d.out.Flush(); err == nil {
		err = e
	}
	switch {
	case errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe):
		return nil // the reader has seen enough
	case err != nil:
		return err
	}
	cmd.PrintErrf("gosmc: %d messages shown, %d lost\n", d.shown, d.lost)
	if flags.problems && d.wrong > 0 {
		return errProblems(d.wrong)
	}
	return nil
}

// Unanswered notes that a host does not answer.
func (d *hostsDump) Unanswered(err error) {
	if errors.Is(err, fs.ErrPermission) {
		d.denied++
	} else if d.flags.hosts.all {
		d.cmd.PrintErrln("gosmc:", printable(err.Error()))
	}
}

// Found says which host is followed from now on.
func (d *hostsDump) Found(h *survey.Host) {
	d.width = max(d.width, len(h.Label))
	d.cmd.PrintErrf("gosmc: %s is %s, run directory %s\n", h.Label, process(h.PID, h.Command), printable(h.Dir))
}

// Nobody says why there is no host to follow; nil if one may come.
func (d *hostsDump) Nobody() error {
	f := &d.flags.hosts
	where := "the run directories"
	if f.dir != "" {
		where = f.dir
	}
	if e := survey.Missing(f.dir); e != nil {
		missing := printable(e.Path + ": " + e.Text)
		if !f.all {
			return errors.New(missing)
		}
		d.cmd.PrintErrln("gosmc:", missing) // it may come
	}
	switch {
	case f.all:
		d.cmd.PrintErrf("gosmc: there is no host in %s yet\n", printable(where))
		if d.denied > 0 {
			d.cmd.PrintErrf("gosmc: not shown: what belongs to other users (%d found); run as root to see it\n", d.denied)
		}
		return nil
	case f.name != "" && d.denied > 0:
		return fmt.Errorf("no host in %s is called %q, but %d of other users are there: run as root to see them", where, f.name, d.denied)
	case f.name != "":
		return fmt.Errorf("no host in %s is called %q; 'gosmc ss -a' shows those that there are", where, f.name)
	}
	info, err := os.Stat("/proc/" + strconv.Itoa(f.pid))
	if err != nil {
		return fmt.Errorf("there is no process %d", f.pid)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && d.euid != 0 && int(st.Uid) != d.euid {
		return fmt.Errorf("process %d belongs to user %d: run as that user or as root", f.pid, st.Uid)
	}
	return fmt.Errorf("process %d has no host in %s: it has not used gosmc yet, or has a GOSMC_DIR of its own, see --dir", f.pid, where)
}

// Settled flushes the output.
func (d *hostsDump) Settled() error { return d.out.Flush() }

// Event prints an event if the filter chooses it. more is false when --count is reached.
func (d *hostsDump) Event(e *survey.Event) (more bool, err error) {
	if e.End != nil {
		err = d.ended(e)
	} else {
		err = d.show(e)
	}
	return d.flags.count == 0 || d.shown < d.flags.count, err
}

func (d *hostsDump) show(e *survey.Event) error {
	d.number++
	event := d.view.Event(e.Host.Label, &e.TraceEvent)
	event.Packet.Number = d.number
	if e.Kind == control.TraceLost {
		d.lost += e.Count
	} else {
		if !d.flags.filter.Match(event) {
			return nil
		}
		d.shown++
		if len(event.Problems) > 0 {
			d.wrong++
		}
	}
	b := d.line[:0]
	if d.flags.json {
		b = appendHostJSON(b, e, event)
	} else {
		b = fmt.Appendf(b, "%-*s  %-4s", d.width, e.Host.Label, way(e))
		b = append(d.lines.Append(b, event), '\n')
		if d.flags.verbose {
			b = render.AppendVerbose(b, event)
		}
		if d.flags.hex {
			b = render.AppendHex(b, event)
		}
		if d.flags.verbose || d.flags.hex {
			b = append(b, '\n')
		}
	}
	d.line = b
	_, err := d.out.Write(b)
	return err
}

// ended says why nothing more comes of a host.
func (d *hostsDump) ended(e *survey.Event) error {
	if err := d.out.Flush(); err != nil { // its earlier lines come first
		return err
	}
	d.cmd.PrintErrf("gosmc: %s: %s\n", e.Host.Label, printable(e.End.Error()))
	return nil
}

// way says which way a message went, "" for an event that is no message.
func way(e *survey.Event) string {
	switch e.Kind {
	case control.TraceCLC, control.TraceLLC, control.TraceCDC, control.TraceRendezvous, control.TraceCursors:
		if e.Sent {
			return "sent"
		}
		return "recv"
	}
	return ""
}

// appendHostJSON appends the object of a capture's event, with the members that only running hosts have in
// front: host, pid and command, event (its kind), and sent of a message.
func appendHostJSON(b []byte, e *survey.Event, event *dissect.Event) []byte {
	b = fmt.Appendf(b, `{"host":%s,"pid":%d,"command":%s,"event":%s,`,
		jsonString(e.Host.Label), e.Host.PID, jsonString(printable(e.Host.Command)), jsonString(string(e.Kind)))
	if way(e) != "" {
		b = fmt.Appendf(b, `"sent":%t,`, e.Sent)
	}
	start := len(b)
	b = render.AppendJSON(b, event)
	b = slices.Delete(b, start, start+1) // the brace
	return append(b, '\n')
}

func jsonString(s string) []byte {
	b, _ := json.Marshal(s) // a string has no error
	return b
}
