// Package dump is the engine of gosmc dump. [Packets] reads captures, or an interface, has package
// dissect make messages of the packets, and writes those that a filter chooses. [Hosts] does so with
// the events of running programs. Package render has the forms in which messages are written.
//
// [Arguments] are the command line of the verb, whose flags it registers. They are checked here and
// made into [Options]. A caller gives standard output, and a function for notes.
package dump

import (
	"fmt"
	"io"
	"time"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
)

// Limits of the reports about faulty input.
const (
	// MaxShownFaults is how many faults of all inputs are noted. The others are counted.
	MaxShownFaults = 10

	maxFaultsInRow = 1000 // without a packet between them, before an input is given up
)

const (
	outputBuffer     = 256 << 10              // bytes that are gathered before they are written
	flushInterval    = 100 * time.Millisecond // of a live capture: how long messages may wait in it
	progressInterval = 200 * time.Millisecond // between two lines of progress
)

// Options say which messages are shown, how, and where.
type Options struct {
	Filter       dissect.Filter
	Time         render.TimeFormat
	Verbose, Hex bool   // all fields below the line of a message, and its bytes
	JSON         bool   // one object for each message, in place of lines
	Count        uint64 // messages after which the dump ends; 0: no limit

	Stdout io.Writer // which one goroutine at a time writes
	// Note tells the user something beside the messages, in one line without a newline. The text may
	// have control characters of others. One goroutine at a time calls it, but for a dump of standard
	// input that was interrupted.
	Note func(text string)
}

func (o *Options) notef(format string, args ...any) { o.Note(fmt.Sprintf(format, args...)) }

// enough reports whether so many messages are all that were asked for.
func (o *Options) enough(shown uint64) bool { return o.Count > 0 && shown >= o.Count }

// A printer writes messages as lines or as JSON.
type printer struct {
	*Options
	lines render.Lines
	line  []byte // used again for each message
}

func newPrinter(o *Options) printer { return printer{Options: o, lines: render.Lines{Time: o.Time}} }

// appendLine appends a message in lines.
func (p *printer) appendLine(b []byte, e *dissect.Event) []byte {
	b = append(p.lines.Append(b, e), '\n')
	if p.Verbose {
		b = render.AppendVerbose(b, e)
	}
	if p.Hex {
		b = render.AppendHex(b, e)
	}
	if p.Verbose || p.Hex {
		b = append(b, '\n')
	}
	return b
}

// A ProblemsError says that messages with problems were shown, to a caller that has asked for
// those: Filter.Problems.
type ProblemsError struct {
	N uint64 // messages; at least 1
}

func (e *ProblemsError) Error() string {
	if e.N == 1 {
		return "1 message has problems"
	}
	return fmt.Sprintf("%d messages have problems", e.N)
}

// An OutputError says that an output was asked for that cannot be: a mistake of the user, who can
// name another one.
type OutputError struct {
	Text string
}

func (e *OutputError) Error() string { return e.Text }
