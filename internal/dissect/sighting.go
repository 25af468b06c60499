package dissect

import (
	"encoding/binary"
	"hash/maphash"
	"slices"

	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire/roce"
)

// sightings know which packets were captured at several places: by both hosts, or on several
// interfaces that they go through. Such a packet is one packet, and a packet that was sent again is
// another: a packet is new if its place has seen it more often than any other place has.
//
//	sent    1st       2nd              copies
//	place A 1         2                2
//	place B      1        2            2       4 views of 2 packets
//
// Packets are the same if they have the same bytes, apart from the fields that change on the way:
// lifetime, congestion, checksums, and the ICRC, which some adapters compute behind the capture. Of
// captures that cut packets at different lengths the beginning counts.
type sightings struct {
	seed       maphash.Seed
	points     []frame.Point // where packets were captured; those beyond maxPoints are all taken for the last
	last       frame.Point   // of the newest packet
	lastAt     int           // its index
	taken      int           // packets, up to soloPackets
	young, old map[uint64]sighting
	idle       bool // nothing is remembered, for there is one place
	differs    bool // the newest packet begins as another does, and goes on differently
}

// A sighting is the record of a packet.
type sighting struct {
	whole  uint64 // hash of all bytes
	length int    // captured bytes of the IP packet
	first  int    // number of the packet as it was seen first
	most   uint8  // of counts
	counts [maxPoints]uint8
}

const (
	// maxPoints bounds the places that are told from each other.
	maxPoints = 16
	// maxSightings bounds the packets that are remembered of each of two generations. Clocks of hosts may
	// differ by the time in which as many packets come.
	maxSightings = 1 << 15
	// soloPackets is how many packets of a capture with one place are remembered, because the
	// packets of another place may begin a little later. After them nothing is remembered until
	// there is another place.
	soloPackets = 4096
	// sightingPrefix is how much of a TCP segment or UDP datagram is compared if captures cut packets at
	// different lengths, in bytes.
	sightingPrefix = 96
)

// also returns the number of the packet of which this one is another view, 0 if it is a packet of its own.
// l has its headers.
func (s *sightings) also(p *Packet, l *layers) (first int) {
	if point := p.Point(); len(s.points) == 0 || point != s.last {
		s.enter(point)
	}
	s.differs = false
	if len(s.points) < 2 {
		if s.taken >= soloPackets {
			s.idle, s.young, s.old = true, nil, nil
			return 0
		}
		s.taken++
	}
	if len(l.ip) == 0 || l.outcome == outcomeOther {
		return 0
	}
	if s.young == nil {
		s.young, s.seed = make(map[uint64]sighting), maphash.MakeSeed()
	}
	key, whole := s.identity(l)
	v, known := s.young[key]
	if !known {
		if v, known = s.old[key]; known {
			delete(s.old, key)
		}
	}
	s.differs = known && v.length == len(l.ip) && v.whole != whole
	if !known || s.differs {
		v = sighting{whole: whole, length: len(l.ip), first: p.Number}
	}
	count := &v.counts[s.lastAt]
	if *count < 255 {
		*count++
	}
	if *count > v.most {
		v.most = *count
		v.first = p.Number
	} else {
		first = v.first
	}
	if _, ok := s.young[key]; !ok && len(s.young) == maxSightings {
		s.old, s.young = s.young, make(map[uint64]sighting)
	}
	s.young[key] = v
	return first
}

// needs reports whether also has to be asked about a packet: of one place no more, once it is the
// only one for long.
func (s *sightings) needs(p *Packet) bool {
	return !s.idle || p.Source != s.last.Source || p.Interface != s.last.Interface || p.Link == frame.Cooked2
}

// enter notes the place of the newest packet.
func (s *sightings) enter(point frame.Point) {
	s.last, s.idle = point, false
	if s.lastAt = slices.Index(s.points, point); s.lastAt >= 0 {
		return
	}
	if len(s.points) < maxPoints {
		s.points = append(s.points, point)
	}
	s.lastAt = len(s.points) - 1
}

// identity returns a hash that views of one packet have in common, and one that they have in common
// if all of it was captured.
func (s *sightings) identity(l *layers) (key, whole uint64) {
	var h maphash.Hash
	h.SetSeed(s.seed)
	body := l.ip[min(len(l.ip), 40):]
	if l.v4 { // but for type of service, lifetime and checksum
		h.Write(l.ip[2:8])
		h.WriteByte(l.ip[9])
		body = l.ip[12:]
	} else { // but for traffic class, flow label and hop limit
		h.Write(l.ip[4:7])
		h.Write(l.ip[8:40])
	}
	if l.outcome == outcomeTCP || l.outcome == outcomeUDP {
		h.Write(body[:len(body)-len(l.body)])
		body = l.body
		switch {
		case l.outcome == outcomeTCP: // but for the checksum
			h.Write(body[:16])
			body = body[18:]
		default:
			h.Write(body[:6])
			body = body[8:]
			if binary.BigEndian.Uint16(l.body[2:]) == roce.Port && len(body) >= roce.BTHLen {
				h.Write(body[:4])
				body = body[5:] // but for the marks of congestion
				if !l.truncated() {
					body = body[:max(len(body)-roce.ICRCLen, 0)]
				}
			}
		}
	}
	n := min(len(body), sightingPrefix)
	h.Write(body[:n])
	key = h.Sum64()
	h.Write(body[n:])
	return key, h.Sum64()
}
