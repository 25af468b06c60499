package core

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// A simEnd is one end of a TCP connection on which a handshake runs, with a caller that takes its
// time, fails, or forgets to answer.
type simEnd struct {
	w     *world
	role  Role
	other *simEnd
	h     *Handshake
	pipe  time.Time // when the last thing that was sent to this end arrives: TCP keeps the order

	last     Output // Established, FallBack or EndTCP
	tcpGone  bool   // this end has closed TCP or knows that it is gone
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
	at := e.w.now.Add(e.w.delay() / 2)
	if at.Before(to.pipe) {
		at = to.pipe
	}
	to.pipe = at
	e.w.at(at, func() {
		if !to.tcpGone {
			what(to)
		}
	})
}

func (e *simEnd) do(outs []Output) {
	w := e.w
	if len(outs) > 0 {
		w.logf("%v %v: %s", e.role, e.h.State(), words(w.now, outs))
	}
	for _, o := range outs {
		if e.last != nil {
			w.failf("%v: %T after %T", e.role, o, e.last)
		}
		switch o := o.(type) {
		case SendCLC:
			e.sentCLC++
			m, err := clc.Parse(o.Message.Append(nil))
			if err != nil {
				w.failf("%v sent a message that does not decode: %v", e.role, err)
			}
			e.send(func(to *simEnd) { to.receive(m) })
		case SetTimer:
			w.at(o.At, func() { e.do(e.h.Advance(w.now, nil)) })
		case ClearTimer: // a late timer must be harmless
		case Prepare:
			e.prepare(o.Choice)
		case StartLink:
			e.startLink(o.Result)
		case Established:
			e.last = o
		case FallBack:
			e.last = o
			e.drop()
			e.strip = o.Crossing
			e.send(func(to *simEnd) { to.receiveData() }) // the application goes on over TCP
		case EndTCP:
			e.last = o
			e.drop()
			e.resetTCP()
		}
	}
}

// drop ends the link of a first contact that came to nothing.
func (e *simEnd) drop() {
	if e.qp != nil {
		e.doLink(e.qp.lc.Drop(e.w.now, nil))
	}
}

func (e *simEnd) resetTCP() {
	if e.tcpGone {
		return
	}
	e.tcpGone = true
	e.send(func(to *simEnd) {
		to.tcpGone = true
		to.do(to.h.HandleTCPEnd(e.w.now, io.EOF, nil))
	})
}

// receive takes a CLC message from TCP.
func (e *simEnd) receive(m clc.Message) {
	if e.last != nil {
		_, isDecline := m.(clc.Decline)
		if _, fellBack := e.last.(FallBack); fellBack && e.strip && isDecline {
			e.strip = false
			return
		}
		e.w.failf("%v: %v arrives as application data after %T", e.role, m.Type(), e.last)
		return
	}
	e.do(e.h.HandleMessage(e.w.now, m, nil, nil))
}

// receiveData takes the first bytes of the peer's application, which fell back.
func (e *simEnd) receiveData() {
	e.strip = false
	e.appBytes++
	if _, ok := e.last.(FallBack); !ok {
		e.w.failf("%v: application data in state %v", e.role, e.h.State())
	}
}

// prepare answers Prepare after a while, or not at all.
func (e *simEnd) prepare(c Choice) {
	w := e.w
	if w.chance(3) {
		return
	}
	fail := w.chance(25)
	first := w.chance(60)
	w.after(w.delay()/3, func() {
		switch {
		case fail && e.role == RoleClient && !c.FirstContact:
			e.do(e.h.PrepareFailed(w.now, clc.DiagSync, nil))
		case fail:
			e.do(e.h.PrepareFailed(w.now, clc.DiagMemory, nil))
		default:
			r := resources(c, e.role, first, uint8(e.role)*0x10)
			e.own = r.R
			e.do(e.h.Prepared(w.now, r, nil))
		}
	})
}

