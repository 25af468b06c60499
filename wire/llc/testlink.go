package llc

import "fmt"

// A TestLink asks whether the peer is there. Either side may send the request at any time; the reply
// has the same data, "immediately".
//
//	offset  size  field
//	     0     4  header           see [Header]; type 7
//	     4    16  user data
//	    20    24  reserved
//
// Layout: RFC 7609 pp.124-125, SMCv2 p.97.
type TestLink struct {
	Header
	UserData [16]byte // anything; zeros from Linux net/smc
}

// Type returns [TypeTestLink].
func (l TestLink) Type() Type { return TypeTestLink }

// Validate implements [Message].
func (l TestLink) Validate() error { return l.valid(TypeTestLink) }

// Append implements [Message]. The encoding has 44 bytes.
func (l TestLink) Append(b []byte) []byte {
	mustValidate(l)
	b, e := begin(b, TypeTestLink, l.Header, 0)
	copy(e[4:], l.UserData[:])
	return b
}

// ParseTestLink decodes the TEST LINK in b, see [Parse].
// Errors are of type [*wire.DecodeError].
func ParseTestLink(b []byte) (TestLink, error) {
	h, b, _, err := frame("llc.TestLink", TypeTestLink, b)
	if err != nil {
		return TestLink{}, err
	}
	return TestLink{Header: h, UserData: [16]byte(b[4:20])}, nil
}

// String implements [Message].
func (l TestLink) String() string {
	return fmt.Sprintf("%s data=%x", l.describe(TypeTestLink), l.UserData)
}
