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

// A LinkControl is one side of a link group of SMC-R: its links, where the RMBs of both sides are, and
// the exchanges of LLC messages that set them up and take them down.
//
// The caller makes one when the handshake of a first contact says [core.StartLink]. It calls Start when
// its queue pair can send (server) or receive (client). It passes each message that arrives to
// HandleMessage with the error of [llc.Parse], and tells completions (Sent), failures (LinkFailed)
// and the passing of time (Advance). It carries out the outputs in order. [GroupEnded] is the last
// one; after it nothing has an effect.
//
// A group begins with one link. The server makes further ones (add.go), both sides take
// them away (links.go); the end of the last one is the end of the group. A link number of 0
// means the first link in the list. The table is for a group with one link:
//
//	state       role    event                          next        output
//	Init        server  Start                          Confirming  SendLLC CONFIRM LINK
//	Init        client  Start                          Confirming
//	Confirming  server  Sent                           same        requested
//	Confirming  server  CONFIRM LINK reply             Adding      confirmed, OpenLink
//	Confirming  server  the same, no second link       Active      confirmed, up
//	Confirming  client  CONFIRM LINK                   Replied     ReadyToSend, requested, SendLLC reply, replied
//	Confirming  both    CONFIRM LINK of another link   Ended       (client: requested,) failed, end
//	Confirming  client  ADD LINK                       Ended       failed, end
//	Replied     client  Sent                           Adding      confirmed
//	Replied     client  the same, no second link       Active      confirmed, up
//	Replied     client  ADD LINK                       Adding      confirmed, and as in Adding
//	Adding      both    the attempt is over            Active      up
//	Adding      client  no ADD LINK in time            Active      up
//	Adding      both    no answer to ADD LINK in time  Ended       failed, end
//	Active      both    End                            Ending      GroupEnding, SendLLC DELETE LINK all
//	Active      client  DELETE LINK for the link       Ending      SendLLC reply, GroupEnding
//	Active      server  DELETE LINK for the link       Ending      GroupEnding, SendLLC DELETE LINK for it
//	Active      both    out of sync                    Ending      GroupEnding, SendLLC DELETE LINK all
//	Confirming..Active  client  DELETE LINK all        Ended       (failed,) end
//	Confirming..Active  server  DELETE LINK all        Ending      (failed,) GroupEnding, SendLLC DELETE LINK all
//	Confirming..Active  both    LinkFailed, TEST LINK not answered  Ended  (failed,) end
//	Confirming..Adding  both    Drop                   Ended       end
//	Confirming..Adding  both    out of sync            Ended       failed, end
//	Ending      server  Sent, or DELETE LINK reply for the link   Ended  GroupEnded
//	Ending      client  Sent of the reply, or DELETE LINK all     Ended  GroupEnded
//	Ending      both    LinkFailed, Advance            Ended       GroupEnded
//
// "requested", "replied" and so on are a [LinkStep], "failed" only before Active; "end" is
// GroupEnding and GroupEnded. TEST LINK is answered from Confirming to Ending. A message that is
// neither in this table nor in the tables of the exchanges below changes nothing: a reply that
// nobody awaits, which may be late; a message about a link that is gone. A message that cannot be,
// or not now, is "out of sync" (RFC 7609 C.7.1). Such messages are CONFIRM LINK for a link that is
// confirmed, a request that is the other role's, and a message that does not decode.
//
// CONFIRM RKEY and DELETE RKEY are in rkey.go, the end of a link and of the group in end.go.
//
// Sources: RFC 7609 §3.5.1, §3.5.5, C.7; SMCv2 pp.80-97. Where Linux net/smc does something else it is said.
type LinkControl struct {
	cfg   Config
	role  core.Role
	state State
	form  llc.Form  // of our requests
	heard bool      // the form is the peer's
	until time.Time // when the state's wait ends; zero: it has none
	timer time.Time // the last SetTimer; zero: none runs

	links      []*controlLink // in the order of their making; never empty
	lastNum    llc.LinkNum    // server: of the newest link
	maxLinks   int            // symmetric ones
	rnics      []core.RNIC    // of ours
	eyecatcher bool           // the peer's RMB elements have one
	add        linkAdd        // the making of a link
	retry      addRetry       // server: when to attempt another one
	failed     failedPairs    // between RNICs of ours and of the peer's
	routes     pairRoutes     // likewise
	deletes    []linkDelete   // links: the peer is to be told of their end, or has to answer
	end        GroupEnd
	last       SendLLC // the last message of the group, with LinkAlive

	peer     rtokens
	first    Element       // of the peer's first RMB
	broken   clc.Diagnosis // why that cannot be
	own      map[RMBID]*ownRMB
	wishes   []RMBID // ours that wait for their exchange, in order
	exchange rkeyExchange
	again    rkeyAgain
	learning rkeyLearning
}

