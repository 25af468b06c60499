package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
)

const (
	dumpBuffer    = 256 << 10              // bytes that are gathered before they are written
	flushInterval = 100 * time.Millisecond // of a live capture: how long messages may wait in it
)

// A dumpOutput is where messages go: to standard output, one after the other or in the end, and to files.
type dumpOutput struct {
	flags *dumpFlags
	title string
	std   *flusher
	lines render.Lines
	line  []byte // used again for each message
	err   error  // of writing messages; the first counts
	begun bool

	conns   *connList // of --list
	flow    *render.Flow
	page    *render.Page
	packets *capture.Writer // of --write
	late    dissect.Filter  // of flow and page, which choose connections and link groups in the end
	files   []*os.File
	pageTo  io.Writer
	pcapTo  *bufio.Writer
}

// newDumpOutput opens the outputs. Inputs are not overwritten.
func newDumpOutput(d *dumper, inputs []string) (*dumpOutput, error) {
	f := d.flags
	o := &dumpOutput{flags: f, title: d.title(), late: f.filter, lines: render.Lines{Time: f.timeFormat}}
	o.late.Conns, o.late.LinkGroups = nil, nil
	for _, out := range []struct {
		name string
		set  func(io.Writer)
	}{
		{f.html, func(w io.Writer) { o.pageTo = w }},
		{f.write, func(w io.Writer) { o.pcapTo = bufio.NewWriterSize(w, dumpBuffer) }},
	} {
		switch out.name {
		case "":
		case "-":
			if out.name == f.write && isTerminal(d.cmd.OutOrStdout()) {
				o.closeFiles()
				return nil, usagef("--write - writes packets, which are not for a terminal: name a file, or pipe them, as into 'wireshark -k -i -'")
			}
			out.set(d.cmd.OutOrStdout())
		default:
			file, err := createApart(out.name, inputs)
			if err != nil {
				o.closeFiles()
				return nil, err
			}
			o.files = append(o.files, file)
			out.set(file)
		}
	}
	if o.pcapTo != nil {
		o.packets = capture.Create(o.pcapTo, d.names...)
	}
	o.std = newFlusher(d.cmd.OutOrStdout(), d.live != nil && f.lines())
	return o, nil
}

// createApart creates a file that is none of the inputs.
func createApart(name string, inputs []string) (*os.File, error) {
	if old, err := os.Stat(name); err == nil {
		for _, input := range inputs {
			if in, err := os.Stat(input); err == nil && os.SameFile(old, in) {
				return nil, usagef("%s is read, and cannot be written", name)
			}
		}
	}
	return os.Create(name)
}

// begin says when the capture begins; the first call counts.
func (o *dumpOutput) begin(start time.Time) {
	if o.begun {
		return
	}
	o.begun = true
	o.lines.Start = start
	f := o.flags
	if f.list {
		o.conns = newConnList(f.conns, f.linkGroups)
	}
	if f.flow {
		o.flow = render.NewFlow(render.FlowOptions{ASCII: f.ascii, Start: start, Conns: f.conns, LinkGroups: f.linkGroups})
	}
	if o.pageTo != nil {
		o.page = render.NewPage(render.PageOptions{Title: o.title, Start: start, Conns: f.conns, LinkGroups: f.linkGroups})
	}
}

// gather hands the event, chosen or not, to the outputs that choose connections in the end.
func (o *dumpOutput) gather(e *dissect.Event) {
	if o.conns == nil && o.flow == nil && o.page == nil || !o.late.Match(e) {
		return
	}
	if o.conns != nil {
		o.conns.add(e)
	}
	if o.flow != nil {
		o.flow.Add(e)
	}
	if o.page != nil {
		o.page.Add(e)
	}
}

// event prints a message that was chosen.
func (o *dumpOutput) event(e *dissect.Event) {
	f := o.flags
	if !f.lines() || o.err != nil {
		return
	}
	b := o.line[:0]
	if f.json {
		b = append(render.AppendJSON(b, e), '\n')
	} else {
		b = append(o.lines.Append(b, e), '\n')
		if f.verbose {
			b = render.AppendVerbose(b, e)
		}
		if f.hex {
			b = render.AppendHex(b, e)
		}
		if f.verbose || f.hex {
			b = append(b, '\n')
		}
	}
	o.line = b
	_, o.err = o.std.Write(b)
}

// close writes the end of the output and closes the files.
func (o *dumpOutput) close(s *dissect.Summary, c *render.CaptureStats) error {
	o.begin(time.Time{}) // of a capture without packets
	err := o.err
	do := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	if o.conns != nil {
		do(func() error { return o.conns.write(o.std) })
	}
	if o.flow != nil {
		do(func() error { return o.flow.Write(o.std) })
	}
	switch {
	case o.flags.stats && o.flags.json:
		do(func() error { return writeJSON(o.std, render.NewStatsReport(s, c)) })
	case o.flags.stats:
		do(func() error { return render.WriteStats(o.std, s, c) })
	}
	if o.page != nil {
		do(func() error { return o.page.Write(o.pageTo, s) })
	}
	if o.packets != nil {
		do(o.packets.Close)
		do(o.pcapTo.Flush)
	}
	if e := o.std.close(); err == nil {
		err = e
	}
	if e := o.closeFiles(); err == nil {
		err = e
	}
	return err
}

func (o *dumpOutput) closeFiles() error {
	var err error
	for _, f := range o.files {
		if e := f.Close(); e != nil && err == nil {
			err = fmt.Errorf("writing %s: %w", f.Name(), e)
		}
	}
	return err
}

// A flusher is a buffer in front of a writer. A live one is written out after flushInterval even
// if nothing more comes.
type flusher struct {
	mu    sync.Mutex
	b     *bufio.Writer
	timer *time.Timer // nil if it is not live
	armed bool
	ended bool
}

func newFlusher(w io.Writer, live bool) *flusher {
	f := &flusher{b: bufio.NewWriterSize(w, dumpBuffer)}
	if live {
		f.timer = time.AfterFunc(time.Hour, f.expire)
		f.timer.Stop()
	}
	return f
}

// Write implements [io.Writer].
func (f *flusher) Write(b []byte) (int, error) {
	if f.timer == nil {
		return f.b.Write(b) // by one goroutine
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.armed {
		f.armed = true
		f.timer.Reset(flushInterval)
	}
	return f.b.Write(b)
}

func (f *flusher) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
	if !f.ended {
		f.b.Flush() // an error stays, and Write returns it
	}
}

func (f *flusher) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if f.timer != nil {
		f.timer.Stop()
	}
	return f.b.Flush()
}
