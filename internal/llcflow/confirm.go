package llcflow

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has CONFIRM LINK, and the end of the first contact. Further links are made in add.go.

// confirmLink returns our CONFIRM LINK for a link.
func (lc *LinkControl) confirmLink(link *controlLink, h llc.Header) llc.ConfirmLink {
	m := llc.ConfirmLink{
		Header: h, CacheSize: llc.NoEyecatcher,
		MAC: link.local.MAC, GID: link.local.GID, QPN: link.local.QPN,
		Link: link.num, LinkUserID: lc.cfg.GroupID<<8 | wire.LinkID(link.num),
		MaxLinks: uint8(lc.maxLinks),
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
func (lc *LinkControl) handleConfirmLink(now time.Time, link *controlLink, m llc.ConfirmLink,
	out []Output) []Output {
	switch {
	case lc.add.link == link:
		return lc.handleConfirmNew(now, m, out)
	case m.Reply && (lc.role == core.RoleClient || lc.state != StateConfirming): // rule: TestControlTable
		return out // nobody has asked
	case !m.Reply && (lc.role == core.RoleServer || lc.state != StateConfirming): // rule: TestControlTable
		return lc.unexpected(now, link, m, out)
	}
	why, err := lc.checkConfirmLink(link, m)
	if lc.role == core.RoleClient {
		out = append(out, ReadyToSend{m.Link}, LinkStep{Kind: core.StepRequested})
	}
	if err != nil {
		end := GroupEnd{Kind: EndViolation,
			Err: &core.ProtocolError{Message: m.Type().String(), State: lc.state.String(), Err: err}}
		return lc.fail(now, end, why, out)
	}
	lc.eyecatcher = !m.HasNoEyecatcher()
	if n := int(m.MaxLinks); lc.cfg.Result.Version == clc.V1 && n > 0 { // rule: TestMaxLinksOfClient
		// "The client maximum link value is optional ... If the client passes a lower value, this
		// lower value then becomes the final negotiated maximum" (RFC 7609 p.22). Linux net/smc
		// says 2, and does not look.
		lc.maxLinks = min(lc.maxLinks, n)
	}
	if lc.role == core.RoleServer {
		out = lc.confirmed(now, out)
		if lc.maxLinks == 1 && int(m.MaxLinks) > 1 { // rule: TestAddLinkOfOne
			out = lc.askInVain(link, out)
		}
		return out
	}
	link.num = m.Link
	first := lc.own[lc.cfg.RMB]
	first.tokens = map[llc.LinkNum]llc.RToken{link.num: lc.cfg.Token}
	first.told = map[llc.LinkNum]bool{link.num: true}
	lc.setState(now, StateReplied)
	reply := lc.confirmLink(link, llc.Header{Form: m.Form, Reply: true})
	return append(out, SendLLC{link.num, reply, tagConfirm}, LinkStep{Kind: core.StepReplied})
}

// checkConfirmLink compares the message with the values in the CLC messages: the server or the
// client on the other end of the queue pair may be another than the one on the TCP connection.
// Linux net/smc compares nothing. "Protocol error ... If this is a first contact, fall back to IP"
// (RFC 7609 C.7.1).
func (lc *LinkControl) checkConfirmLink(link *controlLink, m llc.ConfirmLink) (clc.Diagnosis, error) {
	want := link.peer
	if lc.cfg.Result.Version == clc.V2 && (!lc.cfg.Result.Direct || link.indirect) { // rule: TestAddLinkRoutes: || link.indirect -> || false
		want.MAC = wire.MAC{} // informational: SMCv2 p.83
	}
	if err := describeEnd(m, want); err != nil {
		return clc.DiagLink, err
	}
	switch r := &lc.cfg.Result; {
	case (lc.role == core.RoleServer || link.num != 0) && m.Link != link.num: // rule: TestConfirmLinkChecked
		return clc.DiagLink, fmt.Errorf("link %d in place of %d", m.Link, link.num)
	case m.Link == 0: // rule: TestConfirmLinkChecked
		return clc.DiagLink, errors.New("link 0")
	case lc.release1() && m.MaxLinks != r.MaxLinks: // rule: TestConfirmLinkChecked
		// SMCv2 p.84
		return clc.DiagMaxLinks, fmt.Errorf("at most %d links in place of %d", m.MaxLinks, r.MaxLinks)
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
//	server  to be attempted          Adding  confirmed, OpenLink
//	client  to be expected           Adding  confirmed
//	both    the maximum is 1 link    Active  confirmed, up
func (lc *LinkControl) confirmed(now time.Time, out []Output) []Output {
	out = append(out, LinkStep{Kind: core.StepConfirmed})
	attempt := lc.maxLinks > 1 // rule: TestControlTable: lc.maxLinks > 1 -> true
	if lc.role == core.RoleServer {
		attempt = attempt && len(lc.rnics) > 0
	}
	if !attempt {
		return lc.up(now, out)
	}
	lc.setState(now, StateAdding)
	if lc.role == core.RoleClient {
		return out
	}
	lc.retry.attempted = true
	return lc.next(now, lc.beginAdd(now, out))
}

// askInVain sends ADD LINK that the client has to reject, in version 1 where we allow one link and
// the client has not taken that for its maximum, too. Linux net/smc awaits ADD LINK in any case,
// and each first contact takes 3 seconds without. For MTU 0, an "undefined enumerated MTU value",
// the client sends "a negative ADD LINK reply" (RFC 7609 C.7.1), as Linux net/smc does.
func (lc *LinkControl) askInVain(link *controlLink, out []Output) []Output {
	lc.lastNum++
	return append(out, SendLLC{Link: link.num, Message: llc.AddLink{
		Header: llc.Header{Form: lc.form}, MAC: link.local.MAC, GID: link.local.GID, QPN: link.local.QPN, Link: lc.lastNum,
	}})
}

// up opens the group for connections.
func (lc *LinkControl) up(now time.Time, out []Output) []Output {
	lc.setState(now, StateActive)
	for _, l := range lc.links {
		l.hear(now)
		l.upSince = now
	}
	return lc.next(now, append(out, LinkStep{Kind: core.StepUp}))
}

// next begins the exchanges that have waited: the end of links, the end of the first contact,
// another link, RMBs for which a connection waits, RMBs that nobody needs.
func (lc *LinkControl) next(now time.Time, out []Output) []Output {
	if lc.state != StateAdding && lc.state != StateActive {
		return out
	}
	out = lc.sendDeletes(now, out)
	// "connection data cannot flow ... until the reply" (RFC 7609 C.7.1)
	ends := slices.ContainsFunc(lc.deletes, func(d linkDelete) bool {
		link := lc.link(d.num)
		return link != nil && link.state == linkFailed
	})
	switch {
	case lc.state == StateAdding && lc.retry.attempted && lc.add.phase == addNone && !ends: // rule: TestC7ClientWaits: !ends -> (!ends || true)
		return lc.up(now, out)
	case lc.state != StateActive || lc.add.phase != addNone || lc.exchange.kind != exchangeNone:
		return out
	case lc.role == core.RoleServer && len(lc.deletes) > 0, lc.obeys(): // rule: TestLinkLeavingHolds
		return out
	case lc.role == core.RoleClient && !lc.retry.at.IsZero() && !now.Before(lc.retry.at): // rule: TestAddLinkAskAgain
		out = lc.askAgain(now, out)
	case lc.role == core.RoleServer && !lc.retry.at.IsZero() && !now.Before(lc.retry.at):
		if out = lc.beginAdd(now, out); lc.add.phase != addNone {
			return out
		}
	}
	if !lc.again.at.IsZero() && !now.Before(lc.again.at) {
		lc.again.at = time.Time{}
		lc.refreshRMBs() // rule: TestToldAgainLater
	}
	return lc.nextRMB(now, out)
}
