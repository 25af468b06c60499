package core_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// A simEnd is one end of a TCP connection on which a handshake runs, with a caller that takes its
// time, fails, or forgets to answer.
type simEnd struct {
	w     *coretest.World
	role  core.Role
	other *simEnd
	h     *core.Handshake
	pipe  time.Time // when the last thing that was sent to this end arrives: TCP keeps the order

	last     core.HandshakeOutput // Established, FallBack or EndTCP
	tcpGone  bool                 // this end has closed TCP or knows that it is gone
	sentCLC  int
	strip    bool // the next bytes may be a Decline that crossed ours
	appBytes int

	own      *clc.ParamsR
	qp       *simQP
	pathDead bool // nothing of this end's arrives on the link
	lossy    bool // the link delivers messages that are not handled
}

func (e *simEnd) send(what func(to *simEnd)) {
	to := e.other
	at := e.w.Now.Add(e.w.Delay() / 2)
	if at.Before(to.pipe) {
		at = to.pipe
	}
	to.pipe = at
	e.w.At(at, func() {
		if !to.tcpGone {
			what(to)
		}
	})
}

func (e *simEnd) do(outs []core.HandshakeOutput) {
	w := e.w
	if len(outs) > 0 {
		w.Logf("%v %v: %s", e.role, e.h.State(), core.Words(w.Now, outs))
	}
	for _, o := range outs {
		if e.last != nil {
			w.Failf("%v: %T after %T", e.role, o, e.last)
		}
		switch o := o.(type) {
		case core.SendCLC:
			e.sentCLC++
			m, err := clc.Parse(o.Message.Append(nil))
			if err != nil {
				w.Failf("%v sent a message that does not decode: %v", e.role, err)
			}
			e.send(func(to *simEnd) { to.receive(m) })
		case core.SetTimer:
			w.At(o.At, func() { e.do(e.h.Advance(w.Now, nil)) })
		case core.ClearTimer: // a late timer must be harmless
		case core.Prepare:
			e.prepare(o.Choice)
		case core.StartLink:
			e.startLink(o.Result)
		case core.Established:
			e.last = o
		case core.FallBack:
			e.last = o
			e.drop()
			e.strip = o.Crossing
			e.send(func(to *simEnd) { to.receiveData() }) // the application goes on over TCP
		case core.EndTCP:
			e.last = o
			e.drop()
			e.resetTCP()
		}
	}
}

// drop ends the link of a first contact that came to nothing.
func (e *simEnd) drop() {
	if e.qp != nil {
		e.doLink(e.qp.lc.Drop(e.w.Now, nil))
	}
}

func (e *simEnd) resetTCP() {
	if e.tcpGone {
		return
	}
	e.tcpGone = true
	e.send(func(to *simEnd) {
		to.tcpGone = true
		to.do(to.h.HandleTCPEnd(e.w.Now, io.EOF, nil))
	})
}

// receive takes a CLC message from TCP.
func (e *simEnd) receive(m clc.Message) {
	if e.last != nil {
		_, isDecline := m.(clc.Decline)
		if _, fellBack := e.last.(core.FallBack); fellBack && e.strip && isDecline {
			e.strip = false
			return
		}
		e.w.Failf("%v: %v arrives as application data after %T", e.role, m.Type(), e.last)
		return
	}
	e.do(e.h.HandleMessage(e.w.Now, m, nil, nil))
}

// receiveData takes the first bytes of the peer's application, which fell back.
func (e *simEnd) receiveData() {
	e.strip = false
	e.appBytes++
	if _, ok := e.last.(core.FallBack); !ok {
		e.w.Failf("%v: application data in state %v", e.role, e.h.State())
	}
}

// prepare answers Prepare after a while, or not at all.
func (e *simEnd) prepare(c core.Choice) {
	w := e.w
	if w.Chance(3) {
		return
	}
	fail := w.Chance(25)
	first := w.Chance(60)
	w.After(w.Delay()/3, func() {
		switch {
		case fail && e.role == core.RoleClient && !c.FirstContact:
			e.do(e.h.PrepareFailed(w.Now, clc.DiagSync, nil))
		case fail:
			e.do(e.h.PrepareFailed(w.Now, clc.DiagMemory, nil))
		default:
			r := core.TestResources(c, e.role, first, uint8(e.role)*0x10)
			e.own = r.R
			e.do(e.h.Prepared(w.Now, r, nil))
		}
	})
}

