package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/traceview"
)

const (
	hostScan     = 100 * time.Millisecond // how often it is looked for new hosts
	hostSettle   = 125 * time.Millisecond // how long events wait for older ones of other hosts, also of new ones
	maxUnsettled = 1 << 14                // events that wait for that, at most
	defaultKept  = 256                    // events from before
)

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
	flags.StringVar(&f.dir, "dir", "", "with --pid, --name, --all: look in this run directory only")
	flags.DurationVar(&f.cursors, "cursors", 0, "with them: also the cursors of each SMC connection, every `INTERVAL`")
	flags.IntVar(&f.history, "history", defaultKept, "with them: begin with at most this `NUMBER` of events from before")
}

// used reports whether running programs are to be shown, and not packets.
func (f *hostFlags) used() bool { return f.pid != 0 || f.name != "" || f.all }

// check checks what the flags of dump say about running programs.
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
	case d.flow || d.stats || d.html != "" || d.write != "" || len(d.linkGroups) > 0:
		return usagef("--flow, --stats, --html, --write and --linkgroup need packets: running programs have none")
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
		return st.PID == f.pid
	case f.name != "":
		return slices.Contains([]string{st.Command, process(st.PID, st.Command), st.Name, st.GID}, f.name)
	}
	return true
}

// A hostEvent is what came from a host.
type hostEvent struct {
	host  *followed
	event control.TraceEvent
	end   error // instead: why nothing more comes
	old   bool  // it has waited for those before it
}

// followed is a host whose events are shown.
type followed struct {
	control.Status
	label string
}

// A hostsDump carries out a dump of running programs.
type hostsDump struct {
	cmd     *cobra.Command
	flags   *dumpFlags
	opts    control.TraceOptions
	gather  gatherFlags
	seen    map[string]bool // control sockets that were looked at, by path
	denied  int             // hosts of other users
	euid    int             // ours
	running int             // hosts that are followed
	failed  error

	ofProcess map[int]int // hosts that have been followed, by process

	events  chan hostEvent
	waiting []hostEvent
	view    traceview.View
	lines   dissect.Lines
	out     *bufio.Writer
	line    []byte
	number  int
	shown   uint64
	wrong   uint64
	lost    uint64
	width   int // of the labels so far
}

func newHostsDump(cmd *cobra.Command, flags *dumpFlags) *hostsDump {
	return &hostsDump{
		cmd: cmd, flags: flags,
		opts:   control.TraceOptions{History: flags.hosts.history, Cursors: flags.hosts.cursors},
		gather: gatherFlags{dir: flags.hosts.dir},
		seen:   make(map[string]bool),
		euid:   os.Geteuid(),

		ofProcess: make(map[int]int),

		events: make(chan hostEvent, 256),
		lines:  dissect.Lines{Time: flags.timeFormat},
		out:    bufio.NewWriterSize(cmd.OutOrStdout(), dumpBuffer),
	}
}

// runHosts shows what running programs do.
func runHosts(cmd *cobra.Command, flags *dumpFlags) error {
	d := newHostsDump(cmd, flags)
	err := d.run(cmd.Context())
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

// run shows events until it is interrupted, nothing more can come, or there were enough.
func (d *hostsDump) run(interrupted context.Context) error {
	ctx, stop := context.WithCancel(interrupted)
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	d.scan(ctx, &following)
	if d.running == 0 {
		if err := d.nobody(); err != nil {
			return err
		}
	}
	scan := time.NewTicker(hostScan)
	defer scan.Stop()
	settle := time.NewTicker(hostSettle)
	defer settle.Stop()
	for d.flags.hosts.all || d.running > 0 {
		select {
		case <-interrupted.Done():
			return d.settle(true)
		case <-scan.C:
			d.scan(ctx, &following)
		case <-settle.C:
			if err := d.settle(false); err != nil || d.enough() {
				return err
			}
		case e := <-d.events:
			if d.waiting = append(d.waiting, e); len(d.waiting) >= maxUnsettled {
				if err := d.settle(true); err != nil || d.enough() {
					return err
				}
			}
		}
	}
	if d.failed != nil && d.number == 0 {
		return d.failed // nothing was heard of anybody
	}
	return nil
}

// enough reports whether --count is reached.
func (d *hostsDump) enough() bool { return d.flags.count > 0 && d.shown >= d.flags.count }

// scan begins to follow hosts that were not there before.
func (d *hostsDump) scan(ctx context.Context, following *sync.WaitGroup) {
	dirs := []string{d.gather.dir}
	if d.gather.dir == "" {
		dirs = systemDirFinder().find()
	}
	there := make(map[string]bool)
	for _, dir := range dirs {
		list, errs := control.GatherSome(ctx, dir, func(name string) bool {
			path := filepath.Join(dir, name)
			there[path] = d.seen[path]
			return !d.seen[path]
		})
		for _, err := range errs {
			d.cannotAsk(dir, err, there)
		}
		for i := range list {
			there[filepath.Join(dir, list[i].Name)] = true
			if d.flags.hosts.chooses(&list[i]) {
				d.follow(ctx, following, &list[i])
			}
		}
	}
	d.seen = there
}

// cannotAsk notes that a host does not answer, so that it is asked once only.
func (d *hostsDump) cannotAsk(dir string, err error, there map[string]bool) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if e, ok := errors.AsType[*control.Error](err); ok {
		there[filepath.Join(dir, filepath.Base(e.Path))] = true
	}
	if errors.Is(err, fs.ErrPermission) {
		d.denied++
	} else if d.flags.hosts.all {
		d.cmd.PrintErrln("gosmc:", printable(err.Error()))
	}
}