// A linkState says whether a link can be used.
type linkState uint8

const (
	linkActive linkState = iota // connections may use it; the first link is so from the beginning
	linkAdding                  // it is being made
	linkFailed                  // no more; DELETE LINK is to come, or under way
)

// A controlLink is a link of the group.
type controlLink struct {
	num   llc.LinkNum // 0: the server has not told it yet
	slot  uint8       // of the table of the peer's RMBs
	state linkState
	local core.LinkEnd
	peer  core.LinkEnd

	indirect bool // a router is between the ends, as the client of version 2 says: the MACs do not count

	leave linkLeave

	lastHeard time.Time // when something arrived, as far as we were told
	upSince   time.Time
	test      linkTest
}

// firstLink is the number of a link group's first link. Linux net/smc counts from 1 too.
const firstLink llc.LinkNum = 1

// New returns the link group of a first contact, not yet started.
func New(cfg Config) *LinkControl {
	r := &cfg.Result
	lc := &LinkControl{cfg: cfg, role: r.Role, form: llc.V1, own: make(map[RMBID]*ownRMB)}
	if r.Version == clc.V2 {
		lc.form = llc.V2
		if r.PeerOS == clc.OSLinux {
			lc.form = llc.V2Little // a guess, until its first message says
		}
	}
	link := &controlLink{local: cfg.Local}
	if r.R != nil {
		link.peer = core.LinkEnd{GID: r.R.GID, MAC: r.R.MAC, QPN: r.R.QPN, PSN: r.R.PSN, MTU: r.R.MTU}
	}
	if lc.role == core.RoleServer {
		link.num, lc.lastNum = firstLink, firstLink
	}
	lc.links = append(lc.links, link)
	lc.rnics = slices.Clone(cfg.RNICs)
	lc.maxLinks = max(int(r.MaxLinks), 1)
	if r.Version == clc.V1 && cfg.MaxLinks > 0 {
		lc.maxLinks = min(int(cfg.MaxLinks), llc.MaxLinks)
	}
	lc.retry.gids = r.PeerGIDs
	lc.own[cfg.RMB] = &ownRMB{
		state: rmbConfirmed, tokens: map[llc.LinkNum]llc.RToken{link.num: cfg.Token},
		told: map[llc.LinkNum]bool{link.num: true},
	}
	if r.R != nil {
		lc.peer.add(0, llc.RToken{RKey: r.R.RKey, VA: r.R.RMBAddr})
		lc.first, _, lc.broken = lc.peer.take(0, r.R, cfg.Owner)
	}
	return lc
}

// State returns the current state.
func (lc *LinkControl) State() State { return lc.state }

// Deadline returns when Advance is due, zero if no timer runs.
func (lc *LinkControl) Deadline() time.Time { return lc.timer }

// Failure returns why the group ended, or is ending.
func (lc *LinkControl) Failure() GroupEnd { return lc.end }

// PeerEyecatcher reports whether elements of the peer's RMBs begin with an eyecatcher of 4 bytes, as in RFC
// 7609 §4.2. It is known when the first link is confirmed.
func (lc *LinkControl) PeerEyecatcher() bool { return lc.eyecatcher }

