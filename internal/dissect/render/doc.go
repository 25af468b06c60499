// Package render writes the events of package dissect: as lines, with all fields, as bytes, and
// as JSON, and the counts as tables.
//
// A renderer is given events one after the other and nothing else: no packets and no tracker. So
// its input can be made by hand, too: traces and test failures show a message in the words in which
// a capture is shown, see [Describe] and [dissect.MessageEvent].
//
//	line.go, line_messages.go      one line for an event
//	fields*.go, verbose.go, hex.go every field of every message: as a list, beside the bytes
//	json.go                        the same for programs
//	stats.go                       the counts of a tracker
//
// Text that comes from packets is made harmless for terminals here.
package render
