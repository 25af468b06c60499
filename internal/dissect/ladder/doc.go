// Package ladder draws the connections and link groups of package dissect as ladders, in text and as a
// page for a browser: a step for each message or run of data, from one end to the other.
//
// A drawing is given the events of a whole capture, one after the other. A step has the words of
// package render.
//
//	ladder.go, run.go  steps of connections and link groups, runs of data, and plots of cursors
//	flow.go            ladders in text
//	page.go, page/     one HTML page
//
// Text that comes from packets is made harmless for terminals and browsers here. Drawings keep a bounded
// number of steps and messages, not the capture. They say how much they leave out.
package ladder
