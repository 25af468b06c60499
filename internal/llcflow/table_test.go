package llcflow

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// A controlBench has one LinkControl and a peer that sends the messages named by the words of a
// test.
type controlBench struct {
	t    testing.TB
	lc   *LinkControl
	now  time.Time
	head llc.Header
	peer core.LinkEnd
	all  []Output

	via     llc.LinkNum // over which messages come; 0: the first link
	noLinks bool        // our end of a link cannot be made
}

var (
	controlOurs  = core.LinkEnd{GID: wire.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, MAC: wire.MAC{2, 5: 1}, QPN: 0x11, PSN: 0x1111, MTU: wire.MTU1024}
	controlPeer  = core.LinkEnd{GID: wire.GID{10: 0xff, 11: 0xff, 12: 10, 15: 2}, MAC: wire.MAC{2, 5: 2}, QPN: 0x22, PSN: 0x2222, MTU: wire.MTU1024}
	controlToken = llc.RToken{RKey: 0x100, VA: 0x10000}   // of our RMB 1
	peerToken    = llc.RToken{RKey: 0x200, VA: 0x2000000} // of the peer's
)

// epoch is when a test begins.
var epoch = coretest.Epoch

// controlRNIC is another RNIC, of ours (odd) or of the peer's.
func controlRNIC(n byte) core.RNIC {
	return core.RNIC{GID: wire.GID{10: 0xff, 11: 0xff, 12: 10, 15: n}, MAC: wire.MAC{2, 5: n}}
}

// newControlBench returns a group in SMC-Rv2, release 1. One link at most: "s"; two RNICs: "t"; else "r".
func newControlBench(t testing.TB, role core.Role, kind string, change ...func(*Config)) *controlBench {
	r := core.Result{
		Role: role, Mode: core.SMCR, Version: clc.V2, FirstContact: true, Release: clc.Release1, MaxConns: 32, MaxLinks: 2, Direct: true, PeerOS: clc.OSZOS,
		R: &clc.ParamsR{
			PeerID: wire.PeerID{7: 2}, GID: controlPeer.GID, MAC: controlPeer.MAC, QPN: controlPeer.QPN, PSN: controlPeer.PSN, MTU: controlPeer.MTU,
			RKey: peerToken.RKey, RMBAddr: peerToken.VA, RMBEIndex: 1, AlertToken: 5,
		},
	}
	if kind == "s" {
		r.MaxLinks = 1
	}
	rnics := []core.RNIC{{GID: controlOurs.GID, MAC: controlOurs.MAC}}
	if kind == "t" {
		rnics = append(rnics, controlRNIC(3))
	}
	cfg := Config{
		Result: r, Local: controlOurs, GroupID: 0x700, RMB: 1, Token: controlToken, Owner: 10,
		RNICs: rnics,
	}
	for _, c := range change {
		c(&cfg)
	}
	b := &controlBench{t: t, lc: New(cfg), now: epoch, head: llc.Header{Form: llc.V2}, peer: controlPeer}
	if cfg.Result.Version == clc.V1 {
		b.head.Form = llc.V1
	}
	return b
}

// confirmLink returns the peer's CONFIRM LINK.
func (b *controlBench) confirmLink(h llc.Header) llc.ConfirmLink {
	m := llc.ConfirmLink{
		Header: h, CacheSize: llc.NoEyecatcher, MAC: b.peer.MAC, GID: b.peer.GID, QPN: b.peer.QPN,
		Link: 1, LinkUserID: 0x801, MaxLinks: b.lc.cfg.Result.MaxLinks,
	}
	if b.lc.release1() {
		m.MaxConns = b.lc.cfg.Result.MaxConns
	}
	return m
}

// controlEvents are the words of the table, in its order.
var controlEventOrder = strings.Fields(`start confirm confirm-reply crossed crossed-reply add add-mtu rejected accepted cont cont-reply
	request-add request-add-reply delete delete2 delete-reply delete2-reply delete-all delete-all-reply
	rkey rkey-reply rkey-negative rkey-retry rkey-cont drop-rkey drop-unknown drop-reply
	test test-reply test-wrong optional broken sent-confirm sent-end fail drop end
	add-new accepted-new confirm-new confirm-new-reply crossed-new sent-added fail2 delete3 delete3-reply left rnic
	want unwanted quarantine take take-unknown early late`)

