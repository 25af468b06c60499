package llc

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A LinkNum names a link within its link group. The server assigns it, and does not assign it again
// before all other numbers were used: RFC 7609 p.24. Linux net/smc counts from 1; 0 is not rejected
// here.
type LinkNum uint8

// Limits that the specifications set.
const (
	// MaxLinks is the number of links in a link group: RFC 7609 p.119.
	MaxLinks = 8
	// MaxRKeys is the number of RMBs that a host may have in a link group: RFC 7609 p.113,
	// SMCv2 p.85.
	MaxRKeys = 255
	// MaxGIDs is the number of addresses in a REQUEST ADD LINK: SMCv2 p.76.
	MaxGIDs = 8
)

// An RToken says where an RMB is, to writers on one link: each link has its own for the same RMB.
type RToken struct {
	RKey wire.RKey
	VA   uint64 // any number: an address in the owner's terms
}

// String returns "0x501@0xf0a60000".
func (r RToken) String() string { return fmt.Sprintf("%v@%#x", r.RKey, r.VA) }

// An RKeyPair says where an RMB is on a new link.
//
//	offset  size  field
//	     0     4  reference RKey   on the link that carries the message
//	     4     4  RKey             on the new link
//	     8     8  virtual address  on the new link
//
// Layout: RFC 7609 p.114, SMCv2 p.85.
type RKeyPair struct {
	Reference wire.RKey // of an RMB that the peer knows
	New       RToken
}

const rkeyPairLen = 16

// String returns "0x501=0x601@0xf0a60000": the reference, then the new RToken.
func (p RKeyPair) String() string { return fmt.Sprintf("%v=%v", p.Reference, p.New) }

func (p RKeyPair) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(p.Reference))
	b = binary.BigEndian.AppendUint32(b, uint32(p.New.RKey))
	return binary.BigEndian.AppendUint64(b, p.New.VA)
}

// parseRKeyPairs decodes the n pairs at the start of b, which has them. It returns nil for none.
func parseRKeyPairs(b []byte, n int) []RKeyPair {
	var pairs []RKeyPair
	for ; n > 0; n-- {
		pairs = append(pairs, RKeyPair{
			Reference: wire.RKey(binary.BigEndian.Uint32(b)),
			New:       RToken{wire.RKey(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint64(b[8:])},
		})
		b = b[rkeyPairLen:]
	}
	return pairs
}

// A LinkRToken says where an RMB is on a link that exists.
//
//	offset  size  field
//	     0     1  link number
//	     1     4  RKey             on that link
//	     5     8  virtual address  on that link
//
// Layout: RFC 7609 p.119, SMCv2 p.91.
type LinkRToken struct {
	Link LinkNum
	RToken
}

const linkRTokenLen = 13

// String returns "2:0x501@0xf0a60000": the link number, then the RToken.
func (t LinkRToken) String() string { return fmt.Sprintf("%d:%v", t.Link, t.RToken) }

// putLinkRTokens puts tokens at the start of b, which has room for them.
func putLinkRTokens(b []byte, tokens []LinkRToken) {
	for _, t := range tokens {
		b[0] = byte(t.Link)
		binary.BigEndian.PutUint32(b[1:], uint32(t.RKey))
		binary.BigEndian.PutUint64(b[5:], t.VA)
		b = b[linkRTokenLen:]
	}
}

// parseLinkRTokens decodes the n tokens at the start of b, which has them. It returns nil for none.
func parseLinkRTokens(b []byte, n int) []LinkRToken {
	var tokens []LinkRToken
	for ; n > 0; n-- {
		tokens = append(tokens, LinkRToken{
			Link:   LinkNum(b[0]),
			RToken: RToken{wire.RKey(binary.BigEndian.Uint32(b[1:])), binary.BigEndian.Uint64(b[5:])},
		})
		b = b[linkRTokenLen:]
	}
	return tokens
}
