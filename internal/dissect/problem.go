package dissect

import "fmt"

// A ProblemKind is a class of problems.
type ProblemKind uint8

// All kinds.
const (
	Declined  ProblemKind = iota + 1 // a Decline: the connection goes on over TCP
	Malformed                        // bytes that are no message, or no packet
	BadICRC                          // a damaged RoCEv2 packet; hosts drop it
	Nak                              // the receiver refuses a packet, or is not ready for it
	Timeout                          // something that was due did not come, though the capture went on
	Violation                        // a host broke a rule
	Truncated                        // the capture, or a fragment, does not have the whole message
	Reset                            // the TCP connection ended in the middle
)

// String returns the name of the kind.
func (k ProblemKind) String() string {
	switch k {
	case Declined:
		return "declined"
	case Malformed:
		return "malformed"
	case BadICRC:
		return "bad ICRC"
	case Nak:
		return "NAK"
	case Timeout:
		return "timeout"
	case Violation:
		return "violation"
	case Truncated:
		return "truncated"
	case Reset:
		return "reset"
	}
	return fmt.Sprintf("problem %d", uint8(k))
}

// A Problem is something that an engineer would like to be told.
type Problem struct {
	Kind ProblemKind
	Text string // the problem in words
	Rule string // the source of the rule, such as "RFC 7609 p.127"; empty if it needs no rule
}

// String returns "violation: text (rule)".
func (p Problem) String() string {
	s := p.Kind.String()
	if p.Text != "" {
		s += ": " + p.Text
	}
	if p.Rule != "" {
		s += " (" + p.Rule + ")"
	}
	return s
}
