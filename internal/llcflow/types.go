package llcflow

import (
	"fmt"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// An RMBID is the caller's name for one of its own RMBs, unique in its link group.
type RMBID uint32

// A Config has the values with which a [LinkControl] begins.
type Config struct {
	// Result is the Result of [core.StartLink]: our role, the version, the peer's end of the first link
	// and its first RMB, and the maxima.
	Result core.Result
	// Local is our end of the first link, as we have told it in the CLC messages.
	Local core.LinkEnd
	// GroupID is our name for the link group; its lower 24 bits and the link's number are the link's user ID.
	GroupID wire.LinkID
	// RMB is the one that was announced in the CLC messages: it needs no CONFIRM RKEY. Token is where
	// it is, on the first link.
	RMB   RMBID
	Token llc.RToken
	// Owner is the user of the element of the peer's RMB that the CLC messages have named, see
	// [LinkControl.TakeElement].
	Owner Owner
	// RNICs are our RNICs that may be an end of a link of the group: on the network of the first
	// link, and usable. The RNIC of Local is one of them. See [LinkControl.SetRNICs]. "If it only
	// has one RNIC available on the LAN, it will attempt to set up the second SMC-R link over that
	// one RNIC" (RFC 7609 p.35). Without any a server leaves the attempt out, and a Linux client
	// waits 3 seconds for it.
	RNICs []core.RNIC
	// MaxLinks is how many symmetric links we allow in version 1, 1 to 8; 0: the number in Result.
	// Version 2 negotiates it in the CLC messages.
	MaxLinks uint8
	// TestInterval is how long nothing has been heard from the peer before it is asked with TEST LINK;
	// zero: [TestLinkInterval], negative: never.
	TestInterval time.Duration
	// RetryInterval is how long a server waits after an attempt at another link that has come to
	// nothing, the first time, and a client before it asks for one; zero: [AddLinkRetry], negative:
	// for ever, unless something new is known.
	RetryInterval time.Duration
	// RefuseEyecatcher ends the first contact with a peer that has an eyecatcher at the start of
	// its RMB elements, as Linux net/smc does. Otherwise see [LinkControl.PeerEyecatcher].
	RefuseEyecatcher bool
}

// An Owner is the caller's name for a connection that uses an element of a peer's RMB; not 0.
type Owner uint32

// A State says how far a link group is.
type State uint8

// The states of a [LinkControl].
const (
	StateInit State = iota // not started
	// server: CONFIRM LINK sent, awaited: the reply; client: awaited: CONFIRM LINK
	StateConfirming
	StateReplied // client: the reply to CONFIRM LINK is posted, awaited: its completion
	StateAdding  // the first link works, a second one is attempted
	StateActive  // connections may use the group
	StateEnding  // no connection may use it; awaited: the last messages
	StateEnded   // over

	numStates = iota
)

var stateNames = [numStates]string{
	"Init", "Confirming", "Replied", "Adding", "Active", "Ending", "Ended",
}

// String returns the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// An EndKind says why a link group ended.
type EndKind uint8

// The kinds of end.
const (
	EndNone       EndKind = iota // it has not
	EndIdle                      // it had no connections for a while
	EndOperator                  // an operator wanted it
	EndShutdown                  // the host ends
	EndPeer                      // the peer deleted it, or its last link
	EndLinkFailed                // the last link failed
	EndSilent                    // the peer did not answer TEST LINK
	EndViolation                 // the peer broke the protocol of LLC
	EndFallBack                  // its first contact came to nothing
	EndAsymmetric                // a link: there are symmetric ones
)

var endKindNames = [...]string{
	"none", "idle", "operator", "shutdown", "deleted by peer", "link failed", "peer silent",
	"protocol violation", "fell back", "asymmetric",
}

// String returns the kind in words.
func (k EndKind) String() string {
	if int(k) < len(endKindNames) {
		return endKindNames[k]
	}
	return fmt.Sprintf("EndKind(%d)", uint8(k))
}

// A GroupEnd says why a link group ended.
type GroupEnd struct {
	Kind   EndKind
	Reason llc.DeleteReason // EndPeer: the peer's
	Err    error            // EndLinkFailed: as given; EndViolation: a [*core.ProtocolError]; else nil
}

// String returns the kind, and the reason or error if there is one.
func (e GroupEnd) String() string {
	switch {
	case e.Kind == EndPeer:
		return fmt.Sprintf("%v: %v", e.Kind, e.Reason)
	case e.Err != nil:
		return fmt.Sprintf("%v: %v", e.Kind, e.Err)
	}
	return e.Kind.String()
}

// A Tag says which of a [LinkControl]'s messages was sent.
type Tag uint16

// The messages of which the completion is awaited.
const (
	tagNone    Tag = iota
	tagConfirm     // CONFIRM LINK, or the reply
	tagEnd         // the last message of a group
	tagAdded       // the reply to CONFIRM LINK for a further link; with its number << 8
)

// A Redundancy says how many paths there are between the RNICs of a link group.
type Redundancy uint8

// The levels, from none to full.
const (
	RedundancyNone       Redundancy = iota // no link is in use
	RedundancySingle                       // one link
	RedundancyAsymmetric                   // two links, which have an RNIC in common at one end
	RedundancySymmetric                    // two links or more, each between RNICs of its own
)

var redundancyNames = [...]string{"none", "single", "asymmetric", "symmetric"}

// String returns the level in a word.
func (r Redundancy) String() string {
	if int(r) < len(redundancyNames) {
		return redundancyNames[r]
	}
	return fmt.Sprintf("Redundancy(%d)", uint8(r))
}

// An Output is something that the caller of a [LinkControl] has to do.
type Output interface{ output() }

// The outputs.
type (
	// SetTimer asks for a call of [LinkControl.Advance] at the given time. It replaces an earlier one.
	SetTimer struct{ At time.Time }

	// ClearTimer cancels the timer.
	ClearTimer struct{}

	// ReadyToSend asks for the queue pair of a link to be able to send, if it is not yet: the peer
	// has shown that it can receive. Client only.
	ReadyToSend struct{ Link llc.LinkNum }

	// SendLLC asks for a message to be sent on a link. With a Tag other than 0, [LinkControl.Sent] is
	// to be called when the send is complete. A message that cannot be sent is a link that has
	// failed: [LinkControl.LinkFailed].
	SendLLC struct {
		Link    llc.LinkNum
		Message llc.Message
		Tag     Tag
	}

	// LinkStep is for the handshake of the first contact: [core.Handshake.LinkStep].
	LinkStep core.LinkStep

	// OpenLink asks for our end of another link on the RNIC with the address GID: a queue pair,
	// with which all our RMBs are registered. [LinkControl.LinkOpened] is the answer, also if there
	// is none.
	OpenLink struct {
		Link llc.LinkNum
		GID  wire.GID
	}

	// ConnectLink describes the other end of a link that was opened: its queue pair is to be able
	// to receive, and a server's to send. If it cannot, that is [LinkControl.LinkFailed].
	ConnectLink struct {
		Link llc.LinkNum
		Peer core.LinkEnd
	}

	// LinkUp says that connections may use another link.
	LinkUp struct{ Link llc.LinkNum }

	// LinkLeaving says that a link ends in order, and is good until then: its connections go to
	// other links ([LinkControl.ElementOn]), new ones begin on others. [LinkControl.LinkLeft] says
	// that none is on it any more; after [LinkLeaveTimeout] it ends without. LinkDown follows, or
	// the link stays as the others are lost.
	LinkLeaving struct{ Link llc.LinkNum }

	// LinkDown says that connections must not use a link any more, and go on over another one
	// ([LinkControl.ElementOn]). With Orderly it still carries the traffic that is on its way, and
	// the peer may use it until CloseLink; else the queue pair is of no use.
	LinkDown struct {
		Link    llc.LinkNum
		Why     GroupEnd
		Orderly bool
	}

	// CloseLink says that both sides have done with a link, or with one that was never up: its
	// queue pair is to be given back.
	CloseLink struct{ Link llc.LinkNum }

	// RMBConfirmed says that the peer knows one of our RMBs, so that it may be announced in a CLC message.
	RMBConfirmed struct{ ID RMBID }

	// RMBRefused says that the peer does not take the RMB, or that nothing is known of it. Why is for
	// [core.Handshake.PrepareFailed]. The peer may know it all the same: give it back with
	// [LinkControl.DeleteRMB].
	RMBRefused struct {
		ID  RMBID
		Why clc.Diagnosis
	}

	// RMBDeleted says that the peer has forgotten one of our RMBs: its memory may be given back.
	RMBDeleted struct{ ID RMBID }

	// ElementLost says that the peer has given the element of its RMB that a connection uses to
	// another one, or deleted the RMB: the connection must not write any more. [core.EventElementLost].
	ElementLost struct{ Owner Owner }

	// GroupEnding says that connections must not use the group any more: no new one may join
	// ([core.Groups.Drop]), and those that it has must end. LinkAlive says that a message may still get
	// through ([core.EventAbort]), else none does ([core.EventLinkLost]). It comes once.
	GroupEnding struct {
		Why       GroupEnd
		LinkAlive bool
	}

	// GroupEnded is the last output: links, queue pairs and all memory of the group may be given
	// back, that in quarantine included. Connections that still wait for the peer get [core.EventLinkLost].
	GroupEnded struct{}
)

func (SetTimer) output()     {}
func (ClearTimer) output()   {}
func (ReadyToSend) output()  {}
func (SendLLC) output()      {}
func (LinkStep) output()     {}
func (OpenLink) output()     {}
func (ConnectLink) output()  {}
func (LinkUp) output()       {}
func (LinkLeaving) output()  {}
func (LinkDown) output()     {}
func (CloseLink) output()    {}
func (RMBConfirmed) output() {}
func (RMBRefused) output()   {}
func (RMBDeleted) output()   {}
func (ElementLost) output()  {}
func (GroupEnding) output()  {}
func (GroupEnded) output()   {}
