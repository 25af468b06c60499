package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire/cdc"
)

// Shorthands that keep the table readable: outputs as words.
//
//	D C A     SendFlags with exactly these flags, as "send(D+C)"
//	eof       ReadEOF
//	wc, wcp   WriteClosed by us, by the peer
//	fail(k)   FailIO
//	rst close   ResetTCP, CloseTCP
//	t(n) -t   SetTimer n seconds from now, ClearTimer
//	clean dirty     ReleaseBuffers
//	end(k)    ConnClosed
func outputText(now time.Time, outs []ConnOutput) string {
	var words []string
	for _, o := range outs {
		words = append(words, outputWord(now, o))
	}
	return strings.Join(words, " ")
}

var failWords = map[FailKind]string{
	FailNone: "ok", FailReset: "reset", FailAborted: "aborted",
	FailPeerDied: "died", FailPeerEnded: "ended", FailTimeout: "timeout", FailProtocol: "protocol",
	FailLinkLost: "link",
}

func flagWord(f cdc.ConnFlags) string {
	return strings.NewReplacer("DoneWriting", "D", "Closed", "C", "Abort", "A", "|", "+").Replace(f.String())
}

func outputWord(now time.Time, o ConnOutput) string {
	switch o := o.(type) {
	case SendFlags:
		return "send(" + flagWord(o.Flags) + ")"
	case ReadEOF:
		return "eof"
	case WriteClosed:
		if o.ByPeer {
			return "wcp"
		}
		return "wc"
	case FailIO:
		return "fail(" + failWords[o.Kind] + ")"
	case ResetTCP:
		return "rst"
	case CloseTCP:
		return "close"
	case SetTimer:
		return fmt.Sprintf("t(%d)", int(o.At.Sub(now)/time.Second))
	case ClearTimer:
		return "-t"
	case ReleaseBuffers:
		if o.Clean {
			return "clean"
		}
		return "dirty"
	case ConnClosed:
		return "end(" + failWords[o.Why] + ")"
	}
	return fmt.Sprintf("unknown %T", o)
}

var epoch = coretest.Epoch

// Events as words, with the flags that come with them. "~": the peer had read everything.
var connEvents = map[string]ConnEvent{
	"established": {Kind: EventEstablished},
	"close":       {Kind: EventClose},
	"close!":      {Kind: EventClose, Abortive: true},
	"shutdown":    {Kind: EventShutdownWrite},
	"abort":       {Kind: EventAbort},
	"none":        {Kind: EventPeerFlags},
	"unsent":      {Kind: EventPeerFlags, Unsent: true},
	"C unsent":    {Kind: EventPeerFlags, Peer: cdc.Closed, Unsent: true},
	"D":           {Kind: EventPeerFlags, Peer: cdc.DoneWriting},
	"C":           {Kind: EventPeerFlags, Peer: cdc.Closed},
	"D+C":         {Kind: EventPeerFlags, Peer: cdc.DoneWriting | cdc.Closed},
	"A":           {Kind: EventPeerFlags, Peer: cdc.Abort},
	"D+A":         {Kind: EventPeerFlags, Peer: cdc.DoneWriting | cdc.Abort},
	"C+A":         {Kind: EventPeerFlags, Peer: cdc.Closed | cdc.Abort},
	"fin":         {Kind: EventTCPFin},
	"fin+D":       {Kind: EventTCPFin, Peer: cdc.DoneWriting},
	"fin+C":       {Kind: EventTCPFin, Peer: cdc.Closed},
	"fin+A":       {Kind: EventTCPFin, Peer: cdc.Abort},
	"rst":         {Kind: EventTCPReset},
	"rst+C":       {Kind: EventTCPReset, Peer: cdc.Closed},
	"rst+A":       {Kind: EventTCPReset, Peer: cdc.Abort},
	"dead":        {Kind: EventPeerDead},
	"fin~":        {Kind: EventTCPFin, ReadAll: true},
	"dead~":       {Kind: EventPeerDead, ReadAll: true},
	"dead+C":      {Kind: EventPeerDead, Peer: cdc.Closed},
	"link":        {Kind: EventLinkLost},
	"link+C":      {Kind: EventLinkLost, Peer: cdc.Closed},
	"element":     {Kind: EventElementLost},
	"violation":   {Kind: EventProtocolViolation},
	"early":       {Kind: EventTimer}, // before the deadline
	"late":        {Kind: EventTimer}, // at the deadline, or in an hour if there is none
}

