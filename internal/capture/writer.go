package capture

import (
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/gosmc/smc/internal/frame"
)

// A Writer writes packets as a pcapng file, with times in nanoseconds. It is for one goroutine
// at a time.
type Writer struct {
	w     io.Writer
	names []string
	ng    *pcapgo.NgWriter
	index map[writerInterface]int
}

// A writerInterface is the key of an interface that gets its own description in the file.
type writerInterface struct {
	source, index int
	link          frame.LinkType
}

// Create makes a [Writer] to w. names are the names of the sources, by Packet.Source; each source
// gets an interface of that name, or one for each of its interfaces and link types. A source
// without a name is named by its index. Nothing is written before the first packet or
// [Writer.Close].
func Create(w io.Writer, names ...string) *Writer {
	return &Writer{w: w, names: names, index: make(map[writerInterface]int)}
}

// Write writes p, which is not kept. A packet without a time gets the time of 1970. Write returns
// the errors of the writer below; how much a failed call wrote is not known.
func (w *Writer) Write(p *Packet) error {
	index, err := w.interfaceOf(p)
	if err != nil {
		return err
	}
	at := p.Time
	if at.IsZero() {
		at = time.Unix(0, 0)
	}
	return w.ng.WritePacket(gopacket.CaptureInfo{
		Timestamp:      at,
		CaptureLength:  len(p.Data),
		Length:         max(p.OrigLen, len(p.Data)),
		InterfaceIndex: index,
	}, p.Data)
}

// interfaceOf returns the index of the interface of p, which it describes when it is new.
func (w *Writer) interfaceOf(p *Packet) (index int, err error) {
	key := writerInterface{p.Source, p.Interface, p.Link}
	if index, ok := w.index[key]; ok {
		return index, nil
	}
	if len(w.index) == MaxInterfaces {
		return 0, fmt.Errorf("packets of more than %d interfaces", MaxInterfaces)
	}
	description := pcapgo.NgInterface{
		Name:                fmt.Sprintf("source %d", p.Source),
		LinkType:            layers.LinkType(p.Link),
		TimestampResolution: 9,
	}
	if p.Source >= 0 && p.Source < len(w.names) && w.names[p.Source] != "" {
		description.Name = w.names[p.Source]
	}
	if p.Interface > 0 {
		description.Name += fmt.Sprintf(" interface %d", p.Interface)
	}
	if w.ng == nil {
		err = w.begin(description)
	} else {
		index, err = w.ng.AddInterface(description)
	}
	if err != nil {
		return 0, err
	}
	w.index[key] = index
	return index, nil
}

// begin writes the section header and the first interface.
func (w *Writer) begin(first pcapgo.NgInterface) (err error) {
	w.ng, err = pcapgo.NewNgWriterInterface(w.w, first, pcapgo.NgWriterOptions{
		SectionInfo: pcapgo.NgSectionInfo{Application: "gosmc dump"},
	})
	return err
}

// Flush hands the buffered bytes to the writer below.
func (w *Writer) Flush() error {
	if w.ng == nil {
		return nil
	}
	return w.ng.Flush()
}

// Close makes the file complete: one without packets, too, is a pcapng file. It does not close
// the writer below.
func (w *Writer) Close() error {
	if w.ng == nil {
		if err := w.begin(pcapgo.NgInterface{Name: "none", LinkType: layers.LinkTypeEthernet, TimestampResolution: 9}); err != nil {
			return err
		}
	}
	return w.ng.Flush()
}