// follow begins to follow a host.
func (d *hostsDump) follow(ctx context.Context, following *sync.WaitGroup, st *control.Status) {
	d.ofProcess[st.PID]++
	f := &followed{Status: *st, label: fmt.Sprintf("%d.%d", st.PID, d.ofProcess[st.PID])}
	f.Connections, f.Listeners = nil, nil
	d.width = max(d.width, len(f.label))
	d.running++
	d.cmd.PrintErrf("gosmc: %s is %s, run directory %s\n", f.label, process(st.PID, st.Command), printable(st.Dir))
	following.Go(func() {
		send := func(e hostEvent) {
			select {
			case d.events <- e:
			case <-ctx.Done():
			}
		}
		err := control.FollowTrace(ctx, st.Dir, st.Name, d.opts, func(e control.TraceEvent) { send(hostEvent{host: f, event: e}) })
		send(hostEvent{host: f, event: control.TraceEvent{Time: time.Now()}, end: err})
	})
}

// nobody says why there is no host to follow; nil if one may come.
func (d *hostsDump) nobody() error {
	f := &d.flags.hosts
	where := "the run directories"
	if f.dir != "" {
		where = f.dir
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

// settle shows the events that have waited long enough for older ones of other hosts, or all.
func (d *hostsDump) settle(all bool) error {
	if len(d.waiting) == 0 {
		return nil
	}
	slices.SortStableFunc(d.waiting, func(a, b hostEvent) int { return a.event.Time.Compare(b.event.Time) })
	n := len(d.waiting)
	if !all {
		for ; n > 0 && !d.waiting[n-1].old; n-- {
		}
	}
	for i := range d.waiting[:n] {
		if d.enough() {
			break
		}
		if err := d.show(&d.waiting[i]); err != nil {
			return err
		}
	}
	d.waiting = slices.Delete(d.waiting, 0, n)
	for i := range d.waiting {
		d.waiting[i].old = true
	}
	return d.out.Flush()
}

// show prints an event if the filter chooses it.
func (d *hostsDump) show(e *hostEvent) error {
	if e.end != nil {
		return d.ended(e)
	}
	d.number++
	event := d.view.Event(e.host.label, &e.event)
	event.Packet.Number = d.number
	if e.event.Kind == control.TraceLost {
		d.lost += e.event.Count
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
		b = fmt.Appendf(b, "%-*s  %-4s", d.width, e.host.label, e.way())
		b = append(d.lines.Append(b, event), '\n')
		if d.flags.verbose {
			b = event.AppendVerbose(b)
		}
		if d.flags.hex {
			b = event.AppendHex(b)
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
func (d *hostsDump) ended(e *hostEvent) error {
	d.running--
	if errors.Is(e.end, context.Canceled) {
		return nil
	}
	if _, ok := errors.AsType[*control.Error](e.end); ok && d.failed == nil {
		d.failed = e.end
	}
	if err := d.out.Flush(); err != nil { // what it has said comes first
		return err
	}
	d.cmd.PrintErrf("gosmc: %s: %s\n", e.host.label, printable(e.end.Error()))
	return nil
}

// way says which way a message went, "" for what is none.
func (e *hostEvent) way() string {
	switch e.event.Kind {
	case control.TraceCLC, control.TraceCDC, control.TraceRendezvous, control.TraceCursors:
		if e.event.Sent {
			return "sent"
		}
		return "recv"
	}
	return ""
}

// appendHostJSON appends the object of a capture's event, with the members that only running hosts have in
// front: host, pid and command, event (its kind), and sent of a message.
func appendHostJSON(b []byte, e *hostEvent, event *dissect.Event) []byte {
	b = fmt.Appendf(b, `{"host":%s,"pid":%d,"command":%s,"event":%s,`,
		jsonString(e.host.label), e.host.PID, jsonString(printable(e.host.Command)), jsonString(string(e.event.Kind)))
	if e.way() != "" {
		b = fmt.Appendf(b, `"sent":%t,`, e.event.Sent)
	}
	start := len(b)
	b = event.AppendJSON(b)
	b = slices.Delete(b, start, start+1) // the brace
	return append(b, '\n')
}

func jsonString(s string) []byte {
	b, _ := json.Marshal(s) // a string has no error
	return b
}