// startLink begins the first contact's LLC messages.
func (e *simEnd) startLink(r Result) {
	w := e.w
	own := LinkEnd{GID: e.own.GID, MAC: e.own.MAC, QPN: e.own.QPN, PSN: e.own.PSN, MTU: e.own.MTU}
	e.qp = &simQP{e: e, lc: NewLinkControl(ControlConfig{
		Result: r, Local: own, GroupID: 0x100, RMB: 1, Token: llc.RToken{RKey: e.own.RKey, VA: e.own.RMBAddr},
		Owner: 1, RNICs: []RNIC{{GID: own.GID, MAC: own.MAC}}, TestInterval: -1, RetryInterval: -1,
	})}
	if w.chance(5) { // the device fails
		w.after(w.delay(), e.qp.fail)
	}
	if !e.lossy && w.chance(12) { // the path fails, one way
		w.after(w.delay()/5, func() { e.pathDead = true })
	}
	e.doLink(e.qp.lc.Start(w.now, nil))
}

// doLink carries out the outputs of the link group.
func (e *simEnd) doLink(outs []Output) {
	w := e.w
	if len(outs) > 0 {
		w.logf("%v %v: %s", e.role, e.qp.lc.State(), controlWords(w.now, outs))
	}
	for _, o := range outs {
		switch o := o.(type) {
		case SendLLC:
			e.qp.send(o)
		case LinkStep:
			if e.last == nil {
				e.do(e.h.LinkStep(w.now, o, nil))
			}
		case SetTimer:
			w.at(o.At, func() { e.doLink(e.qp.lc.Advance(w.now, nil)) })
		case OpenLink: // which is asked for to be rejected
			end := LinkEnd{GID: o.GID, MAC: e.own.MAC, QPN: e.own.QPN + 1, PSN: 7, MTU: e.own.MTU}
			e.doLink(e.qp.lc.LinkOpened(w.now, o.Link, end, nil, nil))
		case GroupEnded:
			e.qp.failed = true
		}
	}
}

// A simQP is an end of the link: a queue pair with messages that arrive in order, or fail.
type simQP struct {
	e      *simEnd
	lc     *LinkControl
	failed bool
	rx     []llc.Message // arrived, and acknowledged
	pipe   time.Time     // when the last message sent to it arrives
}

