package core

import (
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the links of SMC-R as messages of CLC name them. The LLC messages that make and end links
// are in internal/llcflow.

// A LinkEnd is one end of a link: a queue pair on a port of an RNIC.
type LinkEnd struct {
	GID wire.GID
	MAC wire.MAC
	QPN wire.QPN
	PSN wire.PSN
	MTU wire.MTU
}

// A GroupLink is a link as [Groups] look for it.
type GroupLink struct {
	Num   llc.LinkNum
	Local LinkEnd
	Peer  LinkEnd
	// Asymmetric: it has an RNIC in common with an earlier link, at one end. RFC 7609 §2.2.1.
	Asymmetric bool
	// Leaving: it ends soon, see LinkLeaving of internal/llcflow. Connections use it where there is no other.
	Leaving bool
}

// A PairRoute is how packets get from an RNIC of ours to one of the peer's.
type PairRoute struct {
	Local, Peer wire.GID
	None        bool // they do not
	Direct      bool // both are in one subnet
}
