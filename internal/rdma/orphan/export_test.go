package orphan

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// For tests from outside: those with a device import package rdma, which imports this one.

const (
	Rounds     = rounds
	MinRxePort = minRxePort
)

var (
	SourcePort = sourcePort
	ListsOwner = listsOwner
)

// Len returns how many orphans are watched.
func (l *List) Len() int { return len(l.qps) }

// Withheld returns how many answers were not given as the port may have an owner.
func (o *Responder) Withheld() uint64 { return o.withheld.Load() }

// Parse takes the headers off a datagram.
func (o *Responder) Parse(b []byte, host unix.Sockaddr) (from netip.AddrPort, data []byte, id uint16, ok bool) {
	return o.parse(b, host)
}
