package llc

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A ConfirmRKey tells the peer where a new RMB is, on every link of the link group. The reply is the
// same again with the flags of the outcome.
//
//	offset  size  field
//	     0     4  header           see [Header]; type 6
//	     3     1  flags            reply (1 bit), reserved (1), negative (1), retry (1), reserved (4)
//	     4     1  number of other RTokens, with the RTokens of messages that follow
//	     5     4  RKey             on the link that carries the message
//	     9     8  virtual address  likewise
//	    17    13  other RToken     see [LinkRToken]; zeros if there is none
//	    30    13  other RToken     likewise
//	    43     1  reserved
//
// RFC 7609 p.118 says that one message is enough for 3 other RTokens, and also that there are never
// more than 2. The message has room for 2; in version 1 more follow in [ConfirmRKeyCont].
// Linux net/smc has links for no more than 2 others.
//
// Layout: RFC 7609 pp.117-119, SMCv2 p.91.
type ConfirmRKey struct {
	Header
	Negative  bool   // in a reply: the receiver did not take the RMB
	Retry     bool   // in a negative reply: try again once the links are as they are to be
	RToken    RToken // on the link that carries the message
	Remaining uint8  // RTokens on other links, with those here: at most 7; in version 2, 2
	Others    []LinkRToken
	// Others has 2 elements, or Remaining if that is less.
}

const (
	flagNegative = 0x20 // in flags, of DELETE RKEY too
	flagRetry    = 0x10

	maxOthers     = 2 // in CONFIRM RKEY
	maxContTokens = 3 // in CONFIRM RKEY CONTINUATION
)

// maxRemaining returns how many RTokens on other links the messages of a form can tell of.
func (h Header) maxRemaining() int {
	if h.Form == V1 {
		return MaxLinks - 1
	}
	return maxOthers
}

// result returns the flags of a reply's outcome.
func result(negative, retry bool) byte {
	switch {
	case negative && retry: // rule: TestVectors
		return flagNegative | flagRetry
	case negative:
		return flagNegative
	}
	return 0
}

// Type returns [TypeConfirmRKey].
func (c ConfirmRKey) Type() Type { return TypeConfirmRKey }

// Validate implements [Message].
func (c ConfirmRKey) Validate() error {
	if err := c.valid(TypeConfirmRKey); err != nil {
		return err
	}
	switch want := min(int(c.Remaining), maxOthers); {
	case c.Negative && !c.Reply:
		return invalid(TypeConfirmRKey, "a request cannot be negative")
	case int(c.Remaining) > c.maxRemaining():
		return invalid(TypeConfirmRKey, "%d RTokens are more than %d", c.Remaining, c.maxRemaining())
	case len(c.Others) != want:
		return invalid(TypeConfirmRKey, "%d RTokens where %d remain", len(c.Others), c.Remaining)
	}
	return nil
}

// Append implements [Message]. The encoding has 44 bytes.
func (c ConfirmRKey) Append(b []byte) []byte {
	mustValidate(c)
	b, e := begin(b, TypeConfirmRKey, c.Header, result(c.Negative, c.Retry))
	e[4] = c.Remaining
	binary.BigEndian.PutUint32(e[5:], uint32(c.RToken.RKey))
	binary.BigEndian.PutUint64(e[9:], c.RToken.VA)
	putLinkRTokens(e[17:], c.Others) // rule: TestVectors
	return b
}

// ParseConfirmRKey decodes the CONFIRM RKEY in b, see [Parse].
// Errors are of type [*wire.DecodeError].
func ParseConfirmRKey(b []byte) (ConfirmRKey, error) {
	h, b, fail, err := frame("llc.ConfirmRKey", TypeConfirmRKey, b)
	if err != nil {
		return ConfirmRKey{}, err
	}
	if int(b[4]) > h.maxRemaining() { // rule: TestLies
		return ConfirmRKey{}, fail("number of other RTokens", 4, wire.ErrValue)
	}
	c := ConfirmRKey{
		Header:    h,
		Negative:  h.Reply && b[3]&flagNegative != 0,
		RToken:    RToken{wire.RKey(binary.BigEndian.Uint32(b[5:])), binary.BigEndian.Uint64(b[9:])},
		Remaining: b[4],
		Others:    parseLinkRTokens(b[17:], min(int(b[4]), maxOthers)),
	}
	c.Retry = c.Negative && b[3]&flagRetry != 0 // rule: TestReserved: c.Negative -> true
	return c, nil
}

