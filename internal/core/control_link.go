package core

import (
	"errors"
	"fmt"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the exchanges of a [LinkControl] that make links: CONFIRM LINK, ADD LINK and REQUEST ADD
// LINK. Others may cross them (RFC 7609 §3.5.5.3.1), while the server is in Adding:
//
//	message from the client     server
//	TEST LINK                   answered
//	ADD LINK, REQUEST ADD LINK  ignored: the server's own is the answer
//	DELETE LINK of one link     parked, served when the exchange is over
//	DELETE LINK all             the group ends at once
//	CONFIRM RKEY                refused, with the flag that asks to try again

// confirmLink returns our CONFIRM LINK for the first link.
func (lc *LinkControl) confirmLink(h llc.Header) llc.ConfirmLink {
	link := &lc.links[0]
	m := llc.ConfirmLink{
		Header: h, CacheSize: llc.NoEyecatcher,
		MAC: link.local.MAC, GID: link.local.GID, QPN: link.local.QPN,
		Link: link.num, LinkUserID: lc.cfg.GroupID<<8 | wire.LinkID(link.num),
		MaxLinks: max(lc.cfg.Result.MaxLinks, 1),
	}
	if lc.release1() {
		m.MaxConns = lc.cfg.Result.MaxConns
	}
	return m
}

// release1 reports whether the group's maxima were negotiated.
func (lc *LinkControl) release1() bool {
	return lc.cfg.Result.Version == clc.V2 && lc.cfg.Result.Release >= clc.Release1
}

// handleConfirmLink takes the first message on a link, or the reply.
//
//	state              role    message  next                   output
//	Confirming         client  request  Replied                ReadyToSend, requested, SendLLC reply, replied
//	Confirming         server  reply    Adding or Active       see confirmed
//	Confirming         both    either, of another link  Ended  (client: requested,) failed, end
//	Replied..Active    client  request                         out of sync
//	Confirming..Active server  request                         out of sync
//	any other combination               same
//
// RFC 7609 §3.5.1.5.
func (lc *LinkControl) handleConfirmLink(now time.Time, link *controlLink, m llc.ConfirmLink, out []Output) []Output {
	switch {
	case m.Reply && (lc.role == RoleClient || lc.state != ControlConfirming): // rule: TestControlTable
		return out // nobody has asked
	case !m.Reply && (lc.role == RoleServer || lc.state != ControlConfirming): // rule: TestControlTable
		return lc.unexpected(now, m, out)
	}
	why, err := lc.checkConfirmLink(link, m)
	if lc.role == RoleClient {
		out = append(out, ReadyToSend{m.Link}, LinkStep{Kind: StepRequested})
	}
	if err != nil {
		end := GroupEnd{Kind: EndViolation, Err: &ProtocolError{Message: m.Type().String(), State: lc.state.String(), Err: err}}
		return lc.fail(now, end, why, out)
	}
	lc.eyecatcher = !m.HasNoEyecatcher()
	if lc.role == RoleServer {
		return lc.confirmed(now, out)
	}
	link.num = m.Link
	lc.setState(now, ControlReplied)
	reply := lc.confirmLink(llc.Header{Form: m.Form, Reply: true})
	return append(out, SendLLC{link.num, reply, tagConfirm}, LinkStep{Kind: StepReplied})
}

// checkConfirmLink compares the message with what the CLC messages have said: the server or the client
// on the other end of the queue pair may be another than the one on the TCP connection. Linux net/smc
// compares nothing. "Protocol error ... If this is a first contact, fall back to IP" (RFC 7609 C.7.1).
func (lc *LinkControl) checkConfirmLink(link *controlLink, m llc.ConfirmLink) (clc.Diagnosis, error) {
	want := link.peer
	if lc.cfg.Result.Version == clc.V2 && !lc.cfg.Result.Direct {
		want.MAC = wire.MAC{} // informational: SMCv2 p.83
	}
	if err := describeEnd(m, want); err != nil {
		return clc.DiagLink, err
	}
	switch r := &lc.cfg.Result; {
	case lc.role == RoleServer && m.Link != link.num: // rule: TestConfirmLinkChecked
		return clc.DiagLink, fmt.Errorf("link %d in place of %d", m.Link, link.num)
	case m.Link == 0: // rule: TestConfirmLinkChecked
		return clc.DiagLink, errors.New("link 0")
	case lc.release1() && m.MaxLinks != r.MaxLinks: // rule: TestConfirmLinkChecked
		return clc.DiagMaxLinks, fmt.Errorf("at most %d links in place of %d", m.MaxLinks, r.MaxLinks) // SMCv2 p.84
	case lc.release1() && m.MaxConns != r.MaxConns: // rule: TestConfirmLinkChecked
		return clc.DiagMaxConns, fmt.Errorf("at most %d connections in place of %d", m.MaxConns, r.MaxConns)
	case lc.cfg.RefuseEyecatcher && !m.HasNoEyecatcher(): // rule: TestConfirmLinkChecked
		return clc.DiagRMBEEyecatcher, errors.New("RMB elements begin with an eyecatcher")
	}
	return clc.DiagNone, nil
}

// confirmed goes on when the first link is known to work. "TCP data will not be allowed to flow on the
// newly established SMC-R link until a second path has been set up, or at least attempted" (RFC 7609 p.35).
//
//	role    second link              next    output
//	server  to be attempted          Adding  confirmed, SendLLC ADD LINK
//	client  to be expected           Adding  confirmed
//	both    the maximum is 1 link    Active  confirmed, up
func (lc *LinkControl) confirmed(now time.Time, out []Output) []Output {
	out = append(out, LinkStep{Kind: StepConfirmed})
	attempt := lc.cfg.Result.MaxLinks != 1 // rule: TestControlTable: lc.cfg.Result.MaxLinks != 1 -> true
	if lc.role == RoleServer {
		attempt = attempt && lc.cfg.Second.QPN != 0
	}
	if !attempt {
		return lc.up(now, out)
	}
	lc.setState(now, ControlAdding)
	if lc.role == RoleClient {
		return out
	}
	second := lc.cfg.Second
	var target wire.GID // zero, or one that the client has named: SMCv2 "SMC-Rv2 LLC ADD LINK Message", note 7
	if gids := lc.cfg.Result.PeerGIDs; len(gids) > 1 {
		target = gids[1]
	}
	return append(out, SendLLC{Link: lc.links[0].num, Message: llc.AddLink{
		Header: llc.Header{Form: lc.form},
		MAC:    second.MAC, GID: second.GID, QPN: second.QPN, Link: secondLink, MTU: second.MTU, PSN: second.PSN,
		Direct: lc.cfg.Result.Direct, TargetGID: target,
	}})
}

// secondLink is the number of the link that a server's ADD LINK is for.
const secondLink = firstLink + 1

// up opens the group for connections.
func (lc *LinkControl) up(now time.Time, out []Output) []Output {
	lc.deleting = 0
	lc.setState(now, ControlActive)
	for i := range lc.links {
		lc.links[i].hear(now)
	}
	return lc.next(now, append(out, LinkStep{Kind: StepUp}))
}

// handleAddLink takes ADD LINK: a server's wish for a second link, a client's hint that it has another
// RNIC, or the reply to ours.
//
//	state             role    message            next    output
//	Confirming        client  request                    out of sync
//	Replied           client  request            Active  confirmed, SendLLC rejection, up
//	Adding            client  request            Active  SendLLC rejection, up
//	Active            client  request            same    SendLLC rejection
//	Adding            server  reply, rejected    Active  up
//	Adding            server  reply              same    SendLLC DELETE LINK for the new link
//	any other combination                        same
//
// The client has one RNIC here: the link would be parallel to the first (RFC 7609 p.35). While a group has one
// link a server takes no hint; none needs an answer (RFC 7609 p.46).
func (lc *LinkControl) handleAddLink(now time.Time, link *controlLink, m llc.AddLink, out []Output) []Output {
	if lc.role == RoleServer {
		if !m.Reply || lc.state != ControlAdding || lc.deleting != 0 { // rule: TestControlTable
			return out
		}
		if m.Rejected {
			return lc.up(now, out)
		}
		// The second link ends before it begins. "Connection data cannot flow ... until the reply to this
		// DELETE LINK is received" (RFC 7609 C.7.1). Linux net/smc takes it in place of CONFIRM LINK.
		lc.deleting = secondLink
		lc.setState(now, ControlAdding) // for as long again
		return append(out, SendLLC{Link: link.num, Message: llc.DeleteLink{
			Header: llc.Header{Form: lc.form}, Link: secondLink, Reason: llc.DeleteLostPath,
		}})
	}
	if m.Reply {
		return out
	}
	switch lc.state {
	case ControlConfirming:
		return lc.unexpected(now, m, out)
	case ControlReplied:
		out = append(out, LinkStep{Kind: StepConfirmed}) // it has the reply, or it would not ask
		return lc.up(now, lc.reject(link, m, out))
	case ControlAdding:
		return lc.up(now, lc.reject(link, m, out))
	case ControlActive:
		return lc.reject(link, m, out)
	case ControlEnding:
		return out
	case ControlInit, ControlEnded:
	}
	panic("core: impossible link group state " + lc.state.String())
}

// reject answers ADD LINK as Linux net/smc does: with the request's own fields.
func (lc *LinkControl) reject(link *controlLink, m llc.AddLink, out []Output) []Output {
	reason := llc.RejectNoPath
	if !m.MTU.Valid() {
		reason = llc.RejectMTU // rule: TestControlRejects
	}
	return append(out, SendLLC{Link: link.num, Message: llc.AddLink{
		Header: llc.Header{Form: m.Form, Reply: true}, Rejected: true, Reason: reason,
		MAC: m.MAC, GID: m.GID, QPN: m.QPN, Link: m.Link, MTU: m.MTU, PSN: m.PSN,
	}})
}

// handleAddLinkCont takes ADD LINK CONTINUATION. It follows an ADD LINK that was accepted, which is never here.
func (lc *LinkControl) handleAddLinkCont(now time.Time, m llc.AddLinkCont, out []Output) []Output {
	if m.Reply {
		return out
	}
	return lc.unexpected(now, m, out)
}

// handleRequestAddLink takes a client's wish for another link. The server "should not reject", and need not
// add one (SMCv2 "SMC-Rv2 LLC Request Add Link Message", notes 5 and 6).
//
//	state            role    message  output
//	Active           server  request  SendLLC reply
//	Adding, Ending   server  request  (ADD LINK is the answer; or nobody needs one)
//	Confirming       server  request  out of sync
//	any but Ending   client  request  out of sync
//	any              both    reply    (nobody has asked)
func (lc *LinkControl) handleRequestAddLink(now time.Time, link *controlLink, m llc.RequestAddLink, out []Output) []Output {
	switch {
	case m.Reply:
		return out
	case lc.role == RoleClient || lc.state == ControlConfirming:
		return lc.unexpected(now, m, out)
	case lc.state == ControlActive: // rule: TestControlTable
		return append(out, SendLLC{Link: link.num, Message: llc.RequestAddLink{Header: llc.Header{Form: m.Form, Reply: true}}})
	}
	return out
}
