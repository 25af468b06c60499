package dissect

import (
	"net/netip"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// A LinkState is how far a link has come.
type LinkState uint8

// All states.
const (
	LinkLearned   LinkState = iota // known from Accept and Confirm, or from ADD LINK; not confirmed yet
	LinkActive                     // CONFIRM LINK and its reply were seen, or traffic of connections
	LinkDeleting                   // DELETE LINK was seen
	LinkDeleted                    // and its reply
	LinkRejected                   // ADD LINK was rejected
	LinkAbandoned                  // another queue pair took its number
)

// String returns one word.
func (s LinkState) String() string {
	switch s {
	case LinkLearned:
		return "learned"
	case LinkActive:
		return "active"
	case LinkDeleting:
		return "deleting"
	case LinkDeleted:
		return "deleted"
	case LinkRejected:
		return "rejected"
	case LinkAbandoned:
		return "abandoned"
	}
	return "impossible state"
}

// An Endpoint is one end of a link.
type Endpoint struct {
	Addr netip.Addr // its GID as an IP address; not valid if not known
	GID  wire.GID
	MAC  wire.MAC
	QPN  wire.QPN
	// PSN is the number of the first packet that this end sends.
	PSN      wire.PSN
	PSNKnown bool
	MTU      wire.MTU
}

// A Link joins two queue pairs.
type Link struct {
	ID     int // from 1, in the order in which they appear, over all link groups
	Group  *LinkGroup
	Num    llc.LinkNum // the server's number for it, if NumKnown; any number may come, 0 too
	Client Endpoint
	Server Endpoint
	State  LinkState
	// NumKnown means that ADD LINK or CONFIRM LINK has told Num.
	NumKnown bool
	// First means that it is the link of the first contact.
	First   bool
	Opened  time.Time // first told of
	Deleted time.Time // zero if it was not
	Reason  string    // why it was deleted or rejected, as the messages say
	// Failovers counts the connections that came from another link which failed.
	Failovers int
	// Conns is how many connections use it now.
	Conns           int
	Packets         uint64 // RoCEv2 packets, acknowledgements included
	Retransmissions uint64
	Gaps            uint64 // PSNs that the capture does not have
	Naks            uint64

	flows [2]*flow                 // by index of the direction
	rkeys [2]map[wire.RKey]*region // of the buffers that packets of a direction write to
	lost  bool                     // counted as such
}

// A LinkGroup has the state that two hosts share for all their connections.
type LinkGroup struct {
	ID      int    // from 1, in the order in which they appear
	Mode    string // as Conn.Mode
	SMCD    bool   // then there are no links
	Release int    // of version 2: 0 or 1; -1 if not known
	// FirstContact means that the capture has it.
	FirstContact bool
	FirstConn    int // the number of its connection; 0 if the capture does not have it
	// Client and Server are the TCP addresses of the first connection seen. With SMC-D either
	// host may be the client of a later one.
	Client, Server             netip.Addr
	ClientPeerID, ServerPeerID wire.PeerID
	ClientHost, ServerHost     string // names in the first contact extension, "" if not known
	Links                      []*Link
	Conns                      int // connections so far
	Failovers                  int // connections that changed the link because one failed
	Moves                      int // connections that changed the link otherwise
	Opened                     time.Time
	Deleted                    time.Time // DELETE LINK for all links was seen; else zero

	// By index of the direction of the messages that have the token.
	tokens [2]map[wire.AlertToken]*Conn
	early  [2]earlyTokens
	// eyecatcher says, by index of the direction in which bytes go, whether elements begin with one.
	eyecatcher [2]bool
	adding     *Link // of an ADD LINK that awaits its reply
	wishes     int   // of the client for a link, REQUEST ADD LINK, that may be replied to
	calls      []*call
	// hosts of SMC-D
	dKey groupKeyD
	used entry[LinkGroup] // in linkTable
}

// index returns the index of d, which is not DirUnknown, in arrays that have both directions.
func (d Direction) index() int { return int(d) - 1 }

// sender returns the end of the link that sends in direction d.
func (l *Link) sender(d Direction) *Endpoint {
	if d == ClientToServer {
		return &l.Client
	}
	return &l.Server
}

// A region is an RMB as it is known on one link.
type region struct {
	va  uint64
	rmb *rmb
}

// An rmb is one buffer of a host, with its elements.
type rmb struct {
	rings   []*Ring // of the connections that used its elements, the latest of each
	deleted bool    // DELETE RKEY was replied to
	// deletedAt is the place in the packets of its owner, on the link of the request.
	deletedAt mark
}
