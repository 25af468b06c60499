package clc

// The SMC option of TCP says "I can do SMC on this connection". It is an experimental option,
// told from others by the identifier "SMCR" in EBCDIC.
//
//	offset  size  field
//	     0     1  kind        254
//	     1     1  length      6
//	     2     4  identifier  e2 d4 c3 d9
//
// A client sends it on the SYN; a server on the SYN-ACK, if the SYN had it. No CLC message is sent
// unless both did. Linux puts two one-byte no-operation options (kind 1) before it.
//
// Layout: RFC 7609 p.92.
const (
	OptionKind      = 254
	OptionLen       = 6 // bytes
	OptionPaddedLen = 8 // bytes, with the two no-operations

	optionKindEnd = 0
	optionKindNop = 1
)

// AppendOption appends the option, 6 bytes, to b and returns the extended slice.
func AppendOption(b []byte) []byte {
	b = append(b, OptionKind, OptionLen)
	return append(b, eyecatcherSMCR...)
}

// AppendOptionPadded appends two no-operations and the option, 8 bytes in all, so that the
// length of the options stays a multiple of 4 as TCP needs it.
func AppendOptionPadded(b []byte) []byte {
	return AppendOption(append(b, optionKindNop, optionKindNop))
}

// ParseOption reports whether b is an SMC option: kind, length and identifier, with b as long as
// the option says. A longer option with the same identifier counts, as long as its length is
// even, as for Linux net/smc.
func ParseOption(b []byte) bool {
	return len(b) >= OptionLen && len(b)%2 == 0 && // rule: TestOption: len(b)%2 == 0 -> true
		b[0] == OptionKind && int(b[1]) == len(b) && string(b[2:6]) == eyecatcherSMCR
}

// HasOption reports whether the options of a TCP header (all that follows its first 20 bytes)
// contain the SMC option. Options behind one with an impossible length are not looked at.
func HasOption(options []byte) bool {
	for len(options) > 0 {
		switch options[0] {
		case optionKindEnd:
			return false
		case optionKindNop:
			options = options[1:]
			continue
		}
		if len(options) < 2 {
			return false
		}
		n := int(options[1])
		if n < 2 || n > len(options) {
			return false
		}
		if ParseOption(options[:n]) {
			return true
		}
		options = options[n:]
	}
	return false
}
