package core

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// hsEvents are all inputs of a handshake. A message fits the handshake as it is, so that only
// the state decides.
var hsEventOrder = strings.Fields(`start proposal accept confirm decline sync broken reserved
	prepared unprepared failed sync-failed requested replied linked up down tcp-end early late`)

// hsStates lists the states for each type that differs: SMC-D, SMC-R on first contact and later.
// rest says with "r" or "d" which type, with "1" that it is a first contact.
var hsStates = []struct {
	role Role
	kind string // "d1 d0 r1 r0 s1": SMC-D or SMC-R, first contact or not; s: SMC-R with one link at most
	path string
	want HandshakeState
}{
	{RoleClient, "d1", "", HandshakeInit},
	{RoleClient, "d1", "start", HandshakeAwaitAccept},
	{RoleClient, "d1", "start accept", HandshakePreparing},
	{RoleClient, "d0", "start accept", HandshakePreparing},
	{RoleClient, "r1", "start accept", HandshakePreparing},
	{RoleClient, "r0", "start accept", HandshakePreparing},
	{RoleClient, "r1", "start accept prepared", HandshakeLinkWait},
	{RoleClient, "r1", "start accept prepared down", HandshakeLinkWait},
	{RoleClient, "r1", "start accept prepared requested", HandshakeLinkTurn},
	{RoleClient, "r1", "start accept prepared requested replied", HandshakeLinkReplied},
	{RoleClient, "s1", "start accept prepared requested replied", HandshakeLinkReplied},
	{RoleClient, "r1", "start accept prepared requested replied linked", HandshakeAddLink},
	{RoleClient, "s1", "start accept prepared requested replied linked", HandshakeAddLink},
	{RoleClient, "r1", "start accept prepared requested replied linked up", HandshakeEstablished},
	{RoleClient, "d1", "start accept prepared", HandshakeEstablished},
	{RoleClient, "r0", "start accept prepared", HandshakeEstablished},
	{RoleClient, "d1", "start decline", HandshakeFellBack},
	{RoleClient, "d1", "start tcp-end", HandshakeFailed},

	{RoleServer, "d1", "", HandshakeInit},
	{RoleServer, "d1", "start", HandshakeAwaitProposal},
	{RoleServer, "d1", "start proposal", HandshakePreparing},
	{RoleServer, "r1", "start proposal", HandshakePreparing},
	{RoleServer, "d1", "start proposal prepared", HandshakeAwaitConfirm},
	{RoleServer, "d0", "start proposal prepared", HandshakeAwaitConfirm},
	{RoleServer, "r1", "start proposal prepared", HandshakeAwaitConfirm},
	{RoleServer, "r0", "start proposal prepared", HandshakeAwaitConfirm},
	{RoleServer, "r1", "start proposal prepared confirm", HandshakeLinkTurn},
	{RoleServer, "s1", "start proposal prepared confirm", HandshakeLinkTurn},
	{RoleServer, "r1", "start proposal prepared confirm requested", HandshakeLinkWait},
	{RoleServer, "r1", "start proposal prepared confirm linked", HandshakeAddLink},
	{RoleServer, "r1", "start proposal prepared confirm linked up", HandshakeEstablished},
	{RoleServer, "d1", "start proposal prepared confirm", HandshakeEstablished},
	{RoleServer, "r0", "start proposal prepared confirm", HandshakeEstablished},
	{RoleServer, "d1", "start decline", HandshakeFellBack},
	{RoleServer, "d1", "start tcp-end", HandshakeFailed},
}

// An hsBench has a handshake of one kind and the messages of a peer that fit it.
type hsBench struct {
	t        *testing.T
	h        *Handshake
	first    bool
	proposal clc.Proposal
	accept   clc.Accept
	confirm  clc.Confirm
	choice   Choice
}

