package dump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
)

// PacketOptions are the options of [Packets]. If none of Flow, List, Stats, HTML and Write is set,
// messages are written one after the other. Of these, and of Verbose, Hex and JSON, the caller lets
// no more than one go to standard output.
type PacketOptions struct {
	Options
	Files       []string // captures; "-" is standard input, at most once
	Interface   string   // is captured on until ctx ends, in place of Files
	Promiscuous bool     // with Interface: also frames for other hosts

	Flow  bool   // ladder diagrams at the end
	ASCII bool   // with Flow: with ASCII characters
	List  bool   // a line for each connection at the end
	Stats bool   // counts at the end; with JSON as one object
	HTML  string // the file for a page, or "-"; empty: none
	Write string // the file for the selected packets as pcapng, or "-"; empty: none

	Terminal bool // Stdout is a terminal, to which packets are not written
	// Progress shows a line about how far the files are read, and clears it for the empty string. It
	// is called by the goroutine that reads. nil shows none.
	Progress func(line string)
}

// Lines reports whether messages are written one after the other: as lines, or as JSON.
func (o *PacketOptions) Lines() bool {
	if o.Verbose || o.Hex || o.JSON && !o.Stats {
		return true
	}
	return !o.Flow && !o.List && !o.Stats && o.HTML == "" && o.Write == ""
}

// Packets carries out a dump of files or of an interface. It returns at the end of the input, after
// Count messages, or when ctx ends, which for files is ctx's error. It fills in Filter.ConnGroups; o
// must not be used before Packets returns.
//
// Faults of files are read over and noted. They make an error at the end, as do numbers of
// connections and link groups that are not there. Other errors are [*OutputError],
// [*ProblemsError], and those of files and sockets. A reader of Stdout that has seen enough is none.
//
// If ctx ends while standard input has nothing, one goroutine goes on waiting for it, without
// touching o.
func Packets(ctx context.Context, o *PacketOptions) error {
	d, err := newDumper(ctx, o)
	if err != nil {
		return err
	}
	return d.run(ctx)
}

// A dumper carries out one dump.
type dumper struct {
	*PacketOptions
	names []string // of the inputs
	in    capture.Source
	live  capture.LiveSource // nil for files
	out   *output

	// Nothing wakes a reader that waits for standard input. When the command is interrupted, the
	// reader is left waiting, and must not touch anything if it wakes up.
	stdin bool
	gate  sync.Mutex // held while a packet of standard input is looked at
	left  bool       // the reader has been left; under gate

	tracker *dissect.Tracker
	faults  int
	gone    error         // the interface was removed
	inRow   int           // faults since the last packet
	shown   uint64        // messages that the filter chose
	wrong   uint64        // of those, with problems
	packets *packetChoice // of Write
	summary *dissect.Summary
}

// newDumper opens the inputs and the outputs.
func newDumper(ctx context.Context, o *PacketOptions) (*dumper, error) {
	d := &dumper{
		PacketOptions: o, names: o.Files, stdin: slices.Contains(o.Files, "-"),
		packets: newPacketChoice(&o.Filter),
	}
	if o.Interface != "" {
		live, err := capture.Live(o.Interface, capture.LiveOptions{Promiscuous: o.Promiscuous})
		if err != nil {
			return nil, err
		}
		d.live, d.in, d.names = live, live, []string{o.Interface}
	} else {
		in, err := d.open(ctx)
		if err != nil {
			return nil, err
		}
		d.in = in
		if len(o.Filter.LinkGroups) > 0 || len(o.Filter.Conns) > 0 {
			if err := d.findGroups(ctx); err != nil {
				in.Close()
				return nil, err
			}
		}
	}
	out, err := newOutput(d)
	if err != nil {
		d.in.Close()
		return nil, err
	}
	d.out = out
	return d, nil
}