// message returns the peer's message for a word, nil if it is none.
func (b *controlBench) message(word string) llc.Message {
	h, reply := b.head, b.head
	reply.Reply = true
	second := llc.AddLink{MAC: b.peer.MAC, GID: b.peer.GID, QPN: 0x44, Link: 2, MTU: wire.MTU1024, PSN: 0x4444}
	switch word {
	case "confirm":
		return b.confirmLink(h)
	case "confirm-reply":
		return b.confirmLink(reply)
	case "crossed", "crossed-reply":
		m := b.confirmLink(h)
		if word == "crossed-reply" {
			m.Header = reply
		}
		m.QPN++
		return m
	case "add":
		second.Header = h
	case "add-mtu":
		second.Header, second.MTU = h, 9
	case "add-new":
		second.Header, second.MAC, second.GID = h, controlRNIC(4).MAC, controlRNIC(4).GID
	case "accepted-new":
		second.Header, second.MAC, second.GID = reply, controlRNIC(4).MAC, controlRNIC(4).GID
	case "confirm-new", "confirm-new-reply", "crossed-new":
		m := b.confirmLink(h)
		m.MAC, m.GID, m.QPN, m.Link = controlRNIC(4).MAC, controlRNIC(4).GID, 0x44, 2
		if word == "confirm-new-reply" {
			m.Header = reply
		}
		if word == "crossed-new" {
			m.QPN++
		}
		return m
	case "rejected":
		second.Header, second.Rejected, second.Reason = reply, true, llc.RejectNoPath
	case "accepted":
		second.Header = reply
	case "cont":
		return llc.AddLinkCont{Header: llc.Header{Form: llc.V1}, Link: 2}
	case "cont-reply":
		return llc.AddLinkCont{Header: llc.Header{Form: llc.V1, Reply: true}, Link: 2}
	case "request-add":
		return llc.RequestAddLink{Header: h, GIDs: []wire.GID{b.peer.GID}}
	case "request-add-reply":
		return llc.RequestAddLink{Header: reply}
	case "delete":
		return llc.DeleteLink{Header: h, Link: 1, Reason: llc.DeleteOperator, Orderly: true}
	case "delete2":
		return llc.DeleteLink{Header: h, Link: 2, Reason: llc.DeleteLostPath}
	case "delete3":
		return llc.DeleteLink{Header: h, Link: 3, Reason: llc.DeleteLostPath}
	case "delete3-reply":
		return llc.DeleteLink{Header: reply, Link: 3, Reason: llc.DeleteUnknownLink}
	case "delete-reply":
		return llc.DeleteLink{Header: reply, Link: 1}
	case "delete2-reply":
		return llc.DeleteLink{Header: reply, Link: 2}
	case "delete-all":
		return llc.DeleteLink{Header: h, All: true, Reason: llc.DeleteProgram}
	case "delete-all-reply":
		return llc.DeleteLink{Header: reply, All: true}
	case "rkey":
		return llc.ConfirmRKey{Header: h, RToken: llc.RToken{RKey: 0x201, VA: 0x3000000}}
	case "rkey-reply", "rkey-negative", "rkey-retry":
		return llc.ConfirmRKey{Header: reply, RToken: llc.RToken{RKey: 0x102, VA: 0x20000}, Negative: word != "rkey-reply", Retry: word == "rkey-retry"}
	case "rkey-cont":
		return llc.ConfirmRKeyCont{Header: llc.Header{Form: llc.V1}}
	case "drop-rkey":
		return llc.DeleteRKey{Header: h, RKeys: []wire.RKey{peerToken.RKey}}
	case "drop-unknown":
		return llc.DeleteRKey{Header: h, RKeys: []wire.RKey{0x999}}
	case "drop-reply":
		if h.Form == llc.V1 {
			return llc.DeleteRKey{Header: reply, RKeys: []wire.RKey{controlToken.RKey}}
		}
		return llc.DeleteRKey{Header: reply, Count: 1}
	case "test":
		return llc.TestLink{Header: h, UserData: [16]byte{1, 2, 3}}
	case "test-reply":
		return llc.TestLink{Header: reply, UserData: b.lc.links[0].test.data()}
	case "test-wrong":
		return llc.TestLink{Header: reply, UserData: [16]byte{15: 1}}
	default:
		return nil
	}
	return second
}