func newBench(t *testing.T, role Role, kind string) *hsBench {
	t.Helper()
	types := "Dv2"
	if kind[0] != 'd' {
		types = "Rv2"
	}
	client, server := only(clientCaps(t), types), only(serverCaps(t), types)
	client.MaxLinks, server.MaxLinks = 2, 2
	if kind[0] == 's' {
		server.MaxLinks = 1
	}
	b := &hsBench{t: t, first: kind[1] == '1'}
	p := newPair(t, client, server)
	p.firstContact = b.first
	p.tamper = func(m clc.Message) clc.Message {
		switch m := m.(type) {
		case clc.Proposal:
			b.proposal = m
		case clc.Accept:
			b.accept = m
		case clc.Confirm:
			b.confirm = m
		}
		return m
	}
	p.run()
	if p.end(RoleClient) != "established" || p.end(RoleServer) != "established" {
		t.Fatalf("%s: client %s, server %s", kind, p.end(RoleClient), p.end(RoleServer))
	}
	caps := client
	if role == RoleServer {
		caps = server
	}
	b.h = NewHandshake(role, caps)
	b.h.SetReachable(clientGID)
	return b
}

// do plays one event and returns the time it happened at and the outputs.
func (b *hsBench) do(word string) (time.Time, []HandshakeOutput) {
	h, now := b.h, epoch
	var outs []HandshakeOutput
	switch word {
	case "start":
		outs = h.Start(now, nil)
	case "proposal":
		outs = h.HandleMessage(now, b.proposal, nil, nil)
	case "accept":
		outs = h.HandleMessage(now, b.accept, nil, nil)
	case "confirm":
		outs = h.HandleMessage(now, b.confirm, nil, nil)
	case "decline":
		outs = h.HandleMessage(now, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagMemory, OS: clc.OSLinux}, nil, nil)
	case "sync":
		outs = h.HandleMessage(now, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagSync, OutOfSync: true}, nil, nil)
	case "broken":
		outs = h.HandleMessage(now, nil, &wire.DecodeError{Message: "clc", Field: "length", Err: wire.ErrLength}, nil)
	case "reserved":
		outs = h.HandleMessage(now, nil, &wire.DecodeError{Message: "clc", Field: "MTU", Err: wire.ErrReservedEnum}, nil)
	case "prepared":
		outs = h.Prepared(now, resources(b.choice, h.role, b.first, 0x30), nil)
	case "unprepared":
		outs = h.Prepared(now, Resources{}, nil)
	case "failed":
		outs = h.PrepareFailed(now, clc.DiagMemory, nil)
	case "sync-failed":
		outs = h.PrepareFailed(now, clc.DiagSync, nil)
	case "requested":
		outs = h.LinkStep(now, LinkStep{Kind: StepRequested}, nil)
	case "replied":
		outs = h.LinkStep(now, LinkStep{Kind: StepReplied}, nil)
	case "linked":
		outs = h.LinkStep(now, LinkStep{Kind: StepConfirmed}, nil)
	case "up":
		outs = h.LinkStep(now, LinkStep{Kind: StepUp}, nil)
	case "down":
		outs = h.LinkStep(now, LinkStep{Kind: StepFailed, Why: clc.DiagLink}, nil)
	case "tcp-end":
		outs = h.HandleTCPEnd(now, io.EOF, nil)
	case "early":
		if !h.Deadline().IsZero() {
			now = h.Deadline().Add(-1)
		}
		outs = h.Advance(now, nil)
	case "late":
		if now = h.Deadline(); now.IsZero() {
			now = epoch.Add(time.Hour)
		}
		outs = h.Advance(now, nil)
	default:
		b.t.Fatalf("no event %q", word)
	}
	for _, o := range outs {
		if p, ok := o.(Prepare); ok {
			b.choice = p.Choice
		}
	}
	return now, outs
}