// startLink begins the first contact's LLC messages.
func (e *simEnd) startLink(r core.Result) {
	w := e.w
	own := core.LinkEnd{GID: e.own.GID, MAC: e.own.MAC, QPN: e.own.QPN, PSN: e.own.PSN, MTU: e.own.MTU}
	e.qp = &simQP{e: e, lc: llcflow.New(llcflow.Config{
		Result: r, Local: own, GroupID: 0x100, RMB: 1, Token: llc.RToken{RKey: e.own.RKey, VA: e.own.RMBAddr},
		Owner: 1, RNICs: []core.RNIC{{GID: own.GID, MAC: own.MAC}}, TestInterval: -1, RetryInterval: -1,
	})}
	if w.Chance(5) { // the device fails
		w.After(w.Delay(), e.qp.fail)
	}
	if !e.lossy && w.Chance(12) { // the path fails, one way
		w.After(w.Delay()/5, func() { e.pathDead = true })
	}
	e.doLink(e.qp.lc.Start(w.Now, nil))
}

// doLink carries out the outputs of the link group.
func (e *simEnd) doLink(outs []llcflow.Output) {
	w := e.w
	if len(outs) > 0 {
		w.Logf("%v %v: %s", e.role, e.qp.lc.State(), coretest.Words(outs))
	}
	for _, o := range outs {
		switch o := o.(type) {
		case llcflow.SendLLC:
			e.qp.send(o)
		case llcflow.LinkStep:
			if e.last == nil {
				e.do(e.h.LinkStep(w.Now, core.LinkStep(o), nil))
			}
		case llcflow.SetTimer:
			w.At(o.At, func() { e.doLink(e.qp.lc.Advance(w.Now, nil)) })
		case llcflow.OpenLink: // which is asked for to be rejected
			end := core.LinkEnd{GID: o.GID, MAC: e.own.MAC, QPN: e.own.QPN + 1, PSN: 7, MTU: e.own.MTU}
			e.doLink(e.qp.lc.LinkOpened(w.Now, o.Link, end, nil, nil))
		case llcflow.GroupEnded:
			e.qp.failed = true
		}
	}
}

// A simQP is an end of the link: a queue pair with messages that arrive in order, or fail.
type simQP struct {
	e      *simEnd
	lc     *llcflow.LinkControl
	failed bool
	rx     []llc.Message // arrived, and acknowledged
	pipe   time.Time     // when the last message sent to it arrives
}

func (q *simQP) send(o llcflow.SendLLC) {
	w := q.e.w
	b := o.Message.Append(nil)
	m, err := llc.Parse(b)
	if err != nil {
		w.Failf("%v sent a message that does not decode: %v", q.e.role, err)
	}
	at := w.Now.Add(w.Delay() / 10)
	if at.Before(q.pipe) {
		at = q.pipe
	}
	q.pipe = at
	w.At(at, func() {
		to := q.e.other.qp
		switch {
		case q.failed:
			return
		case q.e.pathDead || to == nil || to.failed:
			w.After(time.Second, q.fail)
			return
		}
		if !q.e.lossy || !w.Chance(5) { // else it is lost in the host
			to.rx = append(to.rx, m)
			w.After(w.Delay()/20, to.drain)
		}
		if q.e.other.pathDead {
			w.After(time.Second, q.fail) // the acknowledgement is lost
		} else if o.Tag != 0 {
			w.After(w.Delay()/20, func() {
				if !q.failed {
					q.e.doLink(q.lc.Sent(w.Now, o.Tag, nil))
				}
			})
		}
	})
}

// drain handles the messages that have arrived.
func (q *simQP) drain() {
	for len(q.rx) > 0 {
		m := q.rx[0]
		q.rx = q.rx[1:]
		q.e.doLink(q.lc.HandleMessage(q.e.w.Now, 0, m, nil, nil))
	}
}

// fail ends the queue pair, then tells.
func (q *simQP) fail() {
	if q.failed {
		return
	}
	q.failed = true
	q.drain()
	q.e.doLink(q.lc.LinkFailed(q.e.w.Now, 0, io.ErrClosedPipe, nil))
}