// do plays one event and returns the outputs.
func (b *controlBench) do(word string) []Output {
	b.t.Helper()
	lc := b.lc
	var outs []Output
	if m := b.message(word); m != nil {
		sent := m.Append(nil)
		got, err := llc.Parse(sent)
		if err != nil {
			b.t.Fatalf("%s: %v", word, err)
		}
		via := b.via
		if strings.Contains(word, "-new") && got.Type() == llc.TypeConfirmLink && lc.link(2) != nil {
			via = 2
		}
		outs = b.opened(lc.HandleMessage(b.now, via, got, nil, nil))
		b.all = append(b.all, outs...)
		return outs
	}
	switch word {
	case "start":
		outs = lc.Start(b.now, nil)
	case "optional":
		outs = lc.HandleMessage(b.now, 0, nil, &wire.DecodeError{Message: "llc.Header", Field: "type", Err: llc.ErrOptional}, nil)
	case "broken":
		outs = lc.HandleMessage(b.now, 0, nil, &wire.DecodeError{Message: "llc.Header", Field: "length", Offset: 1, Err: wire.ErrLength}, nil)
	case "sent-confirm":
		outs = lc.Sent(b.now, tagConfirm, nil)
	case "sent-end":
		outs = lc.Sent(b.now, tagEnd, nil)
	case "sent-added":
		outs = lc.Sent(b.now, tagAdded|2<<8, nil)
	case "fail2":
		outs = lc.LinkFailed(b.now, 2, errors.New("retries"), nil)
	case "left":
		outs = lc.LinkLeft(b.now, 1, nil)
	case "rnic":
		outs = lc.SetRNICs(b.now, append(slices.Clone(lc.rnics), controlRNIC(5)), nil)
	case "fail":
		outs = lc.LinkFailed(b.now, 0, errors.New("retries"), nil)
	case "drop":
		outs = lc.Drop(b.now, nil)
	case "end":
		outs = lc.End(b.now, EndIdle, nil)
	case "want":
		outs = lc.ConfirmRMB(b.now, 2, onFirst(llc.RToken{RKey: 0x102, VA: 0x20000}), nil)
	case "unwanted":
		outs = lc.DeleteRMB(b.now, 1, true, nil)
	case "quarantine":
		outs = lc.DeleteRMB(b.now, 1, false, nil)
	case "take", "take-unknown":
		p := *lc.cfg.Result.R
		if word == "take-unknown" {
			p.RKey++
		}
		var why clc.Diagnosis
		if _, why, outs = lc.TakeElement(&p, 11, nil); why != clc.DiagNone {
			outs = append(outs, RMBRefused{99, why}) // so that the table shows it
		}
	case "early":
		if d := lc.Deadline(); !d.IsZero() {
			b.now = d.Add(-1)
		}
		outs = lc.Advance(b.now, nil)
	case "late":
		if b.now = lc.Deadline(); b.now.IsZero() {
			b.now = epoch.Add(time.Hour)
		}
		outs = lc.Advance(b.now, nil)
	default:
		b.t.Fatalf("no event %q", word)
	}
	outs = b.opened(outs)
	b.all = append(b.all, outs...)
	return outs
}

// opened answers OpenLink, unless there is to be no link.
func (b *controlBench) opened(outs []Output) []Output {
	for i := 0; i < len(outs); i++ {
		if o, ok := outs[i].(OpenLink); ok {
			end := core.LinkEnd{GID: o.GID, QPN: 0x30 + wire.QPN(o.Link), PSN: 0x3333, MTU: wire.MTU1024}
			for _, r := range b.lc.rnics {
				if r.GID == o.GID {
					end.MAC = r.MAC
				}
			}
			if b.noLinks {
				end = core.LinkEnd{}
			}
			tokens := map[RMBID]llc.RToken{}
			for id, own := range b.lc.own {
				token := own.tokens[b.lc.main().num]
				token.RKey += 0x10000 * wire.RKey(o.Link)
				tokens[id] = token
			}
			outs = b.lc.LinkOpened(b.now, o.Link, end, tokens, outs)
		}
	}
	return outs
}