// String implements [Message].
func (c ConfirmRKey) String() string {
	s := c.describe(TypeConfirmRKey)
	if c.Negative {
		s += " negative"
	}
	if c.Retry {
		s += " retry"
	}
	return fmt.Sprintf("%s rtoken=%v remaining=%d others=%v", s, c.RToken, c.Remaining, c.Others)
}

// A ConfirmRKeyCont has the RTokens for which a [ConfirmRKey] had no room, three at a time. The reply
// is the same again. Version 1 only. Linux net/smc ignores it.
//
//	offset  size  field
//	     0     4  header           see [Header]; type 8
//	     3     1  flags            reply (1 bit), reserved (1), negative (1), reserved (5)
//	     4     1  number of RTokens that remain to be told of, with those here
//	     5    13  RToken           see [LinkRToken]; zeros if there are no more
//	    18    13  RToken           likewise
//	    31    13  RToken           likewise
//
// The picture in RFC 7609 p.120 has a reserved byte at the end, for which three RTokens leave no
// room.
//
// Layout: RFC 7609 pp.120-121.
type ConfirmRKeyCont struct {
	Header
	Negative  bool  // in a reply: the receiver did not take the RMB
	Remaining uint8 // RTokens to be told of, with those here; at most 7
	RTokens   []LinkRToken
	// RTokens has 3 elements, or Remaining if that is less.
}

// Type returns [TypeConfirmRKeyCont].
func (c ConfirmRKeyCont) Type() Type { return TypeConfirmRKeyCont }

// Validate implements [Message].
func (c ConfirmRKeyCont) Validate() error {
	if err := c.valid(TypeConfirmRKeyCont); err != nil {
		return err
	}
	switch want := min(int(c.Remaining), maxContTokens); {
	case c.Negative && !c.Reply:
		return invalid(TypeConfirmRKeyCont, "a request cannot be negative")
	case int(c.Remaining) > c.maxRemaining():
		return invalid(TypeConfirmRKeyCont, "%d RTokens are more than %d", c.Remaining, c.maxRemaining())
	case len(c.RTokens) != want:
		return invalid(TypeConfirmRKeyCont, "%d RTokens where %d remain", len(c.RTokens), c.Remaining)
	}
	return nil
}

// Append implements [Message]. The encoding has 44 bytes.
func (c ConfirmRKeyCont) Append(b []byte) []byte {
	mustValidate(c)
	b, e := begin(b, TypeConfirmRKeyCont, c.Header, result(c.Negative, false))
	e[4] = c.Remaining
	putLinkRTokens(e[5:], c.RTokens)
	return b
}

// ParseConfirmRKeyCont decodes the CONFIRM RKEY CONTINUATION in b, see [Parse].
// Errors are of type [*wire.DecodeError].
func ParseConfirmRKeyCont(b []byte) (ConfirmRKeyCont, error) {
	h, b, fail, err := frame("llc.ConfirmRKeyCont", TypeConfirmRKeyCont, b)
	if err != nil {
		return ConfirmRKeyCont{}, err
	}
	if int(b[4]) > h.maxRemaining() { // rule: TestLies
		return ConfirmRKeyCont{}, fail("number of RTokens", 4, wire.ErrValue)
	}
	return ConfirmRKeyCont{
		Header:    h,
		Negative:  h.Reply && b[3]&flagNegative != 0,
		Remaining: b[4],
		RTokens:   parseLinkRTokens(b[5:], min(int(b[4]), maxContTokens)),
	}, nil
}

// String implements [Message].
func (c ConfirmRKeyCont) String() string {
	s := c.describe(TypeConfirmRKeyCont)
	if c.Negative {
		s += " negative"
	}
	return fmt.Sprintf("%s remaining=%d rtokens=%v", s, c.Remaining, c.RTokens)
}