func TestSimHandshake(t *testing.T) {
	outcomes := map[string]int{}
	typeLists := []string{"Dv2", "Dv1", "Rv2", "Rv1", "Dv2 Dv1", "Rv2 Rv1", "Dv2 Rv2", "Dv2 Dv1 Rv2 Rv1"}
	coretest.ForEachSeed(t, func(w *coretest.World) {
		pick := func() string { return typeLists[w.Rand.IntN(len(typeLists))] }
		clientTypes, serverTypes := pick(), pick()
		if w.Chance(70) {
			serverTypes = clientTypes
		}
		ccaps, scaps := core.Only(core.ClientCaps(t), clientTypes), core.Only(core.ServerCaps(t), serverTypes)
		if w.Chance(5) {
			ccaps.Refuse = clc.DiagPolicy
		}
		if w.Chance(5) {
			scaps.Refuse = clc.DiagBusy
		}
		if w.Chance(20) {
			scaps.Release = clc.Release0
		}
		ccaps.MaxLinks, scaps.MaxLinks = 2, uint8(1+w.Rand.IntN(2))
		client := &simEnd{w: w, role: core.RoleClient, h: core.NewHandshake(core.RoleClient, ccaps)}
		server := &simEnd{w: w, role: core.RoleServer, h: core.NewHandshake(core.RoleServer, scaps), other: client}
		client.other = server
		if !w.Chance(10) {
			server.h.SetReachable(core.ClientGID, wire.ISMGID{Hi: core.ClientNative})
		}
		client.lossy = w.Chance(20)
		server.lossy = client.lossy
		w.Logf("client has %q, server %q", clientTypes, serverTypes)
		w.After(w.Delay()/3, func() { server.do(server.h.Start(w.Now, nil)) })
		w.After(w.Delay()/3, func() { client.do(client.h.Start(w.Now, nil)) })
		if w.Chance(5) { // a box on the way resets the connection
			w.After(w.Delay(), client.resetTCP)
			w.After(w.Delay(), server.resetTCP)
		}
		// A server that has not started does not read.
		server.pipe = w.Now.Add(7 * time.Second)
		if w.Chance(90) {
			server.pipe = w.Now.Add(time.Millisecond)
			server.do(server.h.Start(w.Now, nil))
		}
		w.Run()
		outcomes[checkEnds(w, client, server)]++
		if c, ok := client.last.(core.FallBack); ok && c.Crossing {
			if s, ok := server.last.(core.FallBack); ok && s.Crossing {
				outcomes["both declined"]++
			}
		}
	})
	if coretest.Thorough() {
		for _, want := range []string{"established established", "fallback fallback", "end end", "end established", "end fallback", "both declined"} {
			if outcomes[want] == 0 {
				t.Errorf("no handshake ended %s: the simulation misses something (%v)", want, outcomes)
			}
		}
	}
}

// checkEnds tests the invariants after everything has happened, and names the outcome.
func checkEnds(w *coretest.World, client, server *simEnd) string {
	name := func(e *simEnd) string {
		switch e.last.(type) {
		case core.Established:
			return "established"
		case core.FallBack:
			return "fallback"
		case core.EndTCP:
			return "end"
		}
		if !e.tcpGone {
			w.Failf("%v: still in state %v", e.role, e.h.State())
		}
		return "end" // the box ended it
	}
	c, s := name(client), name(server)
	if c == "established" && s == "fallback" || c == "fallback" && s == "established" {
		w.Failf("client %s, server %s", c, s)
	}
	if c == "fallback" && s == "fallback" {
		if client.appBytes+server.appBytes != 2 && !client.tcpGone && !server.tcpGone {
			w.Failf("the applications' first bytes did not arrive: %d, %d", client.appBytes, server.appBytes)
		}
		cf, sf := client.last.(core.FallBack), server.last.(core.FallBack)
		if cf.ByPeer == sf.ByPeer && !(cf.Crossing && sf.Crossing) {
			w.Failf("who declined? client %+v, server %+v", cf, sf)
		}
		if sf.ByPeer && sf.OutOfSync != (cf.Diagnosis == clc.DiagSync && !server.h.NamesNewGroup()) {
			w.Failf("out of sync: client %+v, server %+v", cf, sf)
		}
	}
	if c == "established" && s == "established" {
		cr, sr := client.last.(core.Established).Result, server.last.(core.Established).Result
		if cr.Mode != sr.Mode || cr.Version != sr.Version || cr.EID != sr.EID || cr.FirstContact != sr.FirstContact ||
			cr.Release != sr.Release || cr.MaxConns != sr.MaxConns || cr.MaxLinks != sr.MaxLinks || cr.Features != sr.Features {
			w.Failf("the results differ:\nclient %+v\nserver %+v", cr, sr)
		}
	}
	if client.sentCLC > 3 || server.sentCLC > 2 { // Proposal, Confirm, late Decline; Accept, late Decline
		w.Failf("client sent %d messages, server %d", client.sentCLC, server.sentCLC)
	}
	if pairs := []string{c, s}; pairs[0] > pairs[1] { // either way round is the same outcome
		return strings.Join([]string{s, c}, " ")
	}
	return c + " " + s
}