// play plays events and returns the outputs of the last one in words.
func (b *controlBench) play(words string) string {
	b.t.Helper()
	var outs []Output
	for w := range strings.FieldsSeq(words) {
		outs = b.do(w)
	}
	return controlWords(b.now, outs)
}

// onFirst is where an RMB is in a group with one link.
func onFirst(token llc.RToken) map[llc.LinkNum]llc.RToken {
	return map[llc.LinkNum]llc.RToken{1: token}
}

const (
	clientActive = "start confirm sent-confirm add"
	serverActive = "start sent-confirm confirm-reply rejected"
	clientTwo    = "start confirm sent-confirm add-new confirm-new sent-added"
	serverTwo    = "start sent-confirm confirm-reply accepted-new confirm-new-reply"
)

var controlStates = []struct {
	role core.Role
	kind string
	path string
	want State
}{
	{core.RoleClient, "r", "", StateInit},
	{core.RoleClient, "r", "start", StateConfirming},
	{core.RoleClient, "r", "start confirm", StateReplied},
	{core.RoleClient, "s", "start confirm", StateReplied},
	{core.RoleClient, "r", "start confirm sent-confirm", StateAdding},
	{core.RoleClient, "r", clientActive, StateActive},
	{core.RoleClient, "r", clientActive + " want", StateActive},
	{core.RoleClient, "r", clientActive + " unwanted", StateActive},
	{core.RoleClient, "r", clientActive + " late", StateActive}, // TEST LINK is under way
	{core.RoleClient, "r", clientActive + " end", StateEnding},
	{core.RoleClient, "r", clientActive + " delete", StateEnding},
	{core.RoleClient, "r", clientActive + " broken", StateEnding},
	{core.RoleClient, "r", clientActive + " fail", StateEnded},

	{core.RoleClient, "t", "start confirm sent-confirm add-new", StateAdding},
	{core.RoleClient, "t", "start confirm sent-confirm add-new confirm-new", StateAdding},
	{core.RoleClient, "t", "start confirm sent-confirm add-new late", StateAdding}, // DELETE LINK is sent
	{core.RoleClient, "t", clientTwo, StateActive},
	{core.RoleClient, "t", clientTwo + " want", StateActive},
	{core.RoleClient, "t", clientTwo + " fail2", StateActive},
	{core.RoleClient, "t", clientTwo + " fail", StateActive},
	{core.RoleClient, "t", clientTwo + " delete", StateActive}, // connections leave link 1
	{core.RoleClient, "t", clientTwo + " delete want", StateActive},
	{core.RoleClient, "t", clientTwo + " end", StateEnding},

	{core.RoleServer, "r", "", StateInit},
	{core.RoleServer, "r", "start", StateConfirming},
	{core.RoleServer, "s", "start", StateConfirming},
	{core.RoleServer, "r", "start sent-confirm confirm-reply", StateAdding},
	{core.RoleServer, "r", "start sent-confirm confirm-reply accepted", StateAdding},
	{core.RoleServer, "r", "start sent-confirm confirm-reply delete", StateAdding}, // parked
	{core.RoleServer, "r", serverActive, StateActive},
	{core.RoleServer, "r", serverActive + " want", StateActive},
	{core.RoleServer, "r", serverActive + " want delete", StateActive}, // parked
	{core.RoleServer, "r", serverActive + " unwanted", StateActive},
	{core.RoleServer, "r", serverActive + " late", StateActive},
	{core.RoleServer, "r", serverActive + " end", StateEnding},
	{core.RoleServer, "r", serverActive + " delete", StateEnding},
	{core.RoleServer, "r", serverActive + " delete-all", StateEnding},
	{core.RoleServer, "r", serverActive + " broken", StateEnding},
	{core.RoleServer, "r", serverActive + " fail", StateEnded},
	{core.RoleServer, "t", "start sent-confirm confirm-reply", StateAdding},
	{core.RoleServer, "t", "start sent-confirm confirm-reply accepted-new", StateAdding},
	{core.RoleServer, "t", "start sent-confirm confirm-reply accepted-new late", StateAdding}, // DELETE LINK is sent
	{core.RoleServer, "t", serverTwo, StateActive},
	{core.RoleServer, "t", serverTwo + " want", StateActive},
	{core.RoleServer, "t", serverTwo + " fail2", StateActive},
	{core.RoleServer, "t", serverTwo + " fail2 rnic delete2-reply late", StateActive}, // ADD LINK is sent again
	{core.RoleServer, "t", serverTwo + " delete", StateActive},                        // connections leave link 1
	{core.RoleServer, "t", serverTwo + " delete left", StateActive},
	{core.RoleServer, "t", serverTwo + " end", StateEnding},
}