// open opens files, and waits for the beginning of standard input only until it is interrupted.
func (d *dumper) open(ctx context.Context) (in capture.Source, err error) {
	if !d.stdin {
		return openCaptures(d.Files)
	}
	done := make(chan bool)
	go func() {
		in, err = openCaptures(d.Files)
		close(done)
	}()
	select {
	case <-done:
		return in, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// openCaptures opens files and merges them.
func openCaptures(names []string) (capture.Source, error) {
	var sources []capture.Source
	for _, name := range names {
		s, err := capture.Open(name)
		if err != nil {
			for _, other := range sources {
				other.Close()
			}
			return nil, err
		}
		sources = append(sources, s)
	}
	if len(sources) == 1 {
		return sources[0], nil
	}
	return capture.Merge(sources...), nil
}

// findGroups reads the files once to find out which connections belong to which link groups, so
// that their handshakes can be chosen, and the first contacts of chosen connections. Inputs that
// cannot be read twice are not.
func (d *dumper) findGroups(ctx context.Context) error {
	for _, name := range d.Files {
		if info, err := os.Stat(name); name == "-" || err != nil || !info.Mode().IsRegular() {
			return nil
		}
	}
	in, err := openCaptures(d.Files)
	if err != nil {
		return err
	}
	defer in.Close()
	stop := context.AfterFunc(ctx, func() { in.Close() })
	defer stop()
	groups := make(map[int]int)
	t := dissect.New(dissect.Options{NoICRC: true})
	note := func(e *dissect.Event) {
		if e.Conn != nil && e.Conn.Group != nil {
			groups[e.Conn.ID] = e.Conn.Group.ID
		}
		d.packets.learn(e)
	}
	for faults := 0; faults < maxFaultsInRow; {
		p, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			faults++
			continue
		}
		faults = 0
		t.Packet(*p, note)
	}
	d.Filter.ConnGroups = groups
	return nil
}

// run reads to the end of the input, or until it is interrupted, and closes everything.
func (d *dumper) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { d.in.Close() }) // which ends a Next that waits
	defer stop()
	defer d.in.Close()
	d.tracker = dissect.New(dissect.Options{})
	err := d.readUntilInterrupted(ctx)
	if errClose := d.finish(); err == nil {
		err = errClose
	}
	switch {
	case errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe):
		return nil // the reader has seen enough
	case err != nil:
		return err
	case d.live == nil && ctx.Err() != nil:
		return ctx.Err()
	case d.gone != nil:
		return d.gone
	case d.live == nil && d.missing() != nil: // of an interface it may still have come
		return d.missing()
	case d.summary.OtherLinkTypes > 0:
		return errOtherLinks(d.summary)
	case d.faults == 1:
		return errors.New("the input has 1 fault, which was read over")
	case d.faults > 0:
		return fmt.Errorf("the input has %d faults, which were read over", d.faults)
	case d.Filter.Problems && d.wrong > 0:
		return &ProblemsError{d.wrong}
	}
	return nil
}

// readUntilInterrupted is read, which of standard input does not always end.
func (d *dumper) readUntilInterrupted(ctx context.Context) error {
	if !d.stdin {
		return d.read()
	}
	done := make(chan error, 1)
	go func() { done <- d.read() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		d.gate.Lock()
		d.left = true
		d.gate.Unlock()
		return ctx.Err()
	}
}

// read hands all packets to the tracker.
func (d *dumper) read() error {
	show := d.startProgress()
	defer show.done()
	emit := d.event
	for n := 0; ; n++ {
		p, err := d.in.Next()
		more, err := d.take(p, err, emit)
		if !more || err != nil {
			return err
		}
		if n%4096 == 0 {
			show.update()
		}
	}
}

