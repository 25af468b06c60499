package cdc

import "strings"

// ProducerFlags are the flags of a side about the data that it writes. The 3 bits without a name
// are reserved: sent as zero, ignored on receipt.
type ProducerFlags uint8

// All producer flags: RFC 7609 p.126 (bits B, P, U, R and F), pp.128-129.
const (
	WriterBlocked         ProducerFlags = 0x80 // the sender waits for space and wants to be told
	UrgentPending         ProducerFlags = 0x40 // urgent data will follow
	UrgentPresent         ProducerFlags = 0x20 // the last byte before the producer cursor is urgent
	CursorUpdateRequested ProducerFlags = 0x10 // the sender wants the consumer cursor now
	FailoverValidation    ProducerFlags = 0x08 // SMC-R: see [Message]

	// urgentFlags belong to a producer cursor: see [PackUrgent].
	urgentFlags = UrgentPending | UrgentPresent

	allProducerFlags = WriterBlocked | UrgentPending | UrgentPresent | CursorUpdateRequested | FailoverValidation
)

// ConnFlags are the flags of a side about its end of the connection. Once set, a flag stays set
// from then on. The 5 bits without a name are reserved: sent as zero, ignored on receipt.
type ConnFlags uint8

// All connection state flags: RFC 7609 p.126 (bits D, C and A), p.129.
const (
	DoneWriting ConnFlags = 0x80 // no more data will follow
	Closed      ConnFlags = 0x40 // nothing will follow at all
	Abort       ConnFlags = 0x20 // likewise, and data not yet read is to be dropped

	allConnFlags = DoneWriting | Closed | Abort
)

// String returns the names of the flags, such as "WriterBlocked|UrgentPending"; "0" for none.
func (f ProducerFlags) String() string {
	return flagNames(uint8(f), "WriterBlocked", "UrgentPending", "UrgentPresent", "CursorUpdateRequested",
		"FailoverValidation")
}

// String returns the names of the flags, such as "DoneWriting|Closed"; "0" for none.
func (f ConnFlags) String() string {
	return flagNames(uint8(f), "DoneWriting", "Closed", "Abort")
}

// flagNames joins the names of the bits that are set, from the highest bit on.
func flagNames(f uint8, names ...string) string {
	var set []string
	for i, name := range names {
		if f&(0x80>>i) != 0 {
			set = append(set, name)
		}
	}
	if set == nil {
		return "0"
	}
	return strings.Join(set, "|")
}
