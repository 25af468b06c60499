package llc

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A ConfirmLink is the first message on a new link, which shows that its path works. The server
// sends the request, the client the reply, each with the values that it has sent about itself
// before, in the CLC messages or in ADD LINK.
//
//	offset  size  field
//	     0     4  header           see [Header]; type 1
//	     3     1  flags            reply (1 bit), reserved (3), cache size (4)
//	     4     6  MAC
//	    10    16  GID
//	    26     3  QPN
//	    29     1  link number
//	    30     4  link user ID
//	    34     1  max links
//	    35     1  max connections  version 2.1, else reserved
//	    36     8  reserved
//
// Layout: RFC 7609 pp.107-109, SMCv2 p.83.
type ConfirmLink struct {
	Header
	// CacheSize is 4 bits. SMCv2 calls them "System Cache Size (Aligned RDMA-w)", RFC 7609 has
	// them reserved, and Linux net/smc in both versions sends [NoEyecatcher] and ends the first
	// contact with a peer that sends none of its bits.
	CacheSize  uint8
	MAC        wire.MAC // next hop on a direct link, else informational
	GID        wire.GID
	QPN        wire.QPN
	Link       LinkNum     // the server's choice, echoed by the client
	LinkUserID wire.LinkID // the sender's own name for the link, for its operator
	// MaxLinks is the number of links that the sender can have in a link group; the lower of both
	// hosts' counts. Version 2.1 sends the number that was agreed in the CLC messages.
	MaxLinks uint8
	MaxConns uint8 // version 2.1: as agreed in the CLC messages; else 0
}

// NoEyecatcher in CacheSize means that elements of the sender's RMBs are data from their first
// byte on, with no eyecatcher before it, and that cursors start at 0: Linux net/smc.
const NoEyecatcher = 0x3

const cacheSizeMask = 0x0f

// HasNoEyecatcher reports whether the sender, as Linux net/smc understands it, has RMB elements
// without an eyecatcher.
func (c ConfirmLink) HasNoEyecatcher() bool { return c.CacheSize&NoEyecatcher != 0 } // rule: TestHasNoEyecatcher: != 0 -> == 0

// Type returns [TypeConfirmLink].
func (c ConfirmLink) Type() Type { return TypeConfirmLink }

// Validate implements [Message].
func (c ConfirmLink) Validate() error {
	if err := c.valid(TypeConfirmLink); err != nil {
		return err
	}
	switch {
	case c.CacheSize > cacheSizeMask:
		return invalid(TypeConfirmLink, "cache size %#x has more than 4 bits", c.CacheSize)
	case c.QPN > wire.MaxQPN:
		return invalid(TypeConfirmLink, "QPN %v has more than 24 bits", c.QPN)
	}
	return nil
}

// Append implements [Message]. The encoding has 44 bytes.
func (c ConfirmLink) Append(b []byte) []byte {
	mustValidate(c)
	b, e := begin(b, TypeConfirmLink, c.Header, c.CacheSize)
	copy(e[4:], c.MAC[:])
	copy(e[10:], c.GID[:])
	putUint24(e[26:], uint32(c.QPN))
	e[29] = byte(c.Link)                                     // rule: TestVectors
	binary.BigEndian.PutUint32(e[30:], uint32(c.LinkUserID)) // rule: TestVectors
	e[34] = c.MaxLinks                                       // rule: TestVectors
	if c.Form.Version() == 2 {
		e[35] = c.MaxConns // rule: TestVectors
	}
	return b
}

// ParseConfirmLink decodes the CONFIRM LINK in b, see [Parse].
// Errors are of type [*wire.DecodeError].
func ParseConfirmLink(b []byte) (ConfirmLink, error) {
	h, b, _, err := frame("llc.ConfirmLink", TypeConfirmLink, b)
	if err != nil {
		return ConfirmLink{}, err
	}
	c := ConfirmLink{
		Header:     h,
		CacheSize:  b[3] & cacheSizeMask,
		MAC:        wire.MAC(b[4:10]),
		GID:        wire.GID(b[10:26]),
		QPN:        wire.QPN(uint24(b[26:])),
		Link:       LinkNum(b[29]),
		LinkUserID: wire.LinkID(binary.BigEndian.Uint32(b[30:])),
		MaxLinks:   b[34],
	}
	if h.Form.Version() == 2 {
		c.MaxConns = b[35] // rule: TestVectors
	}
	return c, nil
}

// String implements [Message].
func (c ConfirmLink) String() string {
	return fmt.Sprintf("%s link=%d gid=%v mac=%v qpn=%v user=%v max-links=%d max-conns=%d cache-size=%#x",
		c.describe(TypeConfirmLink), c.Link, c.GID, c.MAC, c.QPN, c.LinkUserID, c.MaxLinks, c.MaxConns, c.CacheSize)
}