// TestHandshakeTable checks the next state and the outputs of every input in every state against
// testdata/handshake.txt. "=" is the same state and no output.
func TestHandshakeTable(t *testing.T) {
	reached := map[HandshakeState]bool{}
	var s strings.Builder
	s.WriteString("# Every input in every state of a handshake: next state, outputs.\n" +
		"# The inputs are explained in handshake_table_test.go. d and r: SMC-D and SMC-R, s: SMC-R with one link; 1 and 0: first contact or not.\n" +
		"# Rewritten with go test -run TestHandshakeTable -update.\n")
	for _, st := range hsStates {
		fmt.Fprintf(&s, "\n%v %v %s: %s\n", st.role, st.want, st.kind, st.path)
		for _, w := range hsEventOrder {
			b := newBench(t, st.role, st.kind)
			for p := range strings.FieldsSeq(st.path) {
				b.do(p)
			}
			if b.h.State() != st.want {
				t.Fatalf("%v %s: %q leads to %v, want %v", st.role, st.kind, st.path, b.h.State(), st.want)
			}
			reached[st.want] = true
			now, outs := b.do(w)
			cell := "="
			if b.h.State() != st.want || len(outs) > 0 {
				cell = b.h.State().String() + ": " + words(now, outs)
			}
			fmt.Fprintf(&s, "\t%-12s %s\n", w, cell)
			checkCell(t, fmt.Sprintf("%v %v %s, %s", st.role, st.want, st.kind, w), b, st.want, outs)
		}
	}
	for st := HandshakeInit; st < numHandshakeStates; st++ {
		if !reached[st] {
			t.Errorf("the table lacks the state %v", st)
		}
	}
	coretest.CheckTable(t, "handshake.txt", s.String())
}

// checkCell tests the rules that hold in every cell, independent of the table.
func checkCell(t *testing.T, name string, b *hsBench, from HandshakeState, outs []HandshakeOutput) {
	t.Helper()
	over := b.h.Over()
	if over != b.h.Deadline().IsZero() && b.h.State() != HandshakeInit {
		t.Errorf("%s: over %t, deadline %v", name, over, b.h.Deadline())
	}
	for i, o := range outs {
		last := i == len(outs)-1
		switch o := o.(type) {
		case Established, FallBack, EndTCP:
			if !last || !over {
				t.Errorf("%s: %T is not the end", name, o)
			}
		case SendCLC:
			if _, ok := o.Message.(clc.Decline); ok {
				switch from {
				case HandshakeInit, HandshakeAwaitProposal, HandshakeAwaitAccept, HandshakePreparing, HandshakeLinkTurn:
				case HandshakeLinkWait: // the client's CONFIRM LINK has just come
				case HandshakeLinkReplied, HandshakeAddLink:
					if b.h.role == RoleServer || b.h.result.MaxLinks == 1 {
						t.Errorf("%s: Decline after the point of no return", name)
					}
				case HandshakeAwaitConfirm:
					if b.accept.R == nil || !b.first {
						t.Errorf("%s: Decline after the Accept of a connection that is in use", name)
					}
				default:
					t.Errorf("%s: Decline", name)
				}
			}
			if err := o.Message.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if (from >= HandshakeEstablished) && len(outs) > 0 {
		t.Errorf("%s: outputs after the end: %v", name, outs)
	}
}

// TestHandshakeOneLink loses the client's reply to CONFIRM LINK where there will be no ADD LINK: the server may have it, and
// then the connection is open there.
func TestHandshakeOneLink(t *testing.T) {
	for kind, want := range map[string]string{
		"r1": "send Decline v2 LINKERR (0x09990002), -t, fallback LINKERR (0x09990002)",
		"s1": "-t, end: core: link failed after CONFIRM LINK: LINKERR (0x09990002)",
	} {
		b := newBench(t, RoleClient, kind)
		for _, w := range strings.Fields("start accept prepared requested replied") {
			b.do(w)
		}
		if now, outs := b.do("down"); words(now, outs) != want {
			t.Errorf("%s: %s, want %s", kind, words(now, outs), want)
		}
	}
}