// The states, with the facts that the state alone does not tell: whether the application is gone
// and which flags the peer has set. Each is reached by playing the events.
var connStates = []struct {
	name  string
	path  string
	state ConnState
}{
	{"Init", "", StateInit},
	{"Active", "established", StateActive},
	{"PCW1 open", "established shutdown", StatePeerCloseWait1},
	{"PCW1 gone", "established close", StatePeerCloseWait1},
	{"PCW2 open", "established shutdown D", StatePeerCloseWait2},
	{"PCW2 gone", "established close D", StatePeerCloseWait2},
	{"ACW1 D", "established D", StateAppCloseWait1},
	{"ACW1 C", "established C", StateAppCloseWait1},
	{"ACW1 C mute", "established C link", StateAppCloseWait1},
	{"ACW2 D", "established D shutdown", StateAppCloseWait2},
	{"ACW2 C", "established C shutdown", StateAppCloseWait2},
	{"PFCW", "established D close", StatePeerFinCloseWait},
	{"AFCW", "established shutdown C", StateAppFinCloseWait},
	{"PAW open", "established abort", StatePeerAbortWait},
	{"PAW gone", "established close!", StatePeerAbortWait},
	{"ProcessAbort A", "established A", StateProcessAbort},
	{"ProcessAbort violated", "established violation C", StateProcessAbort},
	{"ProcessAbort dead", "established dead", StateProcessAbort},
	{"Closed", "established close C", StateClosed},
}

// play drives a fresh connection along the words and returns it with the outputs of the last one.
func play(t *testing.T, mode Mode, words string) (*Conn, []ConnOutput) {
	t.Helper()
	c := NewConn(mode)
	var outs []ConnOutput
	for w := range strings.FieldsSeq(words) {
		ev, ok := connEvents[w]
		if !ok {
			t.Fatalf("no event %q", w)
		}
		now := epoch
		if w == "late" {
			if now = c.Deadline(); now.IsZero() {
				now = epoch.Add(time.Hour)
			}
		}
		outs = c.Handle(now, ev, nil)
	}
	return c, outs
}

// connEventOrder is the order of the events in the table.
var connEventOrder = append(strings.Fields(`established close close! shutdown abort
	none D C D+C A D+A C+A fin fin~ fin+D fin+C fin+A rst rst+C rst+A dead dead~ dead+C link link+C element violation early late`),
	"unsent", "C unsent")

// TestConnTable checks the next state and the outputs of every event in every state against
// testdata/conn.txt, in which each cell is spelled out. "=" is the same state and no output.
func TestConnTable(t *testing.T) {
	if len(connEventOrder) != len(connEvents) {
		t.Fatalf("the table has %d events, there are %d", len(connEventOrder), len(connEvents))
	}
	reached := map[ConnState]bool{}
	var b strings.Builder
	b.WriteString("# Every event in every state of an SMC-D connection: next state, outputs.\n" +
		"# The words are explained in conn_test.go. Rewritten with go test -run TestConnTable -update.\n")
	for _, s := range connStates {
		start, _ := play(t, SMCD, s.path)
		if start.State() != s.state {
			t.Fatalf("%s: the path %q leads to %v, want %v", s.name, s.path, start.State(), s.state)
		}
		reached[s.state] = true
		fmt.Fprintf(&b, "\n%s: %s\n", s.name, s.path)
		for _, w := range connEventOrder {
			cell := connCell(t, SMCD, s.path, w)
			fmt.Fprintf(&b, "\t%-12s %s\n", w, cell)

			// In SMC-R a FIN alone says nothing; everything else is as in SMC-D.
			want := cell
			if flags, ok := strings.CutPrefix(w, "fin"); ok {
				w2 := "none"
				if strings.HasPrefix(flags, "+") {
					w2 = flags[1:]
				}
				want = connCell(t, SMCR, s.path, w2)
			}
			if got := connCell(t, SMCR, s.path, w); got != want {
				t.Errorf("SMC-R, %s, %s: %s, want %s", s.name, w, got, want)
			}
		}
	}
	for s := StateInit; s <= StateClosed; s++ {
		if !reached[s] {
			t.Errorf("the table lacks the state %v", s)
		}
	}
	coretest.CheckTable(t, "conn.txt", b.String())
}

// connCell returns the cell of the table for one state and event.
func connCell(t *testing.T, mode Mode, path, word string) string {
	t.Helper()
	c, _ := play(t, mode, path)
	before := c.State()
	now := epoch
	switch word {
	case "early":
		if d := c.Deadline(); !d.IsZero() {
			now = d.Add(-1)
		}
	case "late":
		if now = c.Deadline(); now.IsZero() {
			now = epoch.Add(time.Hour)
		}
	}
	outs := c.Handle(now, connEvents[word], nil)
	if c.State() == before && len(outs) == 0 {
		return "="
	}
	return strings.TrimRight(c.State().String()+" "+outputText(now, outs), " ")
}