// Links returns the links that connections may use: none before the first is confirmed, and none in a group
// that ends.
func (lc *LinkControl) Links() []core.GroupLink {
	if lc.state != StateAdding && lc.state != StateActive {
		return nil
	}
	var list []core.GroupLink
	_, asymmetric := lc.split()
	for _, l := range lc.links {
		if l.state == linkActive {
			list = append(list, core.GroupLink{
				Num: l.num, Local: l.local, Peer: l.peer, Asymmetric: l == asymmetric, Leaving: l.leave.begun(),
			})
		}
	}
	return list
}

// TakeElement finds the element of a peer's RMB that its Accept or Confirm names, for a connection
// that writes on the link which the message names too, and keeps for whom. If it cannot be one,
// such as for an RMB that the peer has not told of, why is the reason to decline, where that is
// possible. Of a connection that had the element before, the peer thinks that it has ended: it
// "must abort the existing SMC-R connection associated with this RMBE" (RFC 7609 §4.4.2), see
// [ElementLost].
func (lc *LinkControl) TakeElement(p *clc.ParamsR, owner Owner,
	out []Output) (Element, clc.Diagnosis, []Output) {
	if lc.state == StateEnding || lc.state == StateEnded {
		return Element{}, clc.DiagNoActiveLink, out
	}
	link := lc.links[0]
	for _, l := range lc.links {
		if isEnd(l.peer, p) {
			link = l
		}
	}
	el, previous, why := lc.peer.take(link.slot, p, owner)
	if previous != 0 {
		out = append(out, ElementLost{previous}) // rule: TestControlElements
	}
	return el, why, out
}

// ElementOn returns the element of a connection as a writer on a link addresses it. It is false for
// a link that is not in use, and for an RMB that the peer has not told of there.
func (lc *LinkControl) ElementOn(owner Owner, num llc.LinkNum) (Element, bool) {
	link := lc.link(num)
	if link == nil || link.state != linkActive || lc.state == StateEnding || lc.state == StateEnded {
		return Element{}, false
	}
	return lc.peer.element(link.slot, owner)
}

// ReleaseElement says that a connection does not use its element any more.
func (lc *LinkControl) ReleaseElement(owner Owner) { lc.peer.release(owner) }

// FirstElement returns the element that the first contact's CLC messages have named. One that cannot be
// ends the first contact at Start.
func (lc *LinkControl) FirstElement() Element { return lc.first }

// Start begins the first contact: call it when the queue pair can receive, and a server's can send.
func (lc *LinkControl) Start(now time.Time, out []Output) []Output {
	if lc.state != StateInit {
		return out
	}
	lc.setState(now, StateConfirming)
	lc.links[0].hear(now)
	if lc.broken != clc.DiagNone { // rule: TestControlFirstElement
		return lc.fail(now, GroupEnd{Kind: EndFallBack}, lc.broken, out)
	}
	if lc.role == core.RoleServer {
		out = append(out, SendLLC{lc.links[0].num, lc.confirmLink(lc.links[0], llc.Header{Form: lc.form}),
			tagConfirm})
	}
	return lc.arm(out)
}

// setState is the only writer of lc.state. It sets the time that the state may take.
func (lc *LinkControl) setState(now time.Time, s State) {
	lc.state = s
	lc.until = time.Time{}
	switch s {
	case StateAdding:
		if lc.role == core.RoleClient { // the server's messages have timers of their own
			lc.until = now.Add(AddLinkTimeout) // rule: TestControlTable: AddLinkTimeout -> AddLinkReplyTimeout
		}
	case StateEnding:
		lc.until = now.Add(GroupEndTimeout) // rule: TestC7DeleteAllTimeout
	case StateInit, StateConfirming, StateReplied: // the handshake of the first contact has the timer
	case StateActive, StateEnded: // nothing is awaited
	}
}

// HandleMessage takes the results of llc.Parse for a message that arrived on a link. It is for LLC
// messages only, not for CDC messages.
func (lc *LinkControl) HandleMessage(now time.Time, num llc.LinkNum, m llc.Message, err error,
	out []Output) []Output {
	link := lc.link(num)
	if lc.state == StateInit || lc.state == StateEnded || link == nil {
		return out
	}
	link.hear(now)
	return lc.arm(lc.handle(now, link, m, err, out))
}

