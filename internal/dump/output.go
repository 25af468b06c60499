package dump

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/ladder"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/text"
)

// An output is where messages go: to standard output, one after the other or in the end, and to files.
type output struct {
	*PacketOptions
	print printer
	title string
	std   *flusher
	err   error // of writing messages; the first counts
	begun bool

	conns   *connList // of List
	flow    *ladder.Flow
	page    *ladder.Page
	packets *capture.Writer // of Write
	late    dissect.Filter  // of list, flow and page, which choose connections and link groups in the end
	files   []*os.File
	pageTo  io.Writer
	pcapTo  *bufio.Writer
}

// newOutput opens the outputs. Inputs are not overwritten.
func newOutput(d *dumper) (*output, error) {
	o := &output{
		PacketOptions: d.PacketOptions, print: newPrinter(&d.Options), title: d.title(), late: d.Filter,
	}
	o.late.Conns, o.late.LinkGroups = nil, nil
	for _, out := range []struct {
		name string
		set  func(io.Writer)
	}{
		{o.HTML, func(w io.Writer) { o.pageTo = w }},
		{o.Write, func(w io.Writer) { o.pcapTo = bufio.NewWriterSize(w, outputBuffer) }},
	} {
		switch out.name {
		case "":
		case "-":
			if out.name == o.Write && o.Terminal {
				o.closeFiles()
				return nil, &OutputError{"--write - writes packets, which are not for a terminal: " +
					"name a file, or pipe them, as into 'wireshark -k -i -'"}
			}
			out.set(o.Stdout)
		default:
			file, err := createApart(out.name, o.Files)
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
	o.std = newFlusher(o.Stdout, d.live != nil && o.Lines())
	return o, nil
}

// createApart creates a file that is none of the inputs.
func createApart(name string, inputs []string) (*os.File, error) {
	if old, err := os.Stat(name); err == nil {
		for _, input := range inputs {
			if in, err := os.Stat(input); err == nil && os.SameFile(old, in) {
				return nil, &OutputError{name + " is read, and cannot be written"}
			}
		}
	}
	return os.Create(name)
}

// begin says when the capture begins; the first call counts.
func (o *output) begin(start time.Time) {
	if o.begun {
		return
	}
	o.begun = true
	o.print.lines.Start = start
	conns, groups := o.Filter.Conns, o.Filter.LinkGroups
	if o.List {
		o.conns = newConnList(conns, groups)
	}
	if o.Flow {
		o.flow = ladder.NewFlow(ladder.FlowOptions{
			ASCII: o.ASCII, Start: start, Conns: conns, LinkGroups: groups,
		})
	}
	if o.pageTo != nil {
		o.page = ladder.NewPage(ladder.PageOptions{
			Title: o.title, Start: start, Conns: conns, LinkGroups: groups,
		})
	}
}

// gather hands the event, chosen or not, to the outputs that choose connections in the end.
func (o *output) gather(e *dissect.Event) {
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
func (o *output) event(e *dissect.Event) {
	if !o.Lines() || o.err != nil {
		return
	}
	b := o.print.line[:0]
	if o.JSON {
		b = append(render.AppendJSON(b, e), '\n')
	} else {
		b = o.print.appendLine(b, e)
	}
	o.print.line = b
	_, o.err = o.std.Write(b)
}

// close writes the end of the output and closes the files.
func (o *output) close(s *dissect.Summary, c *render.CaptureStats) error {
	o.begin(time.Time{}) // of a capture without packets
	err := o.err
	do := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	if o.conns != nil {
		do(func() error { return o.conns.result().Write(o.std) })
	}
	if o.flow != nil {
		do(func() error { return o.flow.Write(o.std) })
	}
	switch {
	case o.Stats && o.JSON:
		do(func() error { return text.JSON(o.std, render.NewStatsReport(s, c)) })
	case o.Stats:
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

func (o *output) closeFiles() error {
	var err error
	for _, f := range o.files {
		if e := f.Close(); e != nil && err == nil {
			err = fmt.Errorf("writing %s: %w", f.Name(), e)
		}
	}
	return err
}