func (q *simQP) send(o SendLLC) {
	w := q.e.w
	b := o.Message.Append(nil)
	m, err := llc.Parse(b)
	if err != nil {
		w.failf("%v sent a message that does not decode: %v", q.e.role, err)
	}
	at := w.now.Add(w.delay() / 10)
	if at.Before(q.pipe) {
		at = q.pipe
	}
	q.pipe = at
	w.at(at, func() {
		to := q.e.other.qp
		switch {
		case q.failed:
			return
		case q.e.pathDead || to == nil || to.failed:
			w.after(time.Second, q.fail)
			return
		}
		if !q.e.lossy || !w.chance(5) { // else it is lost in the host
			to.rx = append(to.rx, m)
			w.after(w.delay()/20, to.drain)
		}
		if q.e.other.pathDead {
			w.after(time.Second, q.fail) // the acknowledgement is lost
		} else if o.Tag != 0 {
			w.after(w.delay()/20, func() {
				if !q.failed {
					q.e.doLink(q.lc.Sent(w.now, o.Tag, nil))
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
		q.e.doLink(q.lc.HandleMessage(q.e.w.now, 0, m, nil, nil))
	}
}

// fail ends the queue pair, then tells.
func (q *simQP) fail() {
	if q.failed {
		return
	}
	q.failed = true
	q.drain()
	q.e.doLink(q.lc.LinkFailed(q.e.w.now, 0, io.ErrClosedPipe, nil))
}

func TestSimHandshake(t *testing.T) {
	outcomes := map[string]int{}
	typeLists := []string{"Dv2", "Dv1", "Rv2", "Rv1", "Dv2 Dv1", "Rv2 Rv1", "Dv2 Rv2", "Dv2 Dv1 Rv2 Rv1"}
	forEachSeed(t, func(w *world) {
		pick := func() string { return typeLists[w.rng.IntN(len(typeLists))] }
		clientTypes, serverTypes := pick(), pick()
		if w.chance(70) {
			serverTypes = clientTypes
		}
		ccaps, scaps := only(clientCaps(t), clientTypes), only(serverCaps(t), serverTypes)
		if w.chance(5) {
			ccaps.Refuse = clc.DiagPolicy
		}
		if w.chance(5) {
			scaps.Refuse = clc.DiagBusy
		}
		if w.chance(20) {
			scaps.Release = clc.Release0
		}
		ccaps.MaxLinks, scaps.MaxLinks = 2, uint8(1+w.rng.IntN(2))
		client := &simEnd{w: w, role: RoleClient, h: NewHandshake(RoleClient, ccaps)}
		server := &simEnd{w: w, role: RoleServer, h: NewHandshake(RoleServer, scaps), other: client}
		client.other = server
		if !w.chance(10) {
			server.h.SetReachable(clientGID, wire.ISMGID{Hi: clientNative})
		}
		client.lossy = w.chance(20)
		server.lossy = client.lossy
		w.logf("client has %q, server %q", clientTypes, serverTypes)
		w.after(w.delay()/3, func() { server.do(server.h.Start(w.now, nil)) })
		w.after(w.delay()/3, func() { client.do(client.h.Start(w.now, nil)) })
		if w.chance(5) { // a box on the way resets the connection
			w.after(w.delay(), client.resetTCP)
			w.after(w.delay(), server.resetTCP)
		}
		// A server that has not started does not read.
		server.pipe = w.now.Add(7 * time.Second)
		if w.chance(90) {
			server.pipe = w.now.Add(time.Millisecond)
			server.do(server.h.Start(w.now, nil))
		}
		w.run()
		outcomes[checkEnds(w, client, server)]++
		if c, ok := client.last.(FallBack); ok && c.Crossing {
			if s, ok := server.last.(FallBack); ok && s.Crossing {
				outcomes["both declined"]++
			}
		}
	})
	if *simSeed == 0 && *simSeeds >= 1000 {
		for _, want := range []string{"established established", "fallback fallback", "end end", "end established", "end fallback", "both declined"} {
			if outcomes[want] == 0 {
				t.Errorf("no handshake ended %s: the simulation misses something (%v)", want, outcomes)
			}
		}
	}
}

// checkEnds tests the invariants after everything has happened, and names the outcome.
func checkEnds(w *world, client, server *simEnd) string {
	name := func(e *simEnd) string {
		switch e.last.(type) {
		case Established:
			return "established"
		case FallBack:
			return "fallback"
		case EndTCP:
			return "end"
		}
		if !e.tcpGone {
			w.failf("%v: still in state %v", e.role, e.h.State())
		}
		return "end" // the box ended it
	}
	c, s := name(client), name(server)
	if c == "established" && s == "fallback" || c == "fallback" && s == "established" {
		w.failf("client %s, server %s", c, s)
	}
	if c == "fallback" && s == "fallback" {
		if client.appBytes+server.appBytes != 2 && !client.tcpGone && !server.tcpGone {
			w.failf("the applications' first bytes did not arrive: %d, %d", client.appBytes, server.appBytes)
		}
		cf, sf := client.last.(FallBack), server.last.(FallBack)
		if cf.ByPeer == sf.ByPeer && !(cf.Crossing && sf.Crossing) {
			w.failf("who declined? client %+v, server %+v", cf, sf)
		}
		if sf.ByPeer && sf.OutOfSync != (cf.Diagnosis == clc.DiagSync && !server.h.accept.FirstContact) {
			w.failf("out of sync: client %+v, server %+v", cf, sf)
		}
	}
	if c == "established" && s == "established" {
		cr, sr := client.last.(Established).Result, server.last.(Established).Result
		if cr.Mode != sr.Mode || cr.Version != sr.Version || cr.EID != sr.EID || cr.FirstContact != sr.FirstContact ||
			cr.Release != sr.Release || cr.MaxConns != sr.MaxConns || cr.MaxLinks != sr.MaxLinks || cr.Features != sr.Features {
			w.failf("the results differ:\nclient %+v\nserver %+v", cr, sr)
		}
	}
	if client.sentCLC > 3 || server.sentCLC > 2 { // Proposal, Confirm, late Decline; Accept, late Decline
		w.failf("client sent %d messages, server %d", client.sentCLC, server.sentCLC)
	}
	if pairs := []string{c, s}; pairs[0] > pairs[1] { // either way round is the same outcome
		return strings.Join([]string{s, c}, " ")
	}
	return c + " " + s
}