func (lc *LinkControl) handle(now time.Time, link *controlLink, m llc.Message, err error,
	out []Output) []Output {
	switch {
	case errors.Is(err, llc.ErrOptional): // rule: TestControlHostile
		return out // "must silently" be discarded
	case errors.Is(err, llc.ErrForeign): // rule: TestControlForeign
		return out
	case err != nil:
		return lc.outOfSync(now, link, "LLC message", err, out)
	}
	if link.state == linkFailed && lc.ignores(m) { // rule: TestDeleteLinkIgnores
		return out
	}
	if lc.add.phase == addReplied && showsReply(m, link, lc.add.link) { // rule: TestReplyArrived, TestReplyArrivedRKey
		out = lc.linkUp(now, out)
	}
	if f := m.Head().Form; !lc.heard && f.Version() == lc.form.Version() {
		lc.heard, lc.form = true, f // rule: TestControlForms
	}
	switch m := m.(type) {
	case llc.TestLink:
		return lc.handleTestLink(now, link, m, out)
	case llc.ConfirmLink:
		return lc.handleConfirmLink(now, link, m, out)
	case llc.AddLink:
		return lc.handleAddLink(now, link, m, out)
	case llc.AddLinkCont:
		return lc.handleAddLinkCont(now, link, m, out)
	case llc.RequestAddLink:
		return lc.handleRequestAddLink(now, link, m, out)
	case llc.DeleteLink:
		return lc.handleDeleteLink(now, link, m, out)
	case llc.ConfirmRKey:
		return lc.handleConfirmRKey(now, link, m, out)
	case llc.DeleteRKey:
		return lc.handleDeleteRKey(now, link, m, out)
	case llc.ConfirmRKeyCont:
		return lc.handleConfirmRKeyCont(now, link, m, out)
	}
	return out
}

// showsReply reports whether a message that arrived on via shows that the server has our reply to
// CONFIRM LINK, or it would not use the new link, nor tell where an RMB is on it. A message over
// another link may come before the completion of the reply. Linux net/smc does not ask again about
// an RMB, but declines its connection.
func showsReply(m llc.Message, via, added *controlLink) bool {
	if via == added {
		return m.Type() != llc.TypeConfirmLink
	}
	told, ok := m.(llc.ConfirmRKey)
	return ok && !told.Reply && slices.ContainsFunc(told.Others,
		func(t llc.LinkRToken) bool { return t.Link == added.num })
}

// Sent says that the send of a message is complete: the peer's RNIC has it.
func (lc *LinkControl) Sent(now time.Time, tag Tag, out []Output) []Output {
	switch {
	case tag&0xff == tagAdded:
		out = lc.addReplySent(now, llc.LinkNum(tag>>8), out)
	case tag == tagConfirm && lc.state == StateConfirming && lc.role == core.RoleServer:
		out = append(out, LinkStep{Kind: core.StepRequested})
	case tag == tagConfirm && lc.state == StateReplied:
		out = lc.confirmed(now, out)
	case tag == tagEnd && lc.state == StateEnding:
		out = lc.finish(out)
	}
	return lc.arm(out)
}

// LinkFailed says that a link cannot be used any more. The caller hands messages that had arrived
// on it before to HandleMessage first.
func (lc *LinkControl) LinkFailed(now time.Time, num llc.LinkNum, err error, out []Output) []Output {
	link := lc.link(num)
	if lc.state == StateInit || lc.state == StateEnded || link == nil {
		return out
	}
	return lc.arm(lc.lose(now, link, GroupEnd{Kind: EndLinkFailed, Err: err}, clc.DiagLink, out))
}

// Advance ends waits when their time is up. A call that comes too early is harmless.
func (lc *LinkControl) Advance(now time.Time, out []Output) []Output {
	if lc.timer.IsZero() || now.Before(lc.timer) {
		return out
	}
	lc.timer = time.Time{}
	if !lc.until.IsZero() && !now.Before(lc.until) {
		out = lc.stateTimeout(now, out)
	}
	out = lc.advanceAdd(now, out)
	out = lc.advanceLeaves(now, out)
	out = lc.advanceDeletes(now, out)
	out = lc.advanceExchange(now, out)
	out = lc.advanceTests(now, out)
	return lc.arm(lc.next(now, out))
}