// take handles the results of Next, and reports whether it is to be called again.
func (d *dumper) take(p *capture.Packet, err error, emit func(*dissect.Event)) (more bool, _ error) {
	if d.stdin {
		d.gate.Lock()
		defer d.gate.Unlock()
		if d.left {
			return false, nil
		}
	}
	switch {
	case err == io.EOF:
		d.tracker.Close(emit)
		return false, d.out.err
	case errors.Is(err, capture.ErrDown): // which is no fault: packets come again
		d.Note(err.Error())
		return true, nil
	case errors.Is(err, capture.ErrGone):
		d.gone = err
		return true, nil // to the end
	case err != nil:
		d.fault(err)
		if d.inRow++; d.inRow == maxFaultsInRow {
			return false, errors.New("too many faults in a row: the rest is not read")
		}
		return true, nil
	}
	d.inRow = 0
	d.out.begin(p.Time)
	d.tracker.Packet(*p, emit)
	if d.out.packets != nil && d.packets.packet(p, d.tracker) {
		if err := d.out.packets.Write(p); err != nil {
			return false, err
		}
	}
	return !d.enough(), d.out.err
}

// event takes a message from the tracker.
func (d *dumper) event(e *dissect.Event) {
	if d.enough() {
		return
	}
	d.out.gather(e)
	chosen := d.Filter.Match(e)
	d.packets.event(e, chosen)
	if !chosen {
		return
	}
	d.shown++
	if len(e.Problems) > 0 {
		d.wrong++
	}
	d.out.event(e)
}

// enough reports whether Count is reached.
func (d *dumper) enough() bool { return d.Options.enough(d.shown) }

// fault tells of a fault of an input.
func (d *dumper) fault(err error) {
	d.faults++
	switch {
	case d.faults <= MaxShownFaults:
		d.Note(err.Error())
	case d.faults == MaxShownFaults+1:
		d.Note("more faults are counted and not shown")
	}
}

// finish writes the end of the output, and closes the outputs.
func (d *dumper) finish() error {
	stats := render.CaptureStats{Errors: d.faults, Live: d.live != nil}
	for _, name := range d.names {
		if name == "-" {
			name = "standard input"
		}
		stats.Inputs = append(stats.Inputs, name)
	}
	if d.live != nil {
		s := d.live.Stats()
		stats.Received, stats.Dropped = s.Received, s.Dropped
	}
	d.summary = d.tracker.Summary()
	err := d.out.close(d.summary, &stats)
	if d.live != nil {
		d.notef("%d packets of SMC, %d messages shown, %d packets dropped by the kernel",
			d.summary.Packets, d.shown, stats.Dropped)
	}
	return err
}

// missing says which connections and link groups were chosen and are not there; nil if all are.
func (d *dumper) missing() error {
	var errs []error
	for _, choice := range []struct {
		what    string
		numbers []int
		there   uint64
	}{
		{"connection", d.Filter.Conns, d.summary.Conns},
		{"link group", d.Filter.LinkGroups, d.summary.LinkGroups},
	} {
		var none []string
		for _, n := range choice.numbers {
			if uint64(n) > choice.there {
				none = append(none, strconv.Itoa(n))
			}
		}
		if len(none) > 0 {
			errs = append(errs, fmt.Errorf("there is no %s %s: the capture has %d",
				choice.what, strings.Join(none, ", "), choice.there))
		}
	}
	return errors.Join(errs...)
}

// errOtherLinks says which packets could not be looked into.
func errOtherLinks(s *dissect.Summary) error {
	names := make([]string, len(s.OtherLinks))
	for i, l := range s.OtherLinks {
		names[i] = l.String()
	}
	return fmt.Errorf("%d of %d packets were passed over, for they begin with what is not known here: %s; "+
		"capture on an interface with Ethernet or IP, or on \"any\"",
		s.OtherLinkTypes, s.Packets, strings.Join(names, ", "))
}

// title names the inputs on a page.
func (d *dumper) title() string {
	names := make([]string, len(d.names))
	for i, name := range d.names {
		names[i] = filepath.Base(name)
		if name == "-" {
			names[i] = "standard input"
		}
	}
	if len(names) > 3 {
		names = append(names[:3], fmt.Sprintf("and %d more", len(names)-3))
	}
	return strings.Join(names, ", ")
}
