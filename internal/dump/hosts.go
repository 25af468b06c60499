package dump

import (
	"bufio"
	"context"
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

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/internal/traceview"
)

// HostOptions are the options of [Hosts]. One of PID, Name and All is set.
type HostOptions struct {
	Options
	PID  int    // hosts of this process
	Name string // hosts of this name, as gosmc ss shows it: a command, or PID/COMMAND
	All  bool   // all hosts, also hosts that start later
	Dir  string // look in this run directory only; empty: in all

	Cursors time.Duration // between two samples of the cursors of a connection; 0: none
	History int           // events from before with which the dump begins, at most
}

// chooses reports whether a host is meant.
func (o *HostOptions) chooses(st *control.Status) bool {
	named := func(pid int, command string) bool {
		return o.Name == command || o.Name == text.Process(pid, command)
	}
	switch {
	case o.PID != 0:
		is := func(p control.StatusProgram) bool { return p.PID == o.PID }
		return st.PID == o.PID || slices.ContainsFunc(st.Programs, is)
	case o.Name != "":
		is := func(p control.StatusProgram) bool { return named(p.PID, p.Command) }
		return named(st.PID, st.Command) || o.Name == st.Name || o.Name == st.GID ||
			slices.ContainsFunc(st.Programs, is)
	}
	return true
}

// A hostsDump prints the events of running programs. It is a [survey.Sink].
type hostsDump struct {
	*HostOptions
	denied int // hosts of other users
	euid   int // ours

	view   traceview.View
	print  printer
	out    *bufio.Writer
	number int
	shown  uint64
	wrong  uint64
	lost   uint64
	width  int // of the labels so far
}

func newHostsDump(o *HostOptions) *hostsDump {
	return &hostsDump{
		HostOptions: o,
		euid:        os.Geteuid(),
		print:       newPrinter(&o.Options),
		out:         bufio.NewWriterSize(o.Stdout, outputBuffer),
	}
}

// Hosts carries out a dump of the events of running programs. It returns after Count messages, when
// nothing more can come, or when ctx ends, which is no error. The last note counts the messages.
//
// The error says why there is no host to show, unless All is set, or it is a [*ProblemsError] or one of
// Stdout. A reader of Stdout that has seen enough is none.
func Hosts(ctx context.Context, o *HostOptions) error {
	d := newHostsDump(o)
	err := survey.Follow(ctx, survey.Options{
		Dir: o.Dir, Choose: o.chooses, Stay: o.All,
		Trace: control.TraceOptions{History: o.History, Cursors: o.Cursors},
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
	o.notef("%d messages shown, %d lost", d.shown, d.lost)
	if o.Filter.Problems && d.wrong > 0 {
		return &ProblemsError{d.wrong}
	}
	return nil
}

// Unanswered notes that a host does not answer.
func (d *hostsDump) Unanswered(err error) {
	if errors.Is(err, fs.ErrPermission) {
		d.denied++
	} else if d.All {
		d.Note(err.Error())
	}
}

// Found says which host is followed from now on.
func (d *hostsDump) Found(h *survey.Host) {
	d.width = max(d.width, len(h.Label))
	d.notef("%s is %s, run directory %s", h.Label, text.Process(h.PID, h.Command), h.Dir)
}

// Nobody says why there is no host to follow; nil if one may come.
func (d *hostsDump) Nobody() error {
	where := "the run directories"
	if d.Dir != "" {
		where = d.Dir
	}
	if e := survey.Missing(d.Dir); e != nil {
		missing := e.Path + ": " + e.Text
		if !d.All {
			return errors.New(text.Printable(missing))
		}
		d.Note(missing) // it may come
	}
	switch {
	case d.All:
		d.notef("there is no host in %s yet", where)
		if d.denied > 0 {
			d.notef("not shown: what belongs to other users (%d found); run as root to see it", d.denied)
		}
		return nil
	case d.Name != "" && d.denied > 0:
		return fmt.Errorf("no host in %s is called %q, "+
			"but %d of other users are there: run as root to see them", where, d.Name, d.denied)
	case d.Name != "":
		return fmt.Errorf("no host in %s is called %q; "+
			"'gosmc ss -a' shows those that there are", where, d.Name)
	}
	info, err := os.Stat("/proc/" + strconv.Itoa(d.PID))
	if err != nil {
		return fmt.Errorf("there is no process %d", d.PID)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && d.euid != 0 && int(st.Uid) != d.euid {
		return fmt.Errorf("process %d belongs to user %d: run as that user or as root", d.PID, st.Uid)
	}
	return fmt.Errorf("process %d has no host in %s: "+
		"it has not used gosmc yet, or has a GOSMC_DIR of its own, see --dir", d.PID, where)
}

// Settled flushes the output.
func (d *hostsDump) Settled() error { return d.out.Flush() }

// Event prints an event if the filter chooses it. more is false when Count is reached.
func (d *hostsDump) Event(e *survey.Event) (more bool, err error) {
	if e.End != nil {
		err = d.ended(e)
	} else {
		err = d.show(e)
	}
	return !d.enough(d.shown), err
}

func (d *hostsDump) show(e *survey.Event) error {
	d.number++
	event := d.view.Event(e.Host.Label, &e.TraceEvent)
	event.Packet.Number = d.number
	if e.Kind == control.TraceLost {
		d.lost += e.Count
	} else {
		if !d.Filter.Match(event) {
			return nil
		}
		d.shown++
		if len(event.Problems) > 0 {
			d.wrong++
		}
	}
	b := d.print.line[:0]
	if d.JSON {
		b = appendHostJSON(b, e, event)
	} else {
		b = fmt.Appendf(b, "%-*s  %-4s", d.width, e.Host.Label, way(e))
		b = d.print.appendLine(b, event)
	}
	d.print.line = b
	_, err := d.out.Write(b)
	return err
}

// ended says why nothing more comes of a host.
func (d *hostsDump) ended(e *survey.Event) error {
	if err := d.out.Flush(); err != nil { // its earlier lines come first
		return err
	}
	d.notef("%s: %s", e.Host.Label, e.End)
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
		jsonString(e.Host.Label), e.Host.PID,
		jsonString(text.Printable(e.Host.Command)), jsonString(string(e.Kind)))
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