// stateTimeout ends the wait of the state.
func (lc *LinkControl) stateTimeout(now time.Time, out []Output) []Output {
	switch lc.state {
	case StateAdding:
		// RFC 7609 C.7.1 ends the connection here. Linux net/smc goes on with one link, as a
		// host that is the server may which cannot have a second one.
		return lc.up(now, out)
	case StateEnding:
		return lc.finish(out)
	case StateInit, StateConfirming, StateReplied, StateActive, StateEnded:
		// These have no wait of ours.
	}
	panic("core: timer in link group state " + lc.state.String())
}

// arm sets the timer if something is due before it. One that is too early is left alone, so that
// messages do not move it.
func (lc *LinkControl) arm(out []Output) []Output {
	if lc.state == StateEnded {
		return out
	}
	next := earliest(earliest(lc.until, lc.exchange.until), lc.testsDue())
	next = earliest(next, earliest(lc.add.until, lc.deletesDue()))
	next = earliest(next, lc.leavesDue())
	if lc.state == StateActive && lc.add.phase == addNone && lc.exchange.kind == exchangeNone && !lc.obeys() {
		// else they wait until it ends
		if len(lc.deletes) == 0 {
			next = earliest(next, lc.retry.at)
		}
		if len(lc.deletes) == 0 || lc.role == core.RoleClient {
			next = earliest(next, lc.again.at)
		}
	}
	switch {
	case next.IsZero() && !lc.timer.IsZero():
		lc.timer = next
		return append(out, ClearTimer{})
	case !next.IsZero() && (lc.timer.IsZero() || next.Before(lc.timer)):
		lc.timer = next
		return append(out, SetTimer{next})
	}
	return out
}

// earliest returns the earlier of two times of which either may be zero, which means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// link returns the link with a number, nil if there is none.
func (lc *LinkControl) link(num llc.LinkNum) *controlLink {
	if num == 0 {
		return lc.links[0]
	}
	for _, l := range lc.links {
		if l.num == num {
			return l
		}
	}
	return nil
}

// outOfSync ends the link, and with the last one the group, because the peer broke the protocol.
func (lc *LinkControl) outOfSync(now time.Time, link *controlLink, message string, err error,
	out []Output) []Output {
	if lc.state == StateEnding {
		return out // it ends anyway
	}
	end := GroupEnd{Kind: EndViolation,
		Err: &core.ProtocolError{Message: message, State: lc.state.String(), Err: err}}
	switch {
	case lc.usable(link) != nil:
		return lc.lose(now, link, end, clc.DiagLink, out)
	case lc.state != StateActive:
		return lc.fail(now, end, clc.DiagLink, out)
	}
	// "Treat as if detected that the link has gone down" (RFC 7609 C.7.1): the peer is told, no more.
	out = lc.ending(now, end, false, out)
	return lc.say(lc.deleteAll(llc.DeleteViolation, false), out)
}

// errNotNow is the cause of an out-of-sync message that is good in itself.
var errNotNow = errors.New("not expected now")

// unexpected ends the group for a message that does not fit.
func (lc *LinkControl) unexpected(now time.Time, link *controlLink, m llc.Message, out []Output) []Output {
	return lc.outOfSync(now, link, m.Type().String(), errNotNow, out)
}

// describeEnd returns the differences between an end of a link and its description in the CLC
// messages.
func describeEnd(got llc.ConfirmLink, want core.LinkEnd) error {
	switch {
	case got.QPN != want.QPN: // rule: TestConfirmLinkChecked
		return fmt.Errorf("queue pair %v in place of %v", got.QPN, want.QPN)
	case got.GID.Addr() != want.GID.Addr(): // rule: TestConfirmLinkChecked
		return fmt.Errorf("GID %v in place of %v", got.GID, want.GID)
	case want.MAC != (wire.MAC{}) && got.MAC != want.MAC: // rule: TestConfirmLinkChecked
		return fmt.Errorf("MAC %v in place of %v", got.MAC, want.MAC)
	}
	return nil
}
