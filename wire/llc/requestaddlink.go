package llc

import (
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A RequestAddLink is the client's wish for a new link: it has an RNIC that could be an end of it. The
// server may answer with a reply, with an ADD LINK request, or with the one and then the other.
// Version 2 only; in version 1 the client sends an [AddLink].
//
//	offset  size  field
//	     0     4  header           see [Header]; type 5
//	     3     1  flags            reply (1 bit), rejected (1), reserved (2), reason (4)
//	     4    20  reserved
//
// In a request, this follows:
//
//	24     1  number of GIDs   1 to 8
//	25     3  reserved
//	28    16  for each of them: GID
//
// Layout: SMCv2 "SMC-Rv2 LLC Request Add Link Message", SMCv2 p.76.
type RequestAddLink struct {
	Header
	Rejected bool         // in a reply; the server "should not reject", but just not add a link
	Reason   RejectReason // why it was rejected; 0 if the sender does not say
	// GIDs are the addresses that the client can use, 1 to 8: its end of the link that there is,
	// and then those it would like, best first. Linux net/smc sends 2, and uses the first that it
	// receives. A reply has none.
	GIDs []wire.GID
}

const (
	gidCountOffset = 24
	gidsOffset     = 28
	gidLen         = 16
)

// Type returns [TypeRequestAddLink].
func (r RequestAddLink) Type() Type { return TypeRequestAddLink }

// Validate implements [Message].
func (r RequestAddLink) Validate() error {
	if err := r.valid(TypeRequestAddLink); err != nil {
		return err
	}
	switch {
	case r.Rejected && !r.Reply:
		return invalid(TypeRequestAddLink, "a request cannot reject")
	case r.Reason > reasonMask:
		return invalid(TypeRequestAddLink, "reason %d has more than 4 bits", r.Reason)
	case !r.Reply && (len(r.GIDs) < 1 || len(r.GIDs) > MaxGIDs): // rule: TestValidate
		return invalid(TypeRequestAddLink, "%d GIDs are not 1 to %d", len(r.GIDs), MaxGIDs)
	}
	return nil
}

// Append implements [Message]. The encoding of a request has 28 bytes and 16 for each GID, the
// encoding of a reply 44.
func (r RequestAddLink) Append(b []byte) []byte {
	mustValidate(r)
	start := len(b)
	b, e := begin(b, TypeRequestAddLink, r.Header, outcome(r.Rejected))
	if r.Rejected {
		e[3] |= byte(r.Reason)
	}
	if r.Reply { // rule: TestNotSent
		return b
	}
	e[gidCountOffset] = byte(len(r.GIDs))
	b = b[:start+gidsOffset]
	for _, gid := range r.GIDs {
		b = append(b, gid[:]...)
	}
	return end(b, start, r.Form)
}

// ParseRequestAddLink decodes the REQUEST ADD LINK in b, see [Parse].
// Errors are of type [*wire.DecodeError].
func ParseRequestAddLink(b []byte) (RequestAddLink, error) {
	h, b, fail, err := frame("llc.RequestAddLink", TypeRequestAddLink, b)
	if err != nil {
		return RequestAddLink{}, err
	}
	r := RequestAddLink{Header: h}
	if h.Reply {
		if r.Rejected = b[3]&flagRejected != 0; r.Rejected {
			r.Reason = RejectReason(b[3] & reasonMask)
		}
		return r, nil
	}
	count := int(b[gidCountOffset])
	if count < 1 || count > MaxGIDs || gidsOffset+count*gidLen > len(b) { // rule: TestNineGIDs: count > MaxGIDs -> false
		return RequestAddLink{}, fail("number of GIDs", gidCountOffset, wire.ErrValue)
	}
	for i := range count {
		r.GIDs = append(r.GIDs, wire.GID(b[gidsOffset+i*gidLen:][:gidLen]))
	}
	return r, nil
}

// String implements [Message].
func (r RequestAddLink) String() string {
	s := r.describe(TypeRequestAddLink)
	if r.Rejected {
		s += fmt.Sprintf(" rejected (%v)", r.Reason)
	}
	if !r.Reply {
		s += fmt.Sprintf(" gids=%v", r.GIDs)
	}
	return s
}