// TestControlTable checks the next state and the outputs of every input in every state against
// testdata/control.txt. "=" is the same state and no output.
func TestControlTable(t *testing.T) {
	reached := map[State]bool{}
	var s strings.Builder
	s.WriteString("# Every input in every state of a link group: next state, outputs.\n" +
		"# The inputs are explained in table_test.go. s: one link at most.\n" +
		"# Rewritten with go test -run TestControlTable -update.\n")
	for _, st := range controlStates {
		fmt.Fprintf(&s, "\n%v %v %s: %s\n", st.role, st.want, st.kind, st.path)
		reached[st.want] = true
		for _, w := range controlEventOrder {
			b := newControlBench(t, st.role, st.kind)
			b.play(st.path)
			if b.lc.State() != st.want {
				t.Fatalf("%v %s: %q leads to %v, want %v", st.role, st.kind, st.path, b.lc.State(), st.want)
			}
			outs := b.do(w)
			cell := "="
			if b.lc.State() != st.want || len(outs) > 0 {
				cell = strings.TrimRight(b.lc.State().String()+": "+controlWords(b.now, outs), " ")
			}
			fmt.Fprintf(&s, "\t%-18s %s\n", w, cell)
			checkControl(t, fmt.Sprintf("%v %q, %s", st.role, st.path, w), b, st.want, outs)
		}
	}
	for st := StateInit; st < numStates; st++ {
		if !reached[st] {
			t.Errorf("the table lacks the state %v", st)
		}
	}
	coretest.CheckTable(t, "control.txt", s.String())
}

// checkControl tests the rules that hold after every input, independent of the table.
func checkControl(t testing.TB, name string, b *controlBench, from State, outs []Output) {
	t.Helper()
	lc := b.lc
	if lc.State() == StateEnded && !lc.Deadline().IsZero() {
		t.Errorf("%s: a timer runs after the end", name)
	}
	if from == StateEnded && len(outs) > 0 && !isRMBAnswer(outs[0]) {
		t.Errorf("%s: outputs after the end: %s", name, controlWords(b.now, outs))
	}
	ending, ended, sent := 0, 0, 0
	for _, o := range b.all {
		switch o := o.(type) {
		case GroupEnding:
			if ending++; ended > 0 {
				t.Errorf("%s: GroupEnding after GroupEnded", name)
			}
		case GroupEnded:
			ended++
		case SendLLC:
			if sent++; ended > 0 {
				t.Errorf("%s: %v after the end", name, o.Message)
			}
			if err := o.Message.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := llc.Parse(o.Message.Append(nil)); err != nil {
				t.Errorf("%s: sent %v: %v", name, o.Message, err)
			}
		case LinkStep:
			if ending > 0 {
				t.Errorf("%s: step %v after the end", name, o.Kind)
			}
		}
	}
	if ending > 1 || ended > 1 || ended > ending || (lc.State() == StateEnded) != (ended == 1) || (lc.State() == StateEnding) != (ending > ended) {
		t.Errorf("%s: %d GroupEnding, %d GroupEnded in state %v", name, ending, ended, lc.State())
	}
	now := 0
	for _, o := range outs {
		if _, ok := o.(SendLLC); ok {
			now++
		}
	}
	if now > 3 {
		t.Errorf("%s: %d messages for one input", name, now)
	}
}

// isRMBAnswer reports whether o answers the caller about an RMB.
func isRMBAnswer(o Output) bool {
	switch o.(type) {
	case RMBConfirmed, RMBRefused, RMBDeleted:
		return true
	}
	return false
}
