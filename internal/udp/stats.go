package udp

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Traffic counts one direction of a [Socket].
type Traffic struct {
	Datagrams    uint64 // also those in super-packets
	SuperPackets uint64 // messages of two and more datagrams
	Bytes        uint64 // of payload
	Calls        uint64 // system calls that have carried something or failed
}

// SendErrors counts datagrams that were dropped because they could not be sent, by reason.
type SendErrors struct {
	Unreachable uint64 // no route, or the network or the host is down: ENETUNREACH, EHOSTUNREACH, ...
	Forbidden   uint64 // EPERM, EACCES: a firewall's rule, or a broadcast address
	NoMemory    uint64 // ENOBUFS, ENOMEM: also a full queue of the interface
	TooBig      uint64 // EMSGSIZE: larger than the MTU of the path
	Refused     uint64 // ECONNREFUSED
	Destination uint64 // not of the socket's family, an unknown zone, or no address at all
	Overdue     uint64 // the socket was full for too long
	Other       uint64
}

// Stats are counters since [Listen].
type Stats struct {
	Sent, Received Traffic

	SegmentationRefused uint64 // super-packets that the kernel would not segment
	Full                uint64 // times that a sender found no room
	SendErrors          SendErrors

	Dropped       uint64 // datagrams that Config.Drop wanted lost
	Truncated     uint64 // messages that were longer than a batch has room for
	Malformed     uint64 // packets with lengths or checksums that do not fit; packet socket only
	Options       uint64 // packets dropped because their IPv4 header has options; packet socket only
	ReceiveErrors uint64 // errors of the socket that were skipped

	// KernelDrops are messages that the kernel has dropped because the socket was full or their
	// checksum wrong, 0 if it does not say; modulo 2^32.
	KernelDrops uint32
}

// The reasons in SendErrors that come from the system.
const (
	unreachable = iota
	forbidden
	noMemory
	tooBig
	refusedByPeer
	badDestination
	otherError
	sendErrorCount
)

// sendErrorOf is the reason that errno stands for.
func sendErrorOf(errno unix.Errno) int {
	switch errno {
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.ENONET, unix.ENODEV, unix.ENXIO:
		return unreachable
	case unix.EPERM, unix.EACCES:
		return forbidden
	case unix.ENOBUFS, unix.ENOMEM:
		return noMemory
	case unix.EMSGSIZE:
		return tooBig
	case unix.ECONNREFUSED:
		return refusedByPeer
	case unix.EINVAL, unix.EAFNOSUPPORT, unix.EADDRNOTAVAIL, unix.EDESTADDRREQ:
		return badDestination
	}
	return otherError
}

// traffic has the counters of Traffic.
type traffic struct {
	datagrams, superPackets, bytes, calls atomic.Uint64
}

// rxCount is txCount for the other direction.
type rxCount = txCount

func (t *traffic) add(c *txCount) {
	t.calls.Add(c.calls)
	if c.datagrams == 0 {
		return
	}
	t.datagrams.Add(c.datagrams)
	t.bytes.Add(c.bytes)
	if c.superPackets > 0 {
		t.superPackets.Add(c.superPackets)
	}
}

func (t *traffic) load() Traffic {
	return Traffic{t.datagrams.Load(), t.superPackets.Load(), t.bytes.Load(), t.calls.Load()}
}

// stats has the counters of Stats.
type stats struct {
	tx            traffic
	refused, full atomic.Uint64
	overdue       atomic.Uint64
	sendErrors    [sendErrorCount]atomic.Uint64

	_ [64]byte // senders and receivers are different goroutines

	rx                 traffic
	dropped, truncated atomic.Uint64
	malformed, options atomic.Uint64
	receiveErrors      atomic.Uint64
}

// Stats reports the counters. They are read one by one: together they are exact only while nothing moves.
func (s *Socket) Stats() Stats {
	st := &s.stats
	out := Stats{
		Sent:                st.tx.load(),
		Received:            st.rx.load(),
		SegmentationRefused: st.refused.Load(),
		Full:                st.full.Load(),
		SendErrors: SendErrors{
			Unreachable: st.sendErrors[unreachable].Load(),
			Forbidden:   st.sendErrors[forbidden].Load(),
			NoMemory:    st.sendErrors[noMemory].Load(),
			TooBig:      st.sendErrors[tooBig].Load(),
			Refused:     st.sendErrors[refusedByPeer].Load(),
			Destination: st.sendErrors[badDestination].Load(),
			Overdue:     st.overdue.Load(),
			Other:       st.sendErrors[otherError].Load(),
		},
		Dropped:       st.dropped.Load(),
		Truncated:     st.truncated.Load(),
		Malformed:     st.malformed.Load(),
		Options:       st.options.Load(),
		ReceiveErrors: st.receiveErrors.Load(),
	}
	// After Close the drops are 0: the socket that counted them is gone.
	_ = s.reader.Control(func(fd uintptr) { out.KernelDrops = kernelDrops(fd) })
	return out
}
